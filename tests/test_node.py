"""Nodes: they join each other, hand over copies that only they hold, and report why they can't start."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import hoplite
from hoplite import Node, sockets, testing
from support import SOON, Array, Later, eventually, fold, numbers, same


def test_a_node_reports_its_address(tmp_path: Path) -> None:
    with Node(listen="127.0.0.1:0", socket=tmp_path / "node.sock", capacity="64 MiB") as node:
        host, _, port = node.address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert node.socket == str(tmp_path / "node.sock")
        assert node.id in repr(node)
        status = node.client().status()
        assert status["id"] == node.id
        assert status["address"] == node.address
        (member,) = status["members"]
        assert member == {
            "id": node.id,
            "address": node.address,
            "rack": None,
            "place": None,
            "carries": None,
            "suspected": None,
            "blocks_corrupt": 0,
            "via": None,
            "rtt_us": None,
            "bytes_per_second": None,
        }
        assert status["store"]["capacity"] == 64 << 20
        assert not node.closed
    assert node.closed
    node.close()


def test_only_this_user_may_open_the_socket(nodes: list[Node]) -> None:
    assert stat.S_IMODE(Path(nodes[0].socket).stat().st_mode) & 0o077 == 0


def test_a_closed_node_removes_its_socket(nodes: list[Node]) -> None:
    nodes[0].close(SOON)
    assert not Path(nodes[0].socket).exists()
    with pytest.raises(hoplite.NodeDown):
        nodes[0].client()
    with pytest.raises(hoplite.ConnectError):
        hoplite.connect(nodes[0].socket, timeout=0)


def test_any_member_can_be_joined() -> None:
    """Each node joins the previous one, and all become members of one cluster."""
    with ExitStack() as stack:
        chain = [stack.enter_context(Node(listen="127.0.0.1:0"))]
        for _ in range(4):
            chain.append(stack.enter_context(Node(join=[chain[-1].address])))
        testing.wait_for_members(chain, 5)
        ref = chain[4].client().put(numbers(100_000))
        same(chain[0].client().get(ref, timeout=SOON), numbers(100_000))


def test_a_nodes_own_address_among_the_seeds_is_ignored() -> None:
    """All hosts of a cluster can use the same list of seeds."""
    with Node(listen="127.0.0.1:0") as first:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        own = f"127.0.0.1:{port}"
        with Node(listen=own, join=[own, first.address]) as second:
            testing.wait_for_members([first, second], 2)


def test_one_reachable_seed_is_enough() -> None:
    with Node(listen="127.0.0.1:0") as first, Node(join=["127.0.0.1:1", first.address]) as second:
        testing.wait_for_members([first, second], 2)


def test_nodes_join_over_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with Node(listen="[::1]:0") as first, Node(listen="[::1]:0", join=[first.address]) as second:
        testing.wait_for_members([first, second], 2)
        ref = first.client().put(numbers(100_000))
        same(second.client().get(ref, timeout=SOON), numbers(100_000))


def test_a_closing_node_hands_over_its_only_copies() -> None:
    """Small and large objects, named and not: two holders leave in turn, and the remaining node has all objects."""
    with testing.cluster(3) as nodes:
        values: dict[str, Array] = {}
        putter = nodes[2].client()
        for number in range(10):
            value = numbers(10 if number % 2 else 200_000, seed=number)
            ref = putter.put(value, name=f"kept/{number}" if number % 3 else None)
            values[str(ref)] = value
        nodes[2].close(SOON)
        testing.wait_for_members(nodes[:2], 2)
        for ref_text, value in values.items():
            same(nodes[0].client().get(ref_text, timeout=SOON), value)
        nodes[0].close(SOON)
        testing.wait_for_members(nodes[1:2], 1)
        for ref_text, value in values.items():
            same(nodes[1].client().get(ref_text, timeout=SOON), value)
        assert nodes[1].client().latest("kept/", timeout=SOON).number == 8


def test_names_survive_their_owner() -> None:
    """Whichever node owned a name, it stays taken, can be found, and is free again after a delete."""
    with testing.cluster(3) as nodes:
        clients = [node.client() for node in nodes]
        for number in range(20):
            clients[0].put(b"x", name=f"group{number}/1")
        nodes[1].close(SOON)
        testing.wait_for_members([nodes[0], nodes[2]], 2)
        for number in range(20):
            name = f"group{number}/1"
            assert clients[2].latest(f"group{number}/", timeout=SOON).number == 1
            with pytest.raises(hoplite.NameTaken):
                clients[2].put(b"y", name=name)
            clients[2].delete(name)
            clients[2].put(b"z", name=name)
            assert clients[0].get(name, timeout=SOON) == b"z"


def test_a_node_that_joins_late_finds_existing_objects(nodes: list[Node]) -> None:
    """Including names that the new node owns."""
    client = nodes[0].client()
    values = {f"group{number}/1": numbers(1000 * number, seed=number) for number in range(20)}
    for name, value in values.items():
        client.put(value, name=name)
    with Node(join=[nodes[1].address]) as late:
        for name, value in values.items():
            same(late.client().get(name, timeout=SOON), value)
        testing.wait_for_members([*nodes, late], 4)
        for name in values:
            with pytest.raises(hoplite.NameTaken):
                late.client().put(b"x", name=name)


def test_waiting_gets_survive_a_change_of_owner(nodes: list[Node]) -> None:
    """Gets wait while a node joins and another leaves; the objects are put afterwards."""
    names = [f"late{number}/1" for number in range(12)]
    gets = [Later(nodes[0].client().get, name, timeout=SOON) for name in names]
    with Node(join=[nodes[0].address]) as late:
        testing.wait_for_members([*nodes, late], 4)
        nodes[2].close(SOON)
        testing.wait_for_members([nodes[0], nodes[1], late], 3)
        for number, name in enumerate(names):
            putter = (nodes[1], late)[number % 2].client()
            putter.put(numbers(50_000, seed=number), name=name)
        for number, get in enumerate(gets):
            same(get.result(), numbers(50_000, seed=number))


@pytest.mark.faults("nodes leave, one of them perhaps while it sends")
def test_nodes_join_and_leave_during_transfers(nodes: list[Node]) -> None:
    """For two seconds two nodes put and get each other's objects while others join, read and leave."""
    stop = threading.Event()

    def traffic(here: Node, there: Node, what: str) -> int:
        putter, getter = here.client(), there.client()
        number = 0
        while not stop.is_set():
            value = numbers(60_000, seed=number)
            same(getter.get(putter.put(value, name=f"{what}/{number}"), timeout=SOON), value)
            if number:
                getter.delete(f"{what}/{number - 1}")
            number += 1
        return number

    flows = [Later(traffic, nodes[0], nodes[1], "forth"), Later(traffic, nodes[1], nodes[0], "back")]
    until = time.monotonic() + 2
    while time.monotonic() < until:
        with Node(join=[nodes[2].address]) as guest:
            newest = guest.client().latest("forth/", timeout=SOON)
            mine = guest.client().put(numbers(30_000))
        same(nodes[0].client().get(mine, timeout=SOON), numbers(30_000))
        assert newest.number >= 0
    stop.set()
    for flow in flows:
        assert flow.result() > 0


@pytest.mark.faults("the source of a get leaves")
def test_a_get_continues_when_its_source_leaves() -> None:
    """The second of two holders closes while it may be sending; 64 MiB arrive anyway."""
    value = numbers(64 << 20, "uint8")
    with testing.cluster(4, capacity="256MiB") as nodes:
        clients = [node.client() for node in nodes]
        ref = clients[0].put(value)
        clients[1].get(ref, timeout=SOON)
        gets = [Later(client.get, ref, timeout=SOON) for client in clients[2:]]
        nodes[1].close(SOON)
        for get in gets:
            same(get.result(), value)


def test_gets_complete_while_the_putter_leaves() -> None:
    value = numbers(32 << 20, "uint8")
    with testing.cluster(3, capacity="256MiB") as nodes:
        ref = nodes[0].client().put(value)
        gets = [Later(node.client().get, ref, timeout=SOON) for node in nodes[1:]]
        nodes[0].close(SOON)
        for get in gets:
            same(get.result(), value)


def test_an_address_in_use_is_named(nodes: list[Node]) -> None:
    with pytest.raises(hoplite.AddressInUse, match=nodes[0].address):
        Node(listen=nodes[0].address)


def test_the_socket_of_a_running_node_is_not_taken(nodes: list[Node]) -> None:
    with pytest.raises(hoplite.AddressInUse, match=nodes[0].socket):
        Node(socket=nodes[0].socket)
    with hoplite.connect(nodes[0].socket) as client:
        client.put(b"x")


def test_a_file_at_the_sockets_path_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "file"
    precious.write_text("precious")
    with pytest.raises(hoplite.AddressInUse, match="not a socket"):
        Node(socket=precious)
    assert precious.read_text() == "precious"


def test_a_file_at_the_default_path_is_left_alone(tmp_path: Path) -> None:
    for start, name in ((Node, "node.sock"), (hoplite.init, "node-embedded.sock")):
        precious = tmp_path / "hoplite" / name
        precious.parent.mkdir(mode=0o700, exist_ok=True)
        precious.write_text("precious")
        with pytest.raises(hoplite.AddressInUse, match="not a socket"):
            start()
        assert precious.read_text() == "precious"


def test_a_socket_path_that_is_too_long_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="107"):
        Node(socket=tmp_path / ("x" * 120))


def test_a_dead_nodes_socket_is_replaced() -> None:
    with testing.node_process() as dead:
        dead.process.kill()
        dead.process.wait()
        with pytest.raises(hoplite.ConnectError, match=dead.socket):
            hoplite.connect(dead.socket, timeout=0)
        with Node(socket=dead.socket) as node, hoplite.connect(dead.socket) as client:
            assert client.status()["id"] == node.id


def test_joining_an_unreachable_address_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(hoplite.JoinError, match=str(port)):
        Node(join=[f"127.0.0.1:{port}"])


def test_joining_another_cluster_fails(nodes: list[Node]) -> None:
    with pytest.raises(hoplite.JoinError, match="elsewhere"):
        Node(join=[nodes[0].address], cluster="elsewhere")
    assert len(nodes[0].client().status()["members"]) == 3


def test_joining_with_another_token_fails() -> None:
    right, wrong = hoplite.new_token(), hoplite.new_token()
    with Node(token=right) as first:
        for token in (wrong, None):
            with pytest.raises(hoplite.JoinError):
                Node(join=[first.address], token=token)
        with Node(join=[first.address], token=right) as second:
            testing.wait_for_members([first, second], 2)
    with Node(no_auth=True) as open_to_all, pytest.raises(hoplite.JoinError):
        Node(join=[open_to_all.address], token=right)


def test_the_token_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_TOKEN", hoplite.new_token())
    with Node() as first:
        with Node(join=[first.address]) as second:
            testing.wait_for_members([first, second], 2)
        with pytest.raises(hoplite.JoinError):
            Node(join=[first.address], token=hoplite.new_token())


def test_a_token_not_made_by_hoplite_is_rejected() -> None:
    with pytest.raises(hoplite.InvalidArgument, match=r"^token was not created by hoplite.* hoplite token new"):
        Node(token="choose-your-own")


def answer(stranger: socket.socket, greeting: bytes) -> None:
    """Sends a greeting to every connection, and nothing more, until the listening socket is shut down."""
    with ExitStack() as callers:
        while True:
            try:
                caller = callers.enter_context(stranger.accept()[0])
            except OSError:
                return
            with suppress(OSError):
                caller.sendall(greeting)


def test_joining_another_protocol_version_fails() -> None:
    """The error for a peer with version 99 names the number."""
    greeting = struct.pack("<4sBBHIIQQ", b"HPLT", 99, 1, 0, 0, 0, 0, 0)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        answers = Later(answer, stranger, greeting)
        try:
            with pytest.raises(hoplite.JoinError, match=r"version.*99"):
                Node(join=[f"127.0.0.1:{stranger.getsockname()[1]}"])
        finally:
            stranger.shutdown(socket.SHUT_RDWR)
            answers.result()


def test_joining_another_kind_of_server_fails() -> None:
    """A web server's greeting, and a server that never sends anything."""
    for greeting in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            answers = Later(answer, stranger, greeting)
            try:
                with pytest.raises(hoplite.JoinError):
                    Node(join=[f"127.0.0.1:{stranger.getsockname()[1]}"])
            finally:
                stranger.shutdown(socket.SHUT_RDWR)
                answers.result()


def test_a_node_off_loopback_needs_a_token() -> None:
    with pytest.raises(hoplite.InvalidArgument, match="token"):
        Node(listen="0.0.0.0:0")
    with Node(listen="0.0.0.0:0", token=hoplite.new_token(), advertise="127.0.0.1:0"):
        pass
    with Node(listen="0.0.0.0:0", no_auth=True, advertise="127.0.0.1:0"):
        pass


def test_a_node_process_leaves_on_sigterm(nodes: list[Node]) -> None:
    """SIGTERM: objects that only this node held are on another node when the process exits with status 0."""
    with testing.node_process("--join", nodes[0].address) as other:
        with other.client() as client:
            ref = client.put(numbers(200_000))
        other.process.terminate()
        assert other.process.wait(SOON) == 0
        assert not Path(other.socket).exists()
    testing.wait_for_members(nodes, 3)
    same(nodes[0].client().get(ref, timeout=SOON), numbers(200_000))


def test_concurrent_processes_get_separate_nodes() -> None:
    """One gets the default socket, the others get new paths; no process removes the socket of another."""
    script = "import hoplite; node = hoplite.Node(); print(node.socket, flush=True); input(); node.close()"
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(4)
        ]
        paths = [process.stdout.readline().strip() for process in processes if process.stdout]
        assert len(set(paths)) == 4
        ids = {hoplite.connect(path).status()["id"] for path in paths}
        assert len(ids) == 4
        for process in processes:
            process.communicate("\n", timeout=SOON)
            assert process.returncode == 0
    assert not [path for path in paths if Path(path).exists()]


@pytest.mark.parametrize("is_default", [True, False], ids=["default", "given"])
def test_a_socket_that_does_not_listen_yet_is_not_removed(is_default: bool) -> None:
    """It looks like a dead node's. A process that is about to listen holds the lock of the folder."""
    path = sockets.default_socket()
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with socket.socket(socket.AF_UNIX) as other, ThreadPoolExecutor() as pool:
            other.bind(str(path))
            start = pool.submit(Node, socket=None if is_default else path)
            with pytest.raises(TimeoutError):
                start.result(timeout=0.2)
            other.listen()
            fcntl.flock(folder, fcntl.LOCK_UN)
            if is_default:
                with start.result(timeout=SOON) as node:
                    assert Path(node.socket) != path
            else:
                with pytest.raises(hoplite.AddressInUse, match=str(path)):
                    start.result(timeout=SOON)
            assert sockets.is_served(path)
    finally:
        os.close(folder)


def test_nodes_keep_connecting_to_configured_members() -> None:
    """Two nodes with the seed of a third start before it, each joining another one: all form one cluster."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        seeds = [f"127.0.0.1:{port}" for port in ports]
        first = stack.enter_context(testing.node_process("--listen", seeds[0]))
        join = ["--join", seeds[0], "--join", seeds[2]]
        stack.enter_context(testing.node_process("--listen", seeds[1], *join))
        # It joins no node; the others connect to it.
        late = stack.enter_context(testing.node_process("--listen", seeds[2]))
        with first.client() as client, late.client() as other:
            for view in (client, other):
                eventually(lambda view=view: len(view.status()["members"]) == 3)  # type: ignore[misc]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.faults("a node is killed")
def test_a_killed_node_is_removed_from_the_members(nodes: list[Node]) -> None:
    """The others remove it from their members, and keep their own copies."""
    ref = nodes[0].client().put(numbers(100_000))
    with testing.node_process("--join", nodes[0].address) as other:
        testing.wait_for_members(nodes, 4)
        with other.client() as client:
            client.get(ref, timeout=SOON)
        other.process.kill()
        other.process.wait()
        eventually(lambda: len(nodes[1].client().status()["members"]) == 3)
        same(nodes[2].client().get(ref, timeout=SOON), numbers(100_000))


@pytest.mark.faults("a node is killed")
def test_an_object_on_a_killed_node_only_is_lost(nodes: list[Node]) -> None:
    """A get by its id fails instead of waiting forever. The owners have the bytes of a small object."""
    with testing.node_process("--join", nodes[0].address) as other:
        testing.wait_for_members(nodes, 4)
        with other.client() as client:
            large, small = client.put(numbers(200_000)), client.put(numbers(10))
        # A put does not wait for the backup owner.
        eventually(lambda: sum(node.client().status()["owned"] for node in nodes) == 2)
        other.process.kill()
        other.process.wait()
        with pytest.raises(hoplite.ObjectLost, match=str(large)):
            nodes[1].client().get(large, timeout=SOON)
        same(nodes[1].client().get(small, timeout=SOON), numbers(10))


@pytest.mark.faults("two nodes are killed at once")
def test_an_object_that_only_its_waiters_remember_is_lost(nodes: list[Node]) -> None:
    """The node with the object and both nodes with its directory entry end: a sum of it fails, and waits no longer."""
    with ExitStack() as stack:
        processes = [stack.enter_context(testing.node_process("--join", nodes[0].address)) for _ in range(2)]
        testing.wait_for_members(nodes, 5)
        client = nodes[0].client()
        killed, groups = {process.id for process in processes}, (f"both{number}" for number in range(1000))
        group = next(each for each in groups if set(client._open().start_owners(f"{each}/0").result()) == killed)
        with processes[0].client() as putter:
            putter.put(numbers(200_000), name=f"{group}/0", timeout=SOON)
        total = client.reduce([f"{group}/0", f"{group}/1"])

        def has_come() -> bool:
            with pytest.raises(hoplite.Timeout) as late:
                client.get(total, timeout=0)
            return "1 of 2 inputs arrived" in str(late.value)

        eventually(has_come)
        for process in processes:
            process.process.kill()
        with pytest.raises(hoplite.ObjectLost, match=f"{group}/0"):
            nodes[1].client().get(total, timeout=SOON)


@pytest.mark.faults("a node is killed")
def test_a_spare_input_replaces_one_on_a_killed_node(nodes: list[Node]) -> None:
    """The first of two inputs is lost before the second is put: the sum takes the two that remain."""
    client = nodes[0].client()
    values = {f"part/{number}": numbers(1_000_000, seed=number) for number in (1, 2)}
    with testing.node_process("--join", nodes[0].address) as other:
        testing.wait_for_members(nodes, 4)
        with other.client() as lost:
            first = lost.put(numbers(1_000_000))
        total = client.reduce([first, *values], count=2)
        other.process.kill()
        other.process.wait()
        eventually(lambda: len(client.status()["members"]) == 3)
        for number, (name, value) in enumerate(values.items()):
            nodes[number].client().put(value, name=name)
        same(nodes[2].client().get(total, timeout=SOON), fold("sum", list(values.values())))
        assert {str(ref) for ref in total.inputs(timeout=SOON)} == set(values)
