"""Invalid input and malformed data: each gives a named error or is ignored; nothing hangs and no node fails."""

from __future__ import annotations

import contextlib
import math
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, testing
from support import SOON, Later, eventually, fold, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def nodes(shared_nodes: list[Node]) -> list[Node]:
    """Three nodes that all tests of this module share."""
    return shared_nodes


TIMED: dict[str, Callable[[Client, Any], object]] = {
    "put": lambda client, timeout: client.put(b"x", timeout=timeout),
    "get": lambda client, timeout: client.get("a/1", timeout=timeout),
    "reduce": lambda client, timeout: client.reduce(["a/1"], timeout=timeout),
    "inputs": lambda client, timeout: hoplite.Ref("a/1", client).inputs(timeout=timeout),
    "delete": lambda client, timeout: client.delete("a/1", timeout=timeout),
    "latest": lambda client, timeout: client.latest("a/", timeout=timeout),
    "wait": lambda client, timeout: client.wait(["a/1"], timeout=timeout),
    "create": lambda client, timeout: client.create(10, timeout=timeout),
    "locations": lambda client, timeout: client.locations("a/1", timeout=timeout),
    "several": lambda client, timeout: client.get(["a/1"], timeout=timeout),
    "out": lambda client, timeout: client.get("a/1", out=np.zeros(1), timeout=timeout),
}


@pytest.mark.parametrize("call", TIMED.values(), ids=TIMED.keys())
def test_an_invalid_timeout_is_rejected(clients: list[Client], call: Callable[[Client, Any], object]) -> None:
    for timeout in (-1, -0.001, -math.inf, math.nan, "1", b"1", [1], object(), 1j, True):
        with pytest.raises(hoplite.InvalidArgument, match="timeout"):
            call(clients[0], timeout)


def test_a_timeout_of_any_length_is_accepted(clients: list[Client]) -> None:
    for timeout in (math.inf, 1e300, 1e9, 30, None):
        ref = clients[0].put(b"x", timeout=timeout)
        assert clients[1].get(ref, timeout=timeout) == b"x"


def test_an_unknown_op_is_rejected(clients: list[Client]) -> None:
    with pytest.raises(hoplite.UnknownOp, match=r"avg.*mean"):
        clients[0].reduce(["a/1"], "avg")


def test_invalid_inputs_are_rejected(clients: list[Client]) -> None:
    many: list[Any] = [[], "a/1", ["a/1", "a/1"], [""], [3], None]
    for inputs in many:
        with pytest.raises(hoplite.InvalidArgument):
            clients[0].reduce(inputs)


def test_an_invalid_ref_is_rejected(clients: list[Client]) -> None:
    refs: list[Any] = ["", None, 7, b"a/1", "@", "@12.3", "@" + "z" * 16 + ".0", "a\0b"]
    for ref in refs:
        with pytest.raises(hoplite.InvalidArgument):
            clients[0].get(ref, timeout=1)
        with pytest.raises(hoplite.InvalidArgument):
            clients[0].delete([ref])


def test_an_invalid_prefix_or_number_is_rejected(clients: list[Client]) -> None:
    cases: list[tuple[str, Any]] = [
        *[("policy", -1), ("", -1), ("policy/", -2), ("policy/", 1 << 70), ("policy/", 1.5)],
    ]
    for prefix, after in cases:
        with pytest.raises(hoplite.InvalidArgument):
            clients[0].latest(prefix, after=after, timeout=1)


def test_an_invalid_capacity_is_rejected() -> None:
    capacities: list[Any] = ["", "8 apples", "GiB", "-1", 0, -5, 1.5, True, 1 << 70, "9999999TiB"]
    for capacity in capacities:
        with pytest.raises(hoplite.InvalidArgument, match="capacity"):
            Node(capacity=capacity)


def test_an_invalid_address_is_rejected() -> None:
    for listen in ("", "localhost", "127.0.0.1:x", "127.0.0.1:70000", "1.2.3.4.5:0"):
        with pytest.raises(hoplite.HopliteError):
            Node(listen=listen)


# Bytes that a stranger may send: nothing, another protocol, a truncated header, malformed headers.
def frame(kind: int, length: int, *, magic: bytes = b"HPLT", version: int = 11, checksum: int = 0) -> bytes:
    """Returns a header as nodes send it: magic, version, kind, body length, checksum, transfer, offset, tag."""
    return struct.pack("<4sBBHIIQQ16s", magic, version, kind, 0, length, checksum, 0, 0, b"")


# The header that announces TLS, and the start of a ClientHello.
SECURE = 8
CLIENT_HELLO = bytes.fromhex("1603010005010000010003")


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
    "nothing behind the header of TLS": frame(SECURE, 0),
    "noise instead of TLS": frame(SECURE, 0) + bytes((n * 7919) % 251 for n in range(100_000)),
    "half of TLS": frame(SECURE, 0) + CLIENT_HELLO[:7],
    "a malformed greeting of TLS": frame(SECURE, 0) + CLIENT_HELLO,
    "oversized lengths all over": b"\xff" * 64,
}


def send(address: str | tuple[str, int], data: bytes) -> None:
    """Connects, sends the data, reads until the end, and ignores errors of the connection."""
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
            # The node may close the connection.
            pass


def still_works(clients: list[Client]) -> None:
    """Asserts that all nodes are members and transfer objects."""
    for client in clients:
        assert len(client.status()["members"]) == len(clients)
    for size in (10, 100_000):
        refs = [client.put(numbers(size)) for client in clients]
        total = clients[0].reduce(refs)
        for client in clients:
            same(client.get(total, timeout=30), numbers(size) * len(clients))


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_port_and_the_socket_is_ignored(nodes: list[Node], clients: list[Client], data: bytes) -> None:
    host, _, port = nodes[0].address.rpartition(":")
    for _ in range(3):
        send((host, int(port)), data)
        send(nodes[0].socket, data)
    still_works(clients)
    with hoplite.connect(nodes[0].socket) as client:
        assert client.get(client.put(b"x"), timeout=30) == b"x"


def test_silent_connections_do_no_harm(nodes: list[Node], clients: list[Client]) -> None:
    """Open while the node works, on the port and on the socket, then closed."""
    host, _, port = nodes[0].address.rpartition(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(20)]
    for _ in range(20):
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(nodes[0].socket)
        connections.append(unix)
    try:
        still_works(clients)
    finally:
        for one in connections:
            one.close()
    still_works(clients)


def test_silent_connections_leave_descriptors_for_other_uses() -> None:
    """The node may open fewer descriptors than there are connections."""
    with testing.node_process() as node, node.client() as client, contextlib.ExitStack() as strangers:
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (256, 256))
        host, _, port = node.address.rpartition(":")
        for _ in range(300):
            strangers.enter_context(socket.create_connection((host, int(port))))
        value = numbers(1 << 20)
        ref = client.put(value)
        with testing.node_process("--join", node.address) as other, other.client() as far:
            same(far.get(ref, timeout=30), value)
        with hoplite.connect(node.socket) as another:
            same(another.get(ref, timeout=30), value)
        assert client.status()["counters"]["strangers"] > 0


def test_a_node_listens_for_no_datagrams(nodes: list[Node]) -> None:
    """The UDP port of the same number stays free for other programs."""
    for node in nodes:
        host, _, port = node.address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind((host, int(port)))


CTRL_C = """
import contextlib, sys, threading, os, signal, time
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
    before = hp.status()["waiting"]
    def report():
        while hp.status()["waiting"] <= before:
            time.sleep(0.01)
        print("ready", flush=True)
    def get():
        with contextlib.suppress(hoplite.HopliteError):
            hp.get("never/3")
    def waiter():
        global before
        threading.Thread(target=get, daemon=True).start()
        while hp.status()["waiting"] == before:
            time.sleep(0.01)
        before += 1
    {before}
    threading.Thread(target=report, daemon=True).start()
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
# Each call, kind of client and neighbor, in pairs.
ENDED = [
    *[("get", "embedded", False), ("get", "attached", True), ("get with timeout", "embedded", True)],
    *[("latest", "attached", False), ("inputs", "embedded", False), ("put", "attached", True)],
]


@pytest.mark.parametrize(("call", "how", "waiter"), ENDED)
def test_ctrl_c_ends_a_blocking_call(call: str, how: str, *, waiter: bool) -> None:
    """Also where another thread reads the replies from the socket."""
    script = CTRL_C.replace("{call}", BLOCKING[call]).replace("{before}", "waiter()" if waiter else "pass")
    with subprocess.Popen([sys.executable, "-c", script, how], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            # The node has received the request by now.
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n"
            assert process.wait(SOON) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_closing_a_node_ends_all_waiting_calls(how: str) -> None:
    with testing.cluster(2, capacity="32MiB") as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
        client.put(numbers(20 << 20, "uint8"))
        total = client.reduce(["never/1"])
        before = client.status()["waiting"]
        waiting: dict[str, Later[object]] = {
            "get": Later(client.get, "never/2"),
            "sum": Later(client.get, total),
            "latest": Later(client.latest, "never/", after=5),
            "inputs": Later(total.inputs),
            "put": Later(client.put, numbers(20 << 20, "uint8")),
        }
        eventually(lambda: client.status()["waiting"] >= before + len(waiting))
        assert not any(call.done() for call in waiting.values())
        nodes[0].close(SOON)
        for call in waiting.values():
            with pytest.raises(hoplite.NodeDown):
                call.result()


def test_other_nodes_keep_working_when_a_node_closes() -> None:
    """They wait at their own nodes for objects that can still arrive."""
    with testing.cluster(3) as nodes:
        clients = [node.client() for node in nodes[1:]]
        waiting = [Later(client.get, "late/1", timeout=30) for client in clients]
        eventually(lambda: all(client.status()["waiting"] for client in clients))
        nodes[0].close(SOON)
        clients[0].put(numbers(100_000), name="late/1")
        for get in waiting:
            same(get.result(), numbers(100_000))


def descriptors() -> list[str]:
    """Lists the open descriptors of this process, without the one of the listing itself."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(str(entry.readlink()))
    return names


def threads() -> int:
    """Counts the threads of this process, including those of the extension."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_closed_cluster_leaves_nothing_behind() -> None:
    """No descriptor or thread is left after normal use and after errors."""

    def use() -> None:
        with testing.cluster(2) as nodes:
            clients = [node.client() for node in nodes]
            total = clients[0].reduce([client.put(numbers(100_000)) for client in clients])
            clients[1].get(total, timeout=30)
            send(nodes[0].socket, b"\xff" * 64)
            with pytest.raises(hoplite.Timeout):
                clients[0].get("never/1", timeout=0.01)

    use()
    before = len(descriptors()), threads()
    for _ in range(3):
        use()
    eventually(lambda: len(descriptors()) <= before[0])
    eventually(lambda: threads() <= before[1])


class Own:
    """A value of a user class, which must be pickled."""

    def __init__(self, number: int) -> None:
        self.number = number


@pytest.mark.parametrize(
    "value",
    [np.array([1, "a", None], object), Own(1), {"a": 1}, [1, 2], "text", np.zeros(3, "U3"), np.zeros(3, "f4,i4")],
    ids=lambda value: type(value).__name__ + str(getattr(value, "dtype", "")),
)
def test_a_reduce_of_pickled_objects_names_the_input_it_can_not_fold(clients: list[Client], value: object) -> None:
    """They can be put. A reduce of them fails with the name of an input that it can't fold, on any node."""
    refs = [client.put(value, name=f"odd/{number}") for number, client in enumerate(clients)]
    clients[2].get(refs[0], timeout=30)
    total = Later(lambda: clients[1].get(clients[1].reduce(refs), timeout=30))
    with pytest.raises(hoplite.UnsupportedDtype, match=r"odd/\d"):
        total.result()
    still_works(clients)


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros((300, 400), np.float32)
    array.flags.writeable = False
    return array


OUTS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "not contiguous": (lambda: np.zeros((300, 800), np.float32)[:, ::2], hoplite.InvalidArgument),
    "in Fortran order": (lambda: np.zeros((300, 400), np.float32, order="F"), hoplite.InvalidArgument),
    "read-only": (read_only, hoplite.InvalidArgument),
    "another dtype": (lambda: np.zeros((300, 400), np.int32), hoplite.ShapeMismatch),
    "a wider dtype": (lambda: np.zeros((300, 400), np.float64), hoplite.ShapeMismatch),
    "a dtype that none can have": (lambda: np.zeros((300, 400), "U3"), hoplite.UnsupportedDtype),
    "big-endian": (lambda: np.zeros((300, 400), ">f4"), hoplite.UnsupportedDtype),
    "transposed shape": (lambda: np.zeros((400, 300), np.float32), hoplite.ShapeMismatch),
    "flat": (lambda: np.zeros(120_000, np.float32), hoplite.ShapeMismatch),
    "one short": (lambda: np.zeros((300, 399), np.float32), hoplite.ShapeMismatch),
    "bytes too short": (lambda: bytearray(479_999), hoplite.ShapeMismatch),
    "bytes too long": (lambda: bytearray(480_001), hoplite.ShapeMismatch),
    "constant bytes": (lambda: bytes(480_000), hoplite.InvalidArgument),
    "no buffer": (lambda: "text", hoplite.InvalidArgument),
    "a number": (lambda: 7, hoplite.InvalidArgument),
    "a list": (lambda: [np.zeros((300, 400), np.float32)], hoplite.InvalidArgument),
}


@pytest.mark.parametrize(("out", "error"), OUTS.values(), ids=OUTS.keys())
def test_an_out_that_does_not_fit_is_rejected(
    clients: list[Client], out: Callable[[], Any], error: type[Exception]
) -> None:
    """On the node that holds the object and on one that fetches it; nothing stays pinned."""
    ref = clients[0].put(numbers((300, 400)))
    for client in clients[:2]:
        with pytest.raises(error):
            client.get(ref, out=out(), timeout=30)
        eventually(lambda client=client: all(copy["readers"] == 0 for copy in client.objects()))  # type: ignore[misc]
        whole = np.zeros((300, 400), np.float32)
        assert client.get(ref, out=whole, timeout=30) is whole
        same(whole, numbers((300, 400)))


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_wrong_number_of_outs_is_rejected(clients: list[Client], length: int) -> None:
    refs = [clients[0].put(numbers(10)) for _ in range(2)]
    with pytest.raises(hoplite.InvalidArgument, match=f"{length} values for 2 refs"):
        clients[0].get(refs, out=[np.zeros(10, np.float32)] * length)
    one: Any = np.zeros((2, 10), np.float32)
    with pytest.raises(hoplite.InvalidArgument, match="list"):
        clients[0].get(refs, out=one)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_view_can_not_be_written(nodes: list[Node], size: int) -> None:
    """Neither through NumPy nor through the buffer protocol; the object does not change."""
    with hoplite.connect(nodes[0].socket) as client:
        for value in (numbers(size), bytes(size)):
            view = client.get(client.put(value))
            raw = memoryview(view)
            assert raw.readonly
            with pytest.raises((ValueError, TypeError)):
                view[0] = 1
            with pytest.raises((ValueError, TypeError)):
                raw[0] = 1
            with pytest.raises((ValueError, TypeError, BufferError)):
                np.frombuffer(raw, np.uint8).flags.writeable = True
            assert bytes(view) == bytes(value)
        with pytest.raises(ValueError, match="read-only"):
            np.add(client.get(client.put(numbers(size))), 1, out=client.get(client.put(numbers(size))))


FORCES = """
import ctypes, sys
import hoplite
hp = hoplite.connect(sys.argv[1])
view = hp.get("mine/1", timeout=30)
print("before", flush=True)
ctypes.memset(view.ctypes.data + 4096, 7, 1)
print("after", flush=True)
"""


def test_a_process_that_forces_a_write_is_killed_without_damage(nodes: list[Node]) -> None:
    """Ctypes bypasses Python's checks, but the pages are read-only."""
    ref = nodes[0].client().put(numbers(100_000), name="mine/1")
    for node in nodes[:2]:
        command = [sys.executable, "-c", FORCES, node.socket]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "before\n"), done.stderr
    for node in nodes:
        same(node.client().get(ref, timeout=30), numbers(100_000))


def test_a_ref_of_an_unknown_cluster_is_lost(clients: list[Client]) -> None:
    """Its owner never joins, so the object is lost and no get waits forever."""
    foreign = hoplite.Ref("@00000000deadbeef.7")
    gets = [Later(client.get, foreign) for client in clients]
    wait = Later(clients[0].wait, [foreign])
    total = Later(lambda: clients[1].get(clients[1].reduce([foreign, clients[0].put(numbers(10))])))
    for get in (*gets, total):
        with pytest.raises(hoplite.ObjectLost):
            get.result()
    assert wait.result()[0] == [foreign]
    clients[0].delete(foreign, timeout=30)
    still_works(clients)


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_ten_thousand_refs_in_one_call(nodes: list[Node], how: str) -> None:
    """The refs are of objects on two nodes, and of a few that no client has put."""
    client = nodes[0].client() if how == "embedded" else hoplite.connect(nodes[0].socket)
    far = nodes[1].client()
    kept = [(far if number % 10 == 0 else client).put(numbers(10, seed=number % 7)) for number in range(1000)]
    # Each ref occurs ten times: a call may request an object repeatedly.
    values = client.get(kept * 10, timeout=30)
    assert len(values) == 10_000
    for number in (0, 999, 5000, 9999):
        same(values[number], numbers(10, seed=number % 1000 % 7))
    names = [f"many/{number}" for number in range(9000)]
    ready, rest = client.wait([*kept, *names], 1000, timeout=30)
    assert set(ready) == set(kept)
    assert [str(ref) for ref in rest] == names
    total = client.reduce([*kept, *names], count=1000)
    expected = fold("sum", [numbers(10, seed=number % 7) for number in range(1000)])
    same(client.get(total, timeout=30), expected)
    assert set(total.inputs(timeout=30)) == set(kept)
    client.delete([*kept, total, *names], timeout=30)
    for each in (client, far):
        eventually(lambda each=each: each.objects() == [])  # type: ignore[misc]
    client.close()


GOOD_NAMES = [
    "with spaces/1",
    " leads and trails ",
    "größe/naïve/7",
    "模型/权重/3",
    "🦜🦜/1",
    "'single' \"double\" `back`",
    "a//b///c",
    "/leads",
    "trails/",
    "/",
    "..",
    "../../etc/passwd",
    "-rf",
    "%s%n{0}$HOME",
    "a\\b",
    "e\u0301",
    "\u200b",
    "null",
    "x@y",
    "n" * 1024,
]


def test_unusual_names_are_valid(clients: list[Client]) -> None:
    """Every node treats each as a distinct name."""
    for name in GOOD_NAMES:
        ref = clients[0].put(b"x" + name.encode(), name=name)
        assert str(ref) == name
    assert {copy["ref"] for copy in clients[0].objects()} == set(GOOD_NAMES)
    for name in GOOD_NAMES:
        assert clients[1].get(name, timeout=30) == b"x" + name.encode()
        with pytest.raises(hoplite.NameTaken):
            clients[2].put(b"y", name=name)
        clients[2].delete(name)
        assert clients[1].wait([name], timeout=0)[0] in ([], [hoplite.Ref(name)])


BAD_NAMES = ["", "@x", "@", "a\nb", "a\0b", "\r", "a\tb\n", "x" * 1025, "n" * 4096, "ä" * 4096, "\ud800", 7]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[1:21])
def test_invalid_names_are_rejected(clients: list[Client], name: Any) -> None:  # noqa: ANN401
    for call in (
        lambda: clients[0].put(b"x", name=name),
        lambda: clients[0].put(numbers(100_000), name=name),
        lambda: clients[0].create(10, name=name),
        lambda: clients[0].reduce(["a/1"], name=name),
        lambda: clients[0].get(name, timeout=1),
    ):
        with pytest.raises(hoplite.InvalidArgument):
            call()
    assert clients[0].objects() == []


UNPICKLABLE: dict[str, Callable[[], object]] = {
    "lambda": lambda: lambda: 7,
    "lock": threading.Lock,
    "open file": lambda: open(__file__),  # noqa: PTH123, SIM115 - the file itself is the value
    "generator": lambda: (n for n in range(3)),
    "deep inside": lambda: {"a": [numbers(10), threading.Lock()]},
    "socket": socket.socket,
}


@pytest.mark.parametrize("make", UNPICKLABLE.values(), ids=UNPICKLABLE.keys())
def test_values_that_can_not_be_pickled_are_rejected(clients: list[Client], make: Callable[[], Any]) -> None:
    value = make()
    try:
        with pytest.raises(hoplite.InvalidArgument, match="pickle"):
            clients[0].put(value, name="odd/1")
    finally:
        if hasattr(value, "close"):
            value.close()
    assert clients[0].objects() == []
    clients[0].put(b"x", name="odd/1")


PUTS_ITS_OWN = """
import sys
import threading
import hoplite
class Mine:
    pass
hoplite.connect(sys.argv[1]).put(Mine(), name="own/1")
"""


def test_a_class_that_the_reader_can_not_import_is_named(nodes: list[Node]) -> None:
    """The error names the missing class.

    The object remains for processes that have the class, and nothing stays pinned.
    """
    subprocess.run([sys.executable, "-c", PUTS_ITS_OWN, nodes[0].socket], timeout=30, check=True)
    for node in nodes[:2]:
        client = node.client()
        with pytest.raises(hoplite.DecodeError, match="Mine"):
            client.get("own/1", timeout=30)
        with pytest.raises(hoplite.DecodeError, match="Mine"):
            client.get(["own/1", client.put(b"x")], timeout=30)
        eventually(lambda client=client: all(copy["readers"] == 0 for copy in client.objects()))  # type: ignore[misc]
    assert nodes[2].client().wait(["own/1"], timeout=30)[0]


def test_pickles_need_the_permission_of_both_sides(nodes: list[Node]) -> None:
    """A client that does not allow pickles reads arrays, and rejects a pickle before decoding any byte."""
    open_one, closed_one = nodes[0].client(), nodes[1].client(allow_pickle=False)
    with pytest.raises(hoplite.UnsupportedDtype, match="allow_pickle"):
        closed_one.put({"a": 1}, name="odd/1")
    with pytest.raises(hoplite.UnsupportedDtype, match="allow_pickle"):
        closed_one.put(np.array([None]), name="odd/1")
    open_one.put({"a": numbers(100_000)}, name="odd/1")
    with pytest.raises(hoplite.DecodeError, match="allow_pickle"):
        closed_one.get("odd/1", timeout=30)
    same(nodes[1].client(allow_pickle=True).get("odd/1", timeout=30)["a"], numbers(100_000))
    same(closed_one.get(closed_one.put(numbers(10))), numbers(10))


def test_an_invalid_count_is_rejected(clients: list[Client]) -> None:
    counts: list[Any] = ["1", 1.0, 1.5, [1], object(), -1, 3, 1 << 70]
    for count in counts:
        with pytest.raises(hoplite.InvalidArgument, match="count"):
            clients[0].wait(["a/1", "a/2"], count, timeout=1)
        with pytest.raises(hoplite.InvalidArgument, match="count"):
            clients[0].reduce(["a/1", "a/2"], count=count)
    with pytest.raises(hoplite.InvalidArgument, match="count"):
        clients[0].reduce(["a/1", "a/2"], count=0)


def test_a_retain_of_the_wrong_type_is_rejected(clients: list[Client]) -> None:
    many: list[Any] = ["1", 1.5, 0, -1, [2], 1 << 70]
    for retain in many:
        with pytest.raises(hoplite.InvalidArgument, match="retain"):
            clients[0].put(b"x", name="policy/1", retain=retain)
    assert clients[0].objects() == []


def test_retain_needs_a_number_in_the_name(clients: list[Client]) -> None:
    for name in (None, "policy", "policy/", "policy/x", "policy/-1", "policy/1.5", "policy/\u0661"):
        with pytest.raises(hoplite.InvalidArgument, match="retain"):
            clients[0].put(b"x", name=name, retain=2)
    assert clients[0].objects() == []
