"""Clients in separate processes: cleanup after one is killed, paused or malformed, and isolation of the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Client, testing
from programs import descriptors, frozen, go, kill, line, started
from support import SOON, Later, bounded, eventually, eventually_empty, numbers, same

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.faults("clients are killed, stopped and broken")

MIB = 1 << 20

HEAD = """
import os, sys, threading, time
import numpy as np
import hoplite
hp = hoplite.connect(sys.argv[1])
def report(*words):
    print(*words, flush=True)
def wait():
    sys.stdin.readline()
"""

PUTS = """
value = np.ones(96 << 20, np.uint8)
report("ready")
wait()
hp.put(value, name="large/1")
"""


@pytest.mark.parametrize("copied", [0, 8, 48])
def test_a_client_killed_during_a_put_leaves_no_object_and_no_memory(copied: int) -> None:
    """Killed when some MiB are in the store, while a reader on another node receives them."""
    with testing.cluster(2, capacity="256MiB") as nodes:
        client, far = (node.client() for node in nodes)
        # A fast put would finish before the kill, so the client writes in pieces and waits in the middle.
        script = f"""
buffer = hp.create(96 << 20, "uint8", name="large/1")
buffer.array[:{copied} << 20] = 1
report("ready")
wait()
"""
        reader = Later(far.get, "large/1", timeout=SOON)
        with started(HEAD + script, nodes[0].socket) as process:
            assert line(process) == "ready"
            assert client.status()["store"]["used"] >= 96 * MIB
            kill(process)
        eventually(lambda: client.status()["store"]["used"] == 0 and far.status()["store"]["used"] == 0)
        eventually_empty(client)
        assert client.wait(["large/1"], timeout=0)[0] == []
        # A get that has started to receive the object fails. A new get waits for the next object of that name.
        with pytest.raises(hoplite.ObjectLost):
            reader.result()
        reader = Later(far.get, "large/1", timeout=SOON)
        client.put(numbers(1000), name="large/1")
        same(reader.result(), numbers(1000))
        client.delete(client.put(np.ones(200 * MIB, np.uint8), timeout=SOON))


def test_a_client_killed_while_it_copies_leaves_no_partial_object() -> None:
    """At any byte: others see the complete object or none, and the memory can be reused."""
    with testing.cluster(1, capacity="128MiB") as nodes:
        client = nodes[0].client()
        for turn in range(6):
            with started(HEAD + PUTS, nodes[0].socket) as process:
                assert line(process) == "ready"
                go(process)
                eventually(lambda: client.status()["store"]["used"] > 0)
                time.sleep(0.005 * turn)
                kill(process)
            # The object of the previous round was lost; the directory reports that for a second.
            with contextlib.suppress(hoplite.Timeout, hoplite.ObjectLost):
                value = client.get("large/1", timeout=0.2)
                assert value.nbytes == 96 * MIB and value.all()  # noqa: PT018 - one fact
                del value
                client.delete("large/1")
            eventually(lambda: client.status()["store"]["used"] == 0)
        client.delete(client.put(np.ones(100 * MIB, np.uint8), timeout=SOON))


def readers(client: Client, ref: object) -> int:
    """Returns the number of readers that pin the object's copy on a node."""
    return sum(int(copy["readers"]) for copy in client.objects() if copy["ref"] == str(ref))


HOLDS = """
views = [hp.get("far/1", timeout=30) for _ in range(3)]
gone = threading.Thread(target=lambda: hp.get("never/1"), daemon=True)
gone.start()
report("held")
wait()
"""


def test_a_killed_client_releases_its_views() -> None:
    """Its triple-pinned cached copy can be evicted again, and its pending request is canceled."""
    with testing.cluster(2, capacity="64MiB") as nodes:
        client, far = (node.client() for node in nodes)
        far.put(numbers(40 * MIB, "uint8"), name="far/1")
        with started(HEAD + HOLDS, nodes[0].socket) as process:
            assert line(process) == "held"
            assert readers(client, "far/1") == 3
            eventually(lambda: client.status()["waiting"] == 1)
            with pytest.raises(hoplite.StoreFull):
                client.put(np.ones(40 * MIB, np.uint8), timeout=0.2)
            kill(process)
        eventually(lambda: readers(client, "far/1") == 0)
        eventually(lambda: client.status()["waiting"] == 0)
        client.put(np.ones(40 * MIB, np.uint8), timeout=SOON)
        # The copy was evicted, not the object.
        assert readers(client, "far/1") == 0
        eventually(lambda: len(far.locations("far/1")) == 1)


def test_a_client_killed_during_a_get_leaves_no_pin() -> None:
    """During the transfer, into memory that the client receives in place."""
    script = """
out = np.empty(200 << 20, np.uint8)
report("ready")
hp.get("far/1", out=out, timeout=60)
"""
    with testing.cluster(2, capacity="512MiB") as nodes:
        client, far = (node.client() for node in nodes)
        with started(HEAD + script, nodes[0].socket) as process:
            assert line(process) == "ready"
            eventually(lambda: client.status()["waiting"] >= 1)
            buffer = far.create(200 * MIB, "uint8", name="far/1")
            buffer[...] = 7
            ref = buffer.seal()
            eventually(lambda: any(copy["ref"] == "far/1" for copy in client.objects()))
            kill(process)
        eventually(lambda: client.status()["waiting"] == 0)
        eventually(lambda: readers(client, ref) == 0)
        far.delete(ref)
        eventually(lambda: client.status()["store"]["used"] == 0)


FINISHES = """
refs = [hp.put(np.full(n, 7, np.uint8)) for n in (10, 100_000)]
buffer = hp.create(100_000, "uint8")
buffer[...] = 7
refs.append(buffer.seal())
refs.append(hp.reduce(refs[1:]))
hp.wait(refs[-1:])  # an unfinished reduce ends with its client
report(*refs)
wait()
"""


def test_finished_objects_of_a_killed_client_remain() -> None:
    """Puts, a sealed buffer and a reduce."""
    with testing.cluster(2) as nodes:
        client, far = (node.client() for node in nodes)
        with started(HEAD + FINISHES, nodes[0].socket) as process:
            refs = line(process).split()
            kill(process)
        eventually(lambda: readers(client, refs[1]) == 0)
        for ref, expected in zip(refs, (7, 7, 7, 14), strict=True):
            assert set(far.get(ref, timeout=SOON)) == {expected}
            assert set(client.get(ref, timeout=SOON)) == {expected}


STOPPED = """
view = hp.get("far/1", timeout=30)
buffer = hp.create(1 << 20, "uint8", name="half/1")
buffer.array[:1 << 19] = 1
thread = threading.Thread(target=lambda: [hp.get(f"late/{n}", timeout=60) for n in range(50)])
thread.start()
report("ready")
thread.join()
buffer[...] = 3
buffer.seal()
report("done", int(view.sum()))
"""


def test_a_paused_client_blocks_no_other(tmp_path: Path) -> None:
    """It has views, a partial object and fifty unread replies; others can put, get, reduce and attach."""
    del tmp_path
    with testing.cluster(2, capacity="256MiB") as nodes:
        client, far = (node.client() for node in nodes)
        far.put(np.ones(MIB, np.uint8), name="far/1")
        with started(HEAD + STOPPED, nodes[0].socket) as process:
            assert line(process) == "ready"
            with frozen(process):
                for number in range(50):
                    far.put(numbers(20_000, seed=number), name=f"late/{number}")
                    same(client.get(f"late/{number}", timeout=SOON), numbers(20_000, seed=number))
                with hoplite.connect(nodes[0].socket) as guest:
                    total = guest.reduce([f"late/{number}" for number in range(50)])
                    expected = sum(numbers(20_000, seed=number) for number in range(50))
                    assert np.array_equal(guest.get(total, timeout=SOON), expected)
                    guest.delete(guest.put(np.ones(150 * MIB, np.uint8), timeout=SOON))
                # It still has a partial object, and its view is still pinned.
                with pytest.raises(hoplite.Timeout):
                    client.get("half/1", timeout=0.1)
                assert readers(client, "far/1") == 1
            assert line(process) == f"done {MIB}"
        assert set(client.get("half/1", timeout=SOON)) == {3}


def test_two_hundred_clients_leak_nothing_on_the_node() -> None:
    """Half of them close, the others disconnect. Each puts and gets an object that needs its own memory."""
    with testing.node_process("--capacity", "1GiB") as node, node.client() as client:
        keep = client.put(numbers(100_000))

        def visit(number: int) -> None:
            guest = node.client()
            same(guest.get(keep), numbers(100_000))
            if number % 4 == 0:
                guest.delete(guest.put(np.ones(100_000, np.uint8)))
            view = guest.get(keep)
            if number % 2:
                guest.close()
            del view

        visit(0)
        eventually(lambda: readers(client, keep) == 0)
        before = descriptors(node.process.pid), client.status()["store"]["mapped"]
        for number in range(200):
            visit(number)
        eventually(lambda: descriptors(node.process.pid) <= before[0])
        eventually(lambda: client.status()["store"]["mapped"] <= before[1] + 128 * MIB)
        eventually(lambda: readers(client, keep) == 0)
        assert client.status()["waiting"] == 0


def message(body: bytes) -> bytes:
    """Returns a frame between a node and a process on its host."""
    return struct.pack("<I", len(body)) + body


# The first byte of a reply is its kind: 0 welcomes the client, 1 rejects it with a reason.
REFUSES = b"\x01\x08go away!"


@contextlib.contextmanager
def fake_node(path: Path, answer: bytes | None) -> Iterator[None]:
    """Listens on a socket, sends a reply to every client and disconnects; with None it never sends anything."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                with caller, contextlib.suppress(OSError):
                    if answer is None:
                        over.wait(SOON)
                        return
                    caller.recv(1024)
                    caller.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            over.set()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(SOON)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (message(REFUSES), "go away!"),
        (message(REFUSES)[:6], "closed the connection"),
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol.*limit"),
        (b"\xff" * 64, "protocol.*limit"),
        (message(b"\xee" * 40), "protocol"),
        (message(b""), "protocol"),
        (bytes(64), "protocol"),
        (None, "does not reply"),
    ],
    ids=["refused", "half a frame", "nothing", "http", "a length of 4 GiB", "noise", "no body", "zeros", "silence"],
)
def test_connecting_to_another_server_or_release_fails(tmp_path: Path, answer: bytes | None, problem: str) -> None:
    """The error names the reason in time, and no descriptor leaks."""
    path = tmp_path / "fake.sock"
    before = descriptors(os.getpid())
    with fake_node(path, answer):
        call = Later(hoplite.connect, str(path), timeout=1)
        with pytest.raises(hoplite.ConnectError, match=problem) as raised:
            call.result()
        assert str(path) in str(raised.value)
    eventually(lambda: descriptors(os.getpid()) <= before)


# The first message of a client: a greeting with its version.
def hello(version: int) -> bytes:
    return message(b"\x00" + bytes([version]))


VERSION = 21
HELLO = hello(VERSION)

STRANGERS: dict[str, bytes] = {
    "another version": hello(99),
    "an older version": hello(1),
    "no greeting": message(b"\x05\x07"),
    "an unknown message": message(b"\x7f"),
    "greets twice": HELLO + HELLO,
    "noise after the greeting": HELLO + message(b"\xee" * 1000),
    "half a frame after the greeting": HELLO + struct.pack("<I", 1000) + b"x",
    "a length of 4 GiB after the greeting": HELLO + b"\xff" * 16,
    "a fork hold without a fork": HELLO + message(b"\x08"),
    "maps an unknown extent": HELLO + message(b"\x05\xff\xff\x7f") + message(b"\x06\x01"),
    "cancels an unknown request": HELLO + message(b"\x02\x01") + message(b"\x07\x01"),
}


@pytest.mark.parametrize("words", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_node_survives_malformed_messages_of_a_client(words: bytes) -> None:
    """At once and byte by byte, with unrequested descriptors, and with a disconnect in the middle."""
    with testing.cluster(1) as nodes:
        client = hoplite.connect(nodes[0].socket)
        ref = client.put(numbers(100_000))
        before = descriptors(os.getpid())

        def whole(caller: socket.socket) -> None:
            caller.sendall(words)

        def bitwise(caller: socket.socket) -> None:
            for number in range(min(len(words), 40)):
                caller.sendall(words[number : number + 1])

        def with_descriptors(caller: socket.socket) -> None:
            socket.send_fds(caller, [words], [0, 1, 2] * 20)

        ways: list[Callable[[socket.socket], None]] = [whole, bitwise, with_descriptors]
        for way in ways:
            # Since Linux 6.16 the kernel rejects descriptors on behalf of the node.
            passing = contextlib.suppress(BrokenPipeError, ConnectionResetError, PermissionError)
            with socket.socket(socket.AF_UNIX) as caller, passing:
                caller.connect(nodes[0].socket)
                caller.settimeout(SOON)
                way(caller)
                caller.shutdown(socket.SHUT_WR)
                while caller.recv(4096):
                    pass
        same(client.get(ref, timeout=SOON), numbers(100_000))
        with hoplite.connect(nodes[0].socket) as other:
            other.delete(other.put(numbers(100_000)))
        eventually(lambda: descriptors(os.getpid()) <= before)


def test_a_client_of_another_release_is_rejected_with_the_reason() -> None:
    with testing.cluster(1) as nodes, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(nodes[0].socket)
        caller.settimeout(SOON)
        caller.sendall(hello(99))
        answer = b""
        while more := caller.recv(4096):
            answer += more
        # If this fails with another number, update VERSION above.
        assert b"version %d " % VERSION in answer and b"uses 99" in answer  # noqa: PT018 - one sentence
        assert b"install the same release" in answer


GETS: dict[str, Callable[[hoplite.Client], object]] = {
    "get": lambda client: client.get("never/1", timeout=0.1),
    "into": lambda client: client.get("never/1", out=bytearray(1), timeout=0.1),
    "several": lambda client: client.get(["never/1", "never/2"], timeout=0.1),
    "in a loop": lambda client: asyncio.run(client.get_async("never/1", timeout=0.1)),
    "into in a loop": lambda client: asyncio.run(client.get_async("never/1", out=bytearray(1), timeout=0.1)),
    "status": lambda client: client.status(),
    "status in a loop": lambda client: asyncio.run(client.status_async()),
    "reserve": lambda client: client.reserve(),
    "objects": lambda client: client.objects(timeout=0.1),
    "all objects": lambda client: client.directory(timeout=0.1),
    "several in a loop": lambda client: asyncio.run(client.get_async(["never/1", "never/2"], timeout=0.1)),
}


def test_a_paused_node_does_not_block_its_clients_forever() -> None:
    with testing.node_process() as node, node.client() as client:
        os.kill(node.process.pid, signal.SIGSTOP)
        try:
            waiting = [Later(get, client) for get in GETS.values()]
            for later in waiting:
                with pytest.raises(hoplite.NodeDown, match=r"does not (answer|reply)"):
                    later.result(SOON)
        finally:
            os.kill(node.process.pid, signal.SIGCONT)
        assert client.get(client.put(b"x")) == b"x"


TIMED: dict[str, Callable[[hoplite.Client], object]] = {
    "get": lambda client: client.get("never/1", timeout=5),
    "several": lambda client: client.get(["never/1", "never/2"], timeout=5),
    "into": lambda client: client.get("never/1", out=bytearray(1), timeout=5),
    "in a loop": lambda client: asyncio.run(client.get_async("never/1", timeout=5)),
    "part": lambda client: client.get("never/1", part=slice(1), timeout=5),
    "put": lambda client: client.put(b"x", timeout=5),
    "create": lambda client: client.create(MIB, timeout=5),
    "reduce": lambda client: client.reduce(["never/1"], timeout=5),
    "wait": lambda client: client.wait(["never/1"], timeout=5),
    "latest": lambda client: client.latest("never/", timeout=5),
    "lease": lambda client: client.lease("never/1", timeout=5),
    "delete": lambda client: client.delete("never/1", timeout=5),
    "locations": lambda client: client.locations("never/1", timeout=5),
    "objects": lambda client: client.objects(timeout=5),
    "all objects": lambda client: client.directory(timeout=5),
}


@bounded(9)
def test_a_paused_node_extends_no_timeout(within: float) -> None:
    """Timeouts once took twice as long. A busy machine needs a part of the margin."""
    with testing.node_process() as node, node.client() as client, frozen(node.process):
        begun = time.monotonic()
        waiting = [Later(call, client) for call in TIMED.values()]
        for later in waiting:
            with pytest.raises(hoplite.Timeout, match=r"5 s.*: it does not reply"):
                later.result(SOON)
        assert 5 <= time.monotonic() - begun < within


def test_a_seal_at_a_paused_node_ends_at_its_timeout() -> None:
    """The caller has no object then: the node deletes it once it continues."""
    with testing.node_process() as node, node.client() as client:
        named, awaited, brief = [client.create(MIB, "uint8", name=f"sealed/{number}") for number in range(3)]
        named[...] = 7
        with frozen(node.process):
            late = [
                Later(named.seal, timeout=5),
                Later(lambda: asyncio.run(awaited.seal_async(timeout=5))),
                Later(brief.seal, timeout=0.1),
            ]
            for number, error in enumerate((hoplite.Timeout, hoplite.Timeout, hoplite.NodeDown)):
                with pytest.raises(error, match=rf"(?s)sealed/{number}.*is stopped|is stopped.*sealed/{number}"):
                    late[number].result(SOON)
            for buffer in (named, awaited, brief):
                with pytest.raises(hoplite.InvalidArgument, match="already sealed"):
                    buffer.seal()
        eventually(lambda: not client.objects() and client.status()["store"]["used"] == 0)
        with client.create(MIB, "uint8", name="sealed/0") as buffer:
            buffer[...] = 9
        same(client.get("sealed/0", timeout=SOON), np.full(MIB, 9, "uint8"))


def test_a_paused_node_blocks_no_loop_and_no_close() -> None:
    """The requests exceed the buffer of the socket. The node processes all of them once it continues."""
    value, count = b"x" * 30_000, 200

    async def main(client: hoplite.Client, process: subprocess.Popen[str]) -> None:
        with frozen(process):
            puts = [asyncio.ensure_future(client.put_async(value, name=f"put/{n}")) for n in range(count)]
            # After this step of the loop, every put has sent its request.
            await asyncio.sleep(0)
            assert not any(put.done() for put in puts)
        assert len(await asyncio.gather(*puts)) == count

    with testing.node_process() as node, node.client() as client:
        asyncio.run(main(client, node.process))
        for number in range(count):
            assert client.get(f"put/{number}", timeout=SOON) == value
        with frozen(node.process):
            puts = [Later(client.put, value) for _ in range(count)]
            eventually(lambda: threading.active_count() > count)
            client.close()
            for put in puts:
                with pytest.raises(hoplite.ClientClosed, match="this client is closed"):
                    put.result()
