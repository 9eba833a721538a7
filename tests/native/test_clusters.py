"""Clusters of Python and native nodes: admission, discovery, failures of either side, and paused nodes."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite import errors, testing
from native.clients import NativeClient
from native.conftest import SETUPS, paired
from programs import frozen, kill
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from native.conftest import Pair
    from native.peer import Peer

pytestmark = pytest.mark.native

JOINS = [setup for setup in SETUPS if "joins" in setup]
LARGE = 1 << 20


def exchange(pair: Pair) -> None:
    """Asserts that each side reads an object of the other, and a reduce over both."""
    array = numbers(LARGE, "int32")
    refs = [str(pair.python.put(array)), str(pair.native.put(array))]
    same(pair.native.get(refs[0], timeout=SOON), array)
    same(pair.python.get(refs[1], timeout=SOON), array)
    same(pair.native.get(pair.python.reduce(refs, "sum"), timeout=SOON), array + array)


def gone(call: Callable[[], object], *classes: type[hoplite.HopliteError]) -> str:
    with pytest.raises(classes) as raised:
        call()
    return str(raised.value)


@pytest.mark.parametrize("setup", JOINS)
@pytest.mark.parametrize("admission", ["token", "token_file", "no_auth"])
def test_nodes_join_with_the_credentials_of_the_other(peer: Peer, tmp_path: Path, setup: str, admission: str) -> None:
    """The secret of this user, the default on loopback, is tested by every `pair` of two nodes."""
    token = hoplite.new_token()
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token)
    options: dict[str, Any] = {"token": {"token": token}, "token_file": {"token_file": str(file)}}.get(
        admission, {"no_auth": True}
    )
    with contextlib.ExitStack() as stack:
        exchange(paired(peer, stack, setup, cluster="of-both", **options))


@pytest.mark.faults("nodes of different clusters connect")
@pytest.mark.parametrize("other", ["token", "cluster", "no token"])
def test_a_node_with_other_credentials_joins_on_neither_side(peer: Peer, tmp_path: Path, other: str) -> None:
    token = hoplite.new_token()
    others: dict[str, dict[str, Any]] = {
        "token": {"token": hoplite.new_token()},
        "cluster": {"token": token, "cluster": "another"},
        "no token": {},
    }
    own = itertools.count()

    def options() -> dict[str, Any]:
        return {"socket": str(tmp_path / f"{next(own)}.sock"), "listen": "127.0.0.1:0"}

    with hoplite.Node(**options(), token=token) as node:
        native = peer.node(**options(), token=token, join=node.address)
        python = gone(lambda: hoplite.Node(**options(), join=[native.address], **others[other]), errors.JoinError)
        of_peer = gone(lambda: peer.node(**options(), join=node.address, **others[other]), errors.JoinError)
        assert of_peer.replace(node.address, "A") == python.replace(native.address, "A")


def test_each_side_finds_the_node_of_the_other(start_peer: Callable[[], Peer]) -> None:
    """`init` without an address: the native one finds this user's Python node, and the reverse."""
    with hoplite.Node(capacity="64MiB") as node:
        native = start_peer().init()
        assert native.status()["id"] == node.id
    starter = start_peer()
    own = starter.init()
    with hoplite.init() as client:
        assert client.node is None
        assert client.status()["id"] == own.status()["id"]
        assert bytes(client.get(own.put(b"x"), timeout=SOON)) == b"x"
    other = start_peer().init()
    assert other.status()["id"] == own.status()["id"]


@pytest.mark.parametrize("source", ["environment", "file"])
def test_both_sides_read_the_same_settings(
    start_peer: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """Arguments, then the environment, then the settings file. The peer inherits the environment of the test."""
    if source == "environment":
        for name, value in {"CAPACITY": "64MiB", "CLUSTER": "of-both", "RACK": "r1", "LISTEN": "127.0.0.1:0"}.items():
            monkeypatch.setenv(f"HOPLITE_{name}", value)
    else:
        file = tmp_path / "settings.toml"
        file.write_text('capacity = "64MiB"\ncluster = "of-both"\nrack = "r1"\nlisten = "127.0.0.1:0"\n')
        monkeypatch.setenv("HOPLITE_CONFIG", str(file))
    native = start_peer().node(socket=str(tmp_path / "native.sock")).client()
    with hoplite.Node(socket=tmp_path / "python.sock") as node, node.client() as client:
        python, other = client.status(), native.status()
        for status in (python, other):
            assert status["store"]["capacity"] == 64 << 20
            assert (status["cluster"], status["rack"]) == ("of-both", "r1")
        assert other["admission"] == python["admission"]


def test_programs_that_start_at_once_share_one_node(start_peer: Callable[[], Peer]) -> None:
    """Native and Python programs call `init` concurrently: one starts the node, the others attach."""
    peers = [start_peer() for _ in range(3)]
    for peer in peers:
        peer.send("init", timeout=SOON)
    with hoplite.init(timeout=SOON) as client:
        home = client.status()["id"]
        for peer in peers:
            assert NativeClient(peer, peer.reply()["client"]).status()["id"] == home
        # Clients before the node, which is in any of the four processes.
        if client.node is not None:
            for peer in peers:
                peer.end()


@pytest.mark.faults("a node is killed")
@pytest.mark.parametrize("setup", JOINS)
def test_objects_of_a_killed_native_node(peer: Peer, setup: str) -> None:
    """The only copy is lost with it; a second replica survives, and so does what was fetched."""
    array = numbers(LARGE)
    with contextlib.ExitStack() as stack:
        pair = paired(peer, stack, setup)
        lost, kept = pair.native.put(array), pair.native.put(array, replicas=2)
        reserved = pair.native.reserve()
        fetched = pair.native.put(array)
        held = pair.python.get(fetched, timeout=SOON)
        unfilled = [reserved, pair.native.reserve(name="reserved/1"), *pair.native.slots(1)]
        waiting = [Later(pair.python.get, ref, timeout=SOON) for ref in unfilled]
        total = pair.python.reduce([lost, reserved], "sum")
        peer.kill()
        waits = [later.result for later in waiting]
        for call in (*waits, lambda: pair.python.get(lost, timeout=SOON), lambda: total.inputs(SOON)):
            gone(call, errors.ObjectLost)
        same(pair.python.get(kept, timeout=SOON), array)
        same(pair.python.get(fetched, timeout=SOON), array)
        same(held, array)
        eventually(lambda: len(pair.python.status()["members"]) == 1)


@pytest.mark.faults("a node is killed")
def test_objects_of_a_killed_python_node(peer: Peer) -> None:
    array = numbers(LARGE)
    with testing.node_process() as node, node.client() as client:
        own = peer.node(listen="127.0.0.1:0", join=node.address, socket=str(peer.file()))
        native = own.client()
        eventually(lambda: len(client.status()["members"]) == 2)
        lost, kept = str(client.put(array)), str(client.put(array, replicas=2))
        pending = native.call("get", ref=str(client.reserve()), timeout=SOON, **{"async": True})["pending"]
        kill(node.process)
        gone(lambda: native.get(lost, timeout=SOON), errors.ObjectLost)
        gone(lambda: peer.call("take", pending=pending), errors.ObjectLost)
        same(native.get(kept, timeout=SOON), array)
        eventually(lambda: len(native.status()["members"]) == 1)


def test_a_node_that_leaves_hands_over_to_the_other_side(start_peer: Callable[[], Peer]) -> None:
    array = numbers(LARGE)
    for setup in JOINS:
        peer = start_peer()
        with contextlib.ExitStack() as stack:
            pair = paired(peer, stack, setup)
            ref = pair.native.put(array)
            assert peer.call("release", node=0, timeout=SOON)["complete"]
            same(pair.python.get(ref, timeout=SOON), array)


@pytest.mark.faults("a node is killed")
def test_native_clients_reconnect_to_the_next_python_node(peer: Peer, tmp_path: Path) -> None:
    """Calls in progress end with NODE_DOWN. Without reconnecting, all later ones do."""
    path = str(tmp_path / "node.sock")
    with testing.node_process("--socket", path) as node:
        native, once = peer.connect(path), peer.connect(path, no_reconnect=True)
        first = native.status()["id"]
        pending = native.call("get", ref="no/1", timeout=SOON, **{"async": True})["pending"]
        # A call that has not reached the node yet waits for the next one.
        eventually(lambda: once.status()["waiting"] > 0)
        kill(node.process)
        gone(lambda: peer.call("take", pending=pending), errors.NodeDown)
    with hoplite.Node(socket=path, capacity="64MiB") as next_node, next_node.client() as client:
        native.put(b"x", name="a/1", timeout=SOON)
        assert bytes(client.get("a/1", timeout=SOON)) == b"x"
        assert native.status()["id"] == next_node.id != first
        gone(lambda: once.get("a/1", timeout=SOON), errors.NodeDown)


@pytest.mark.faults("a node is killed")
def test_python_clients_reconnect_to_the_next_native_node(start_peer: Callable[[], Peer], tmp_path: Path) -> None:
    path = str(tmp_path / "node.sock")
    peer = start_peer()
    peer.node(socket=path, capacity=64 << 20)
    with hoplite.connect(path) as client:
        waiting = Later(client.get, "no/1", timeout=SOON)
        eventually(lambda: client.status()["waiting"] > 0)
        peer.kill()
        gone(waiting.result, errors.NodeDown)
        own = start_peer().node(socket=path, capacity=64 << 20)
        ref = client.put(b"x", timeout=SOON)
        assert own.client().get(ref, timeout=SOON) == b"x"
        assert client.status()["id"] == own.id


TIMED: dict[str, Callable[[NativeClient, float], object]] = {
    "put": lambda hp, timeout: hp.put(b"x", timeout=timeout),
    "large put": lambda hp, timeout: hp.put(numbers(LARGE), timeout=timeout),
    "create": lambda hp, timeout: hp.create(LARGE, timeout=timeout),
    "small create": lambda hp, timeout: hp.create(1, timeout=timeout),
    "reserve": lambda hp, timeout: hp.reserve(timeout=timeout),
    "reserve a name": lambda hp, timeout: hp.reserve(name="no/1", timeout=timeout),
    "slots": lambda hp, timeout: hp.call("slots", count=1, timeout=timeout),
    "lease": lambda hp, timeout: hp.lease("no/1", timeout=timeout),
    "get": lambda hp, timeout: hp.get("no/1", timeout=timeout),
    "get_into": lambda hp, timeout: hp.get_into("no/1", 10, timeout=timeout),
    "reduce": lambda hp, timeout: hp.inputs(hp.reduce(["no/1"], timeout=timeout), timeout=timeout),
    "latest": lambda hp, timeout: hp.latest("no/", timeout=timeout),
    "delete": lambda hp, timeout: hp.delete("no/1", timeout=timeout),
    "locations": lambda hp, timeout: hp.locations("no/1", timeout=timeout),
    "status": lambda hp, timeout: hp.status(timeout=timeout),
}


@pytest.mark.faults("a node is paused")
def test_a_paused_node_extends_no_timeout(start_peer: Callable[[], Peer]) -> None:
    """Native calls end while the Python node is stopped: all at once, in a process each. They succeed afterwards."""
    with testing.node_process() as node:
        clients = {what: start_peer().connect(node.socket) for what in TIMED}
        with frozen(node.process):
            calls = [Later(TIMED[what], client, 5.0) for what, client in clients.items()]
            for what, call in zip(TIMED, calls, strict=True):
                message = gone(call.result, errors.Timeout, errors.NodeDown)
                assert "stopped" in message, f"{what}: {message}"
        for client in clients.values():
            ref = client.put(b"x", timeout=SOON)
            assert client.get(ref, timeout=SOON) == b"x"
            client.delete(ref, timeout=SOON)
        with node.client() as observer:
            eventually(lambda: observer.status()["store"]["used"] == 0)


@pytest.mark.faults("a node is paused")
def test_a_paused_native_node_extends_no_timeout(peer: Peer) -> None:
    native = peer.node(socket=str(peer.file()), capacity=64 << 20)
    with hoplite.connect(native.socket) as client:
        # `frozen` needs the process alone.
        with frozen(peer.process):
            gone(lambda: client.get("no/1", timeout=5), errors.Timeout)
        assert bytes(client.get(client.put(b"x"), timeout=SOON)) == b"x"


def test_a_digest_of_either_side_is_verified_by_the_other(peer: Peer) -> None:
    array = numbers(LARGE)
    with contextlib.ExitStack() as stack:
        pair = paired(peer, stack, "native joins")
        native = peer.connect(pair.native_socket, digest=True)
        client = stack.enter_context(hoplite.connect(pair.python_socket, digest=True))
        same(pair.python.get(native.put(array), timeout=SOON), array)
        same(pair.native.get(str(client.put(array)), timeout=SOON), array)


def test_the_objects_of_a_job_end_with_its_last_client(peer: Peer) -> None:
    """A native and a Python client in one job: its objects exist until 5 s after both have closed."""
    with hoplite.Node(capacity="64MiB") as node, node.client() as observer:
        native = peer.connect(node.socket, job="run-7")
        with hoplite.connect(node.socket, job="run-7") as client:
            refs = [native.put(b"x"), str(client.put(b"y"))]
            native.close()
            assert [bytes(observer.get(ref, timeout=SOON)) for ref in refs] == [b"x", b"y"]
        eventually(lambda: not observer.objects())
        for ref in refs:
            gone(lambda ref=ref: observer.get(ref, timeout=SOON), errors.ObjectDeleted)  # type: ignore[misc]
