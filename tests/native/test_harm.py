"""Native programs that die, fork, leak or run out of something: the node and its other clients are unaffected."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from native.peer import Peer
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.native

CAPACITY = 64 << 20
LARGE_BYTES = 4 << 20
LARGE = LARGE_BYTES // 4


def open_files() -> int:
    """Descriptors of this process, the node's among them, without the memory files of its store."""
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(entry.readlink()))
    return sum("memfd:" not in link for link in links)


class Host:
    """A node in this process with one client, and the peers that misbehave beside it."""

    def __init__(self, node: hoplite.Node, client: hoplite.Client, start: Callable[[], Peer]) -> None:
        self.node = node
        self.client = client
        self.start = start

    @property
    def used(self) -> int:
        """Bytes that the store uses."""
        return self.client.status()["store"]["used"]


@pytest.fixture
def host(program: Path, tmp_path: Path) -> Iterator[Host]:
    """A host that must be as it was after the test: others are served, nothing is held, no process is left."""
    peers: list[Peer] = []
    with hoplite.Node(capacity=CAPACITY) as node, node.client() as client:
        # Threads and files that a node starts when it first needs them.
        client.delete(client.put(numbers(LARGE)))
        before = open_files()
        with contextlib.ExitStack() as stack:

            def start() -> Peer:
                peer = stack.enter_context(Peer(program, tmp_path))
                peers.append(peer)
                return peer

            yield Host(node, client, start)
        same(client.get(client.put(numbers(LARGE), name="after/1"), timeout=SOON), numbers(LARGE))
        client.delete("after/1")
        client.delete([row["ref"] for row in client.objects()])

        def is_as_before() -> bool:
            status = client.status()
            return not (status["store"]["used"] or status["objects"] or status["owned"] or status["waiting"])

        eventually(is_as_before)
        eventually(lambda: open_files() <= before)
        for peer in peers:
            eventually(lambda peer=peer: peer.processes() == [])  # type: ignore[misc]


def test_killed_while_it_creates_a_buffer(host: Host) -> None:
    """Its memory is freed; those who wait for what it reserved, for its slot or for its buffer get an error."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    buffers = [native.create(LARGE, "float32"), native.create(LARGE, "float32", name="made/1"), native.create(3)]
    buffers[0].fill(numbers(LARGE))
    reserved = [native.reserve(), native.reserve(name="reserved/1"), *native.slots(1)]
    waiting = [Later(host.client.get, ref, timeout=SOON) for ref in (*reserved, buffers[0].ref)]
    assert host.used >= 2 * LARGE_BYTES
    peer.kill()
    for later in waiting:
        with pytest.raises(hoplite.ObjectLost):
            later.result()
    eventually(lambda: host.used == 0)
    host.client.put(b"another", name="made/1")


def test_killed_while_it_holds_views(host: Host) -> None:
    """A deleted object uses memory until the last program that holds it has ended."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    refs = [host.client.put(numbers(LARGE)) for _ in range(3)]
    views = [native.hold(ref, timeout=SOON) for ref in refs]
    host.client.delete(refs)
    assert host.used >= 3 * LARGE_BYTES
    peer.call("release", view=views[0])
    eventually(lambda: 2 * LARGE_BYTES <= host.used < 3 * LARGE_BYTES)
    peer.kill()
    eventually(lambda: host.used == 0)


def test_killed_with_calls_in_progress(host: Host) -> None:
    """Pending gets, reads into memory, waits and reduces end at the node too."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    for number in range(50):
        native.call("get", ref=f"no/{number}", **{"async": True})
        native.call("get_into", ref=f"no/{number}", nbytes=10, **{"async": True})
        native.call("wait", refs=[f"no/{number}", "no/100"], **{"async": True})
    native.reduce(["no/1", "no/2"], name="sum/1")
    eventually(lambda: host.client.status()["waiting"] >= 50)
    peer.kill()
    eventually(lambda: host.client.status()["waiting"] == 0)
    # A reduce ends with its client, and readers of its result learn why.
    with pytest.raises(hoplite.ObjectLost, match="started its reduce and ended or detached"):
        host.client.get("sum/1", timeout=SOON)


@pytest.mark.parametrize("mode", ["exit", "exec", "calls", "closes", "views"])
def test_a_program_that_forks(host: Host, mode: str) -> None:
    """The child ends, executes another program, calls, closes what it inherited, or reads views; the parent goes on."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    array = numbers(LARGE)
    ref = str(host.client.put(array))
    view = native.hold(ref, timeout=SOON)
    buffer = native.create(LARGE, "float32", name="made/1")
    pending = native.call("get", ref="late/1", timeout=SOON, **{"async": True})["pending"]
    total = int(array.view("uint8").sum())
    host.client.delete(ref)
    for _ in range(2):
        assert peer.call("fork", mode=mode, client=native.slot, sum=total)["exit"] == 0
    assert peer.call("sum", view=view)["sum"] == total
    buffer.fill(array)
    assert buffer.seal() == "made/1"
    host.client.put(b"late", name="late/1")
    assert peer.call("take", pending=pending)["nbytes"] == 4
    same(host.client.get("made/1", timeout=SOON), array)
    assert native.get(native.put(b"x", name="x/1"), timeout=SOON) == b"x"
    peer.call("release", view=view)


@pytest.mark.parametrize("mode", ["exit", "calls", "closes"])
def test_a_program_that_forks_while_its_threads_call(host: Host, mode: str) -> None:
    """At some forks, another thread is inside the library: the child must not wait for what that thread holds."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    view = native.hold(str(host.client.put(numbers(LARGE))), timeout=SOON)
    assert peer.call("fork", mode=mode, client=native.slot, busy=True, times=20)["exit"] == 0
    peer.call("release", view=view)
    assert native.call("get", ref=native.put(b"x"), timeout=SOON)["nbytes"] == 1


def test_a_node_whose_program_forks(start_peer: Callable[[], Peer]) -> None:
    """The child attaches by the socket of its parent's node. Closing its copies does not close the parent's."""
    peer = start_peer()
    node = peer.node(socket=str(peer.file()), capacity=CAPACITY)
    native = node.client()
    array = numbers(LARGE)
    ref = native.put(array)
    with hoplite.connect(node.socket) as client:

        def still_works() -> None:
            same(client.get(ref, timeout=SOON), array)
            assert native.get(client.put(b"x"), timeout=SOON) == b"x"

        for mode in ("exit", "exec", "calls", "closes"):
            assert peer.call("fork", mode=mode)["exit"] == 0, mode
            still_works()
        # Another file in the place of the socket: the node does not replace it.
        peer.file(b"").replace(node.socket)
        assert peer.call("fork", mode="forked")["exit"] == 0
        still_works()
        assert client.status()["id"] == node.id


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_program_that_leaks_every_handle(host: Host, end: str) -> None:
    peer = host.start()
    native = peer.connect(host.node.socket)
    array = numbers(LARGE)
    ref = str(host.client.put(array))
    reduced = native.reduce([str(host.client.put(array, name=f"in/{number}")) for number in range(2)], name="sum/1")
    peer.call(
        "leak", client=native.slot, count=20, ref=ref, reduced=reduced, missing="no/1", timeout=SOON,
        address=host.node.socket,
    )  # fmt: skip
    assert host.client.status()["waiting"] > 0
    if end == "exit":
        peer.call("exit")
        assert peer.process.wait(SOON) == 0
    else:
        peer.kill()


def test_a_program_whose_files_must_be_small(host: Host) -> None:
    """RLIMIT_FSIZE with the default action of SIGXFSZ, which ends a program: attached, the store is not its file."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    array = numbers(LARGE)
    data = peer.file(array.tobytes())
    peer.call("limit", which="fsize", value=4096)
    ref = native.call("put", data=data, dtype="float32", shape=array.shape)["ref"]
    same(host.client.get(ref, timeout=SOON), array)
    assert native.call("get", ref=ref, timeout=SOON)["nbytes"] == LARGE_BYTES


def test_a_node_whose_files_must_be_small(start_peer: Callable[[], Peer]) -> None:
    """A put that the limit forbids is an error, and no signal. What fits still works, also for others."""
    peer = start_peer()
    node = peer.node(socket=str(peer.file()), capacity=CAPACITY)
    native = node.client()
    data = peer.file(numbers(LARGE).tobytes())
    before = peer.call("limit", which="fsize", value=4096)["before"]
    with pytest.raises(hoplite.HopliteError) as raised:
        native.call("put", data=data, dtype="float32", shape=(LARGE,), timeout=1.0)
    assert str(raised.value)
    assert native.get(native.put(b"x"), timeout=SOON) == b"x"
    with hoplite.connect(node.socket) as client:
        with pytest.raises(hoplite.HopliteError):
            client.put(numbers(LARGE), timeout=1.0)
        peer.call("limit", which="fsize", value=before)
        ref = client.put(numbers(LARGE), timeout=SOON)
        same(native.get(ref, timeout=SOON), numbers(LARGE))


def test_a_program_without_descriptors(host: Host) -> None:
    """What needs one is an error that names the limit; what is open goes on, and all works once there are more."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    ref = str(host.client.put(numbers(LARGE)))
    open_now = len(os.listdir(f"/proc/{peer.pid}/fd"))  # noqa: PTH208 - names alone
    before = peer.call("limit", which="nofile", value=open_now)["before"]
    with pytest.raises(hoplite.HopliteError, match=r"descriptor|open files"):
        peer.connect(host.node.socket, timeout=1.0)
    with pytest.raises(hoplite.HopliteError, match=r"descriptor|open files"):
        peer.node(socket=str(peer.file()))
    small = native.call("put", text="x", timeout=SOON)["ref"]
    assert native.call("get", ref=small, timeout=SOON)["nbytes"] == 1
    # The memory of the store is sent as a descriptor.
    with contextlib.suppress(hoplite.HopliteError):
        native.call("get", ref=ref, timeout=1.0)
    peer.call("limit", which="nofile", value=before)
    other = peer.connect(host.node.socket)
    assert other.call("get", ref=ref, timeout=SOON)["nbytes"] == LARGE_BYTES
    assert native.call("get", ref=ref, timeout=SOON)["nbytes"] == LARGE_BYTES


@pytest.mark.parametrize("embedded", [False, True])
def test_a_program_that_handles_sigterm(host: Host, embedded: bool) -> None:
    """The handler runs on the program's own thread, not on one of the library. The interrupted call goes on."""
    peer = host.start()
    if embedded:
        node = peer.node(socket=str(peer.file()), capacity=CAPACITY)
        native, address = node.client(), node.socket
    else:
        native, address = peer.connect(host.node.socket), host.node.socket
    peer.call("handler")
    with hoplite.connect(address) as client:
        for number in range(3):
            peer.send("get", client=native.slot, ref=f"late/{number}", timeout=SOON)
            eventually(lambda: client.status()["waiting"] > 0)
            os.kill(peer.pid, signal.SIGTERM)
            assert peer.event() == "main"
            client.put(b"late", name=f"late/{number}")
            assert peer.reply()["nbytes"] == 4
        client.delete([f"late/{number}" for number in range(3)])


def test_the_threads_of_the_library_receive_no_signals(host: Host) -> None:
    """All of them block all signals that can be blocked, in a client, a node and the asynchronous calls."""
    peer = host.start()
    node = peer.node(socket=str(peer.file()), capacity=CAPACITY)
    for native in (node.client(), peer.connect(host.node.socket)):
        pending = native.call("put", data=peer.file(numbers(LARGE).tobytes()), **{"async": True})["pending"]
        peer.call("take", pending=pending)
    tasks = [task for task in Path(f"/proc/{peer.pid}/task").iterdir() if task.name != str(peer.pid)]
    assert tasks
    for task in tasks:
        status = dict(line.split(":\t") for line in (task / "status").read_text().splitlines())
        blocked = int(status["SigBlk"], 16)
        missing = [
            number.name
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGXFSZ, signal.SIGUSR1)
            if not blocked >> (number - 1) & 1
        ]
        assert not missing, f"{status['Name']} does not block {missing}"


def test_a_client_that_stops_does_not_stop_others(host: Host) -> None:
    """A paused program holds a view and has a get pending; the node serves others meanwhile."""
    peer = host.start()
    native = peer.connect(host.node.socket)
    ref = str(host.client.put(numbers(LARGE)))
    view = native.hold(ref, timeout=SOON)
    pending = native.call("get", ref="late/1", timeout=SOON, **{"async": True})["pending"]
    os.kill(peer.pid, signal.SIGSTOP)
    try:
        host.client.put(b"late", name="late/1")
        for _ in range(10):
            host.client.delete(host.client.put(numbers(LARGE), timeout=SOON))
    finally:
        os.kill(peer.pid, signal.SIGCONT)
    assert peer.call("take", pending=pending)["nbytes"] == 4
    peer.call("release", view=view)
