"""Bad input and bad luck: each gives a named error or goes on; nothing hangs and no node dies."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite import Client, Node, testing
from support import Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable

TIMED: dict[str, Callable[[Client, Any], object]] = {
    "put": lambda client, timeout: client.put(b"x", timeout=timeout),
    "get": lambda client, timeout: client.get("a/1", timeout=timeout),
    "reduce": lambda client, timeout: client.reduce(["a/1"], timeout=timeout),
    "inputs": lambda client, timeout: client.inputs("a/1", timeout=timeout),
    "delete": lambda client, timeout: client.delete("a/1", timeout=timeout),
    "latest": lambda client, timeout: client.latest("a/", timeout=timeout),
}


@pytest.mark.parametrize("call", TIMED.values(), ids=TIMED.keys())
@pytest.mark.parametrize("timeout", [-1, -0.001, -math.inf, math.nan, "1", True], ids=repr)
def test_a_timeout_that_is_none(clients: list[Client], call: Callable[[Client, Any], object], timeout: object) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="timeout"):
        call(clients[0], timeout)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e9, 30, None])
def test_a_timeout_of_any_length(clients: list[Client], timeout: float | None) -> None:
    ref = clients[0].put(b"x", timeout=timeout)
    assert clients[1].get(ref, timeout=timeout) == b"x"


def test_an_unknown_op(clients: list[Client]) -> None:
    with pytest.raises(hoplite.UnknownOp, match=r"avg.*mean"):
        clients[0].reduce(["a/1"], "avg")


@pytest.mark.parametrize("count", [0, -1, 3, 1 << 70])
def test_a_count_below_1_or_above_n(clients: list[Client], count: int) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="count"):
        clients[0].reduce(["a/1", "a/2"], count=count)


@pytest.mark.parametrize("inputs", [[], "a/1", ["a/1", "a/1"], [""], [3], None], ids=repr)
def test_inputs_that_are_none(clients: list[Client], inputs: Any) -> None:  # noqa: ANN401
    with pytest.raises(hoplite.InvalidArgument):
        clients[0].reduce(inputs)


@pytest.mark.parametrize("ref", ["", None, 7, b"a/1", "@", "@12.3", "@" + "z" * 16 + ".0", "a\0b"], ids=repr)
def test_a_ref_that_is_none(clients: list[Client], ref: Any) -> None:  # noqa: ANN401
    with pytest.raises(hoplite.InvalidArgument):
        clients[0].get(ref, timeout=1)
    with pytest.raises(hoplite.InvalidArgument):
        clients[0].delete([ref])


@pytest.mark.parametrize(
    ("prefix", "after"), [("policy", -1), ("", -1), ("policy/", -2), ("policy/", 1 << 70), ("policy/", 1.5)]
)
def test_a_prefix_or_number_that_is_none(clients: list[Client], prefix: str, after: Any) -> None:  # noqa: ANN401
    with pytest.raises(hoplite.InvalidArgument):
        clients[0].latest(prefix, after=after, timeout=1)


@pytest.mark.parametrize("capacity", ["", "8 apples", "GiB", "-1", 0, -5, 1.5, True, 1 << 70, "9999999TiB"], ids=repr)
def test_a_capacity_that_is_none(capacity: Any) -> None:  # noqa: ANN401
    with pytest.raises(hoplite.InvalidArgument, match="capacity"):
        Node(capacity=capacity)


@pytest.mark.parametrize("listen", ["", "localhost", "127.0.0.1:x", "127.0.0.1:70000", "1.2.3.4.5:0"])
def test_an_address_that_is_none(listen: str) -> None:
    with pytest.raises(hoplite.HopliteError):
        Node(listen=listen)


# What a stranger may send: nothing, another protocol, a header cut short, headers that lie.
def frame(kind: int, length: int, *, magic: bytes = b"HPLT", version: int = 1, checksum: int = 0) -> bytes:
    """A header as nodes send it: magic, version, kind, length of the body, its checksum, transfer, offset."""
    return struct.pack("<4sBBHIIQQ", magic, version, kind, 0, length, checksum, 0, 0)


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "one byte": b"H",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(4096),
    "noise": bytes((n * 7919) % 251 for n in range(100_000)),
    "half a header": frame(1, 0)[:15],
    "a header with no body": frame(1, 100),
    "a body cut short": frame(1, 100) + bytes(10),
    "a wrong checksum": frame(1, 4, checksum=1) + bytes(4),
    "an oversized greeting": frame(1, 0xFFFF_FFFF),
    "an oversized message": frame(2, 0xFFFF_FFFF),
    "an oversized block": frame(4, 0xFFFF_FFFF),
    "a message before any greeting": frame(2, 4) + bytes(4),
    "a block before any greeting": frame(4, 65_536) + bytes(65_536),
    "an unknown kind": frame(200, 0),
    "another version": frame(1, 0, version=99),
    "oversized lengths all over": b"\xff" * 64,
}


def send(address: str | tuple[str, int], data: bytes) -> None:
    """Connects, sends, and goes away, whatever the other side does."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as stranger:
        stranger.settimeout(5)
        stranger.connect(address)
        try:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except OSError:
            # Closed on us, as it may.
            pass


def still_works(clients: list[Client]) -> None:
    """Asserts that all nodes are there and move objects."""
    for client in clients:
        assert len(client.status()["members"]) == len(clients)
    for size in (10, 100_000):
        refs = [client.put(numbers(size)) for client in clients]
        total = clients[0].reduce(refs)
        for client in clients:
            same(client.get(total, timeout=30), numbers(size) * len(clients))


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_port(nodes: list[Node], clients: list[Client], data: bytes) -> None:
    host, _, port = nodes[0].address.rpartition(":")
    for _ in range(3):
        send((host, int(port)), data)
    still_works(clients)


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_socket(nodes: list[Node], clients: list[Client], data: bytes) -> None:
    for _ in range(3):
        send(nodes[0].socket, data)
    still_works(clients)
    with hoplite.connect(nodes[0].socket) as client:
        assert client.get(client.put(b"x"), timeout=30) == b"x"


def test_connections_that_say_nothing(nodes: list[Node], clients: list[Client]) -> None:
    """Held open while the node works, on the port and on the socket, then closed."""
    host, _, port = nodes[0].address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(20)]
    for _ in range(20):
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(nodes[0].socket)
        silent.append(unix)
    try:
        still_works(clients)
    finally:
        for one in silent:
            one.close()
    still_works(clients)


def test_datagrams_on_the_port(nodes: list[Node], clients: list[Client]) -> None:
    host, _, port = nodes[0].address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in GARBAGE.values():
            stranger.sendto(data[:1400], (host, int(port)))
    still_works(clients)


CTRL_C = """
import sys, threading, os, signal, time
import numpy as np
import hoplite
from hoplite.testing import cluster
with cluster(2, capacity="32MiB") as nodes:
    if sys.argv[1] == "attached":
        hp = hoplite.connect(nodes[0].socket)
    else:
        hp = nodes[0].client()
    full = hp.put(np.zeros(20 << 20, np.uint8))
    never = hp.reduce(["never/1"])
    print("ready", flush=True)
    try:
        {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""

BLOCKING = {
    "get": 'hp.get("never/2")',
    "get with timeout": 'hp.get("never/2", timeout=1000)',
    "latest": 'hp.latest("never/", after=5)',
    "inputs": "never.inputs()",
    "put": "hp.put(np.zeros(20 << 20, np.uint8))",
}


@pytest.mark.parametrize("call", BLOCKING.values(), ids=BLOCKING.keys())
@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_ctrl_c_ends_a_blocking_call(call: str, how: str) -> None:
    script = CTRL_C.replace("{call}", call)
    with subprocess.Popen([sys.executable, "-c", script, how], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            # It says ready a moment before it blocks.
            time.sleep(0.3)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - start < 5
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_closing_a_node_ends_all_who_wait_on_it(how: str) -> None:
    with testing.cluster(2, capacity="32MiB") as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
        client.put(numbers(20 << 20, "uint8"))
        total = client.reduce(["never/1"])
        waiting: dict[str, Later[object]] = {
            "get": Later(client.get, "never/2"),
            "sum": Later(client.get, total),
            "latest": Later(client.latest, "never/", after=5),
            "inputs": Later(total.inputs),
            "put": Later(client.put, numbers(20 << 20, "uint8")),
        }
        time.sleep(0.3)
        assert not any(call.done() for call in waiting.values())
        nodes[0].close(5)
        for call in waiting.values():
            with pytest.raises(hoplite.NodeDown):
                call.result(10)


def test_others_go_on_when_a_node_closes(clients: list[Client], nodes: list[Node]) -> None:
    """They wait at their own nodes for what may still come."""
    waiting = [Later(client.get, "late/1", timeout=30) for client in clients[1:]]
    time.sleep(0.2)
    nodes[0].close(10)
    clients[1].put(numbers(100_000), name="late/1")
    for get in waiting:
        same(get.result(), numbers(100_000))


def descriptors() -> list[str]:
    """What this process has open, less what the listing itself opens."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(str(entry.readlink()))
    return names


def threads() -> int:
    """How many threads this process has, those of the extension too."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_closed_cluster_leaves_nothing_behind() -> None:
    """No descriptor, no thread, no memory segment, no socket file, after use and after bad luck."""

    def use() -> None:
        with testing.cluster(2) as nodes:
            clients = [node.client() for node in nodes]
            total = clients[0].reduce([client.put(numbers(100_000)) for client in clients])
            clients[1].get(total, timeout=30)
            send(nodes[0].socket, b"\xff" * 64)
            with pytest.raises(hoplite.GetTimeout):
                clients[0].get("never/1", timeout=0.01)

    use()
    before = len(descriptors()), threads()
    for _ in range(3):
        use()
    eventually(lambda: len(descriptors()) <= before[0])
    eventually(lambda: threads() <= before[1])
    assert not [segment for segment in Path("/dev/shm").iterdir() if "hoplite" in segment.name]
