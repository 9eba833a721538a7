"""Former leaks, hangs and side effects: each must remain an error of its own call, without affecting anything else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, testing
from programs import frozen, line, started
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from hoplite.node_status import StoreStatus

pytestmark = pytest.mark.timeout(60)

MIB = 1 << 20

# A name that never resolves: RFC 6761 reserves the domain.
NOWHERE = "no-such-host.invalid:1"


@pytest.mark.faults("a node is ended by a signal that makes other processes dump core")
def test_a_node_leaves_no_core_dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (limits[1], limits[1]))
    try:
        with subprocess.Popen(["sleep", "60"]) as other:
            if not is_dumped(other):
                pytest.skip("this host writes no core dumps")
        with testing.node_process("--capacity", "1MiB") as node:
            assert not is_dumped(node.process)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, limits)


def is_dumped(process: subprocess.Popen[Any]) -> bool:
    """Returns whether a process writes a core dump when a signal ends it."""
    process.send_signal(signal.SIGQUIT)
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return os.WCOREDUMP(status)


def store(client: Client) -> StoreStatus:
    """Returns the statistics of a node's store: bytes "used" by objects, and bytes "mapped" from the system."""
    return client.status()["store"]


def mapped_max(capacity: int) -> int:
    """Returns the limit of the bytes that a node may map."""
    return capacity + capacity // 20 + 16 * MIB


def test_arguments_larger_than_a_frame_affect_no_other_call(nodes: list[Node]) -> None:
    """The attached client keeps working, and its view does not change while the memory of other objects is reused."""
    with hoplite.connect(nodes[1].socket) as client:
        far = nodes[0].client()
        # A copy that arrived over the network is in memory that all processes of the host share.
        ref = far.put(numbers(16 * MIB, "uint8", seed=7))
        view = client.get(ref, timeout=SOON)
        with pytest.raises(hoplite.InvalidArgument, match="split"):
            client.delete(["name/" + "y" * 900 + f"/{number}" for number in range(9500)], timeout=SOON)
        far.delete(ref)
        for seed in range(3):
            other = far.put(numbers(16 * MIB, "uint8", seed=seed))
            same(client.get(other, timeout=SOON), numbers(16 * MIB, "uint8", seed=seed))
            far.delete(other)
        same(view, numbers(16 * MIB, "uint8", seed=7))


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_puts_that_time_out_leak_no_memory(how: str) -> None:
    """Each put fails while the node still allocates memory for it."""
    capacity = 128 * MIB
    value = np.zeros(100 * MIB, np.uint8)
    with testing.cluster(1, capacity=capacity) as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
        for _ in range(8):
            # A put into already mapped memory may succeed in time.
            with contextlib.suppress(hoplite.Timeout, hoplite.StoreFull):
                client.delete(client.put(value, timeout=0.02))
            # Wait until that memory has been allocated.
            time.sleep(0.2)
            assert store(client)["mapped"] <= mapped_max(capacity)
        client.delete(client.put(value, timeout=SOON))
        eventually(lambda: store(client)["used"] == 0)
        assert store(client)["mapped"] <= mapped_max(capacity)
        client.close()


def test_processes_that_attach_and_detach_leak_nothing() -> None:
    """Neither descriptors nor memory: a node that runs for weeks serves thousands of processes."""
    with testing.node_process("--capacity", "1GiB") as node, node.client() as client:
        descriptors = Path(f"/proc/{node.process.pid}/fd")
        before = len(list(descriptors.iterdir())), store(client)["mapped"]
        for _ in range(20):
            with node.client() as guest:
                guest.delete(guest.put(np.ones(MIB, np.uint8)))
        eventually(lambda: len(list(descriptors.iterdir())) <= before[0] + 4)
        eventually(lambda: store(client)["mapped"] <= before[1] + 256 * MIB)


FULL_OF_ONE = """
import sys
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1])
hp.delete(hp.put(np.zeros(200 << 20, np.uint8), timeout=30))
print("done", flush=True)
sys.stdin.readline()
"""


def test_processes_share_the_capacity_one_after_another() -> None:
    """Memory of deleted objects is available to other processes while their writer still runs."""
    capacity = 300 * MIB
    with testing.cluster(1, capacity=capacity) as nodes, contextlib.ExitStack() as stack:
        client = nodes[0].client()
        workers = [stack.enter_context(started(FULL_OF_ONE, nodes[0].socket)) for _ in range(4)]
        done = Later(lambda: [line(worker) for worker in workers])
        most = 0
        while not done.done(within=0.01):
            most = max(most, store(client)["mapped"])
        assert done.result() == ["done"] * 4
        assert max(most, store(client)["mapped"]) <= mapped_max(capacity)
        eventually(lambda: store(client)["used"] == 0)


FORK = """
import gc, os, sys, time
import hoplite
from hoplite import Node
path, how = sys.argv[1:]
node = Node(listen="127.0.0.1:0", socket=path)
other = Node(join=[node.address], socket=path + "2")
hp = node.client()
ref = hp.put(b"x" * 100_000)
child = os.fork()
if child == 0:
    if how == "exits":
        sys.exit(0)
    if how == "closes":
        node.close()
    del node, other, hp, ref
    gc.collect()
    os._exit(0)
until = time.monotonic() + 30
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
    if time.monotonic() > until:
        os.kill(child, 9)
        sys.exit("the child hangs")
    time.sleep(0.01)
assert ended[1] == 0, ended
assert os.path.exists(path) and os.path.exists(path + "2")
with hoplite.connect(path, timeout=30) as guest:
    assert guest.get(ref, timeout=30) == b"x" * 100_000
with Node(join=[node.address], socket=path + "3") as third:
    assert third.client().get(ref, timeout=30) == b"x" * 100_000
assert other.client().get(ref, timeout=30) == b"x" * 100_000
other.close(5)
node.close(5)
assert not os.path.exists(path)
"""


@pytest.mark.parametrize("how", ["exits", "drops", "closes"])
def test_a_forked_child_leaves_the_node_to_its_parent(tmp_path: Path, how: str) -> None:
    """It ends soon, whichever way it releases the node, and the parent's cluster keeps working."""
    command = [sys.executable, "-c", FORK, str(tmp_path / "node.sock"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 0, done.stderr


def test_a_node_that_others_can_not_connect_to_does_not_join(tmp_path: Path) -> None:
    """The error names the fix, and the cluster soon removes it."""
    with testing.cluster(1) as nodes, socket.socket() as taken:
        # A bound socket that does not listen refuses every connection.
        taken.bind(("127.0.0.1", 0))
        client, path = nodes[0].client(), tmp_path / "node.sock"
        with pytest.raises(hoplite.JoinError, match="advertise"):
            Node(join=[nodes[0].address], advertise=f"127.0.0.1:{taken.getsockname()[1]}", socket=path)
        assert not path.exists()
        eventually(lambda: len(client.status()["members"]) == 1)
        with Node(join=[nodes[0].address]) as other:
            same(other.client().get(client.put(numbers(100_000)), timeout=SOON), numbers(100_000))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"listen": "0.0.0.0:0", "no_auth": True}, hoplite.InvalidArgument),
        ({"join": [NOWHERE]}, hoplite.JoinError),
    ],
    ids=["no address to advertise", "no node to join"],
)
def test_a_node_that_does_not_start_leaves_no_socket(
    tmp_path: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    path = tmp_path / "node.sock"
    with pytest.raises(error):
        Node(socket=path, **options)
    assert not path.exists()


def test_one_unreachable_address_does_not_prevent_joining(nodes: list[Node]) -> None:
    """Any other address suffices."""
    with Node(join=[NOWHERE, nodes[0].address]) as node:
        ref = nodes[1].client().put(b"x")
        assert node.client().get(ref, timeout=SOON) == b"x"
        testing.wait_for_members([*nodes, node], 4)


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_status_of_a_closed_node_raises_node_down(how: str) -> None:
    with testing.cluster(1) as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket, reconnect=False)
        assert client.status()["id"] == nodes[0].id
        nodes[0].close(SOON)
        for call in (client.status, client.objects):
            with pytest.raises(hoplite.NodeDown):
                call()


@pytest.mark.faults("a node is frozen")
def test_connecting_to_a_frozen_node_times_out() -> None:
    with (
        testing.node_process() as node,
        frozen(node.process),
        pytest.raises(hoplite.ConnectError, match="does not reply"),
    ):
        hoplite.connect(node.socket, timeout=1)


CTRL_C = """
import sys
import hoplite
address, path, call = sys.argv[1:]
node = hoplite.Node(join=[address], socket=path + "2")
ref = node.client().put(b"x" * 100_000)
print("joined", flush=True)
sys.stdin.readline()
print("ready", flush=True)
try:
    try:
        if call == "close":
            node.close()
        else:
            hoplite.connect(path, timeout=2)
    except hoplite.ConnectError:
        print("no answer", flush=True)
    else:
        print("went on", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.faults("a node is frozen")
@pytest.mark.parametrize(("call", "ends"), [("close", {"interrupted"}), ("connect", {"interrupted", "no answer"})])
def test_ctrl_c_ends_a_wait_for_a_frozen_node(call: str, ends: set[str]) -> None:
    """During a handover or an attach: the wait ends soon, at the latest after its own timeout."""
    with testing.node_process() as node, started(CTRL_C, node.address, node.socket, call) as process:
        assert line(process) == "joined"
        with frozen(node.process):
            print("go on", file=process.stdin, flush=True)
            assert line(process) == "ready"
            # It prints ready a moment before it blocks; an interrupt before that ends it too.
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert line(process) in ends


def test_untrusted_text_is_escaped_in_the_log() -> None:
    """Such as names of objects and clusters, which come from other nodes and programs."""
    text = """
import hoplite
from hoplite import log
log.start("debug")
cluster = "one\\n2026-01-01T00:00:00Z ERROR forged\\x1b[2J" + "x" * 5000
name = "two\\u2028forged\\u202e"
with hoplite.Node(cluster=cluster) as first, hoplite.Node(cluster=cluster, join=[first.address]) as second:
    first.client().put(b"x" * 100_000, name=name)
    second.client().get(name, timeout=30)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, timeout=SOON)
    lines = done.stderr.decode().splitlines()
    assert any("two\\u{2028}forged\\u{202e}" in line for line in lines), lines
    for text_line in lines:
        assert re.match(r"\S+Z +(INFO|DEBUG) hoplite", text_line), text_line
        assert text_line.isprintable(), text_line
        assert len(text_line) < 2000, text_line


def test_a_folder_that_others_can_lock_does_not_block_a_node(tmp_path: Path) -> None:
    """Any user may lock a file that it can read, and never release it."""
    tmp_path.chmod(0o755)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with Node(socket=str(tmp_path / "node.sock"), capacity="1MiB") as node, node.client() as hp:
            assert hp.get(hp.put(1)) == 1
    finally:
        os.close(held)
