"""Measures the links of a lab: rates of TCP streams and round trips, in this process.

Sockets are created in the hosts' namespaces and used from here, so a measurement starts no program. Senders send the
same pages of memory repeatedly (sendfile), receivers discard the data (MSG_TRUNC), and no stream is paced (Reno).
Sixteen streams of 1 Gbit/s therefore leave most of two processors to the kernel's links, which are what is measured.
This module does not depend on how links are created.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import struct
import threading
import time
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_bench.lab import namespaces
from hoplite_bench.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from hoplite_bench.lab.hosts import Host

CONNECT_TIMEOUT_S = 5.0

# Time until a stream has reached its speed and the first burst is over.
WARM_UP_S = 0.5

# Maximum size of one send or receive call: 8 ms at 1 Gbit/s, so that calls are cheap.
CHUNK_BYTES = 1024 * 1024

# A receiver wakes up after this many bytes, or after 5 ms at the link's rate if that is less. Waking twice as often
# costs a third more processor time.
WAKE_BYTES = 1024 * 1024
WAKE_S = 0.005

# Echoes of a round-trip measurement: ECHOES, or as many as fit into ECHOES_S, but at least ECHOES_MIN.
ECHOES, ECHOES_MIN, ECHOES_S = 51, 4, 0.5
ECHO_REQUEST, ECHO_REPLY = 8, 0


def rates(pairs: Sequence[tuple[Host, Host]], seconds: float, rate: int) -> list[float]:
    """Measures one TCP stream per pair of hosts, all at once, in bit/s of payload."""
    for a, b in pairs:
        if a is b:
            raise InvalidArgument(f"can't measure a rate from {a.name} to itself: pass two hosts")
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(_Stream(a, b, rate)) for a, b in pairs]
        for stream in streams:
            stream.start()
        time.sleep(WARM_UP_S)
        for stream in streams:
            stream.begin()
        time.sleep(seconds)
        return [stream.end() for stream in streams]


def round_trip(a: Host, b: Host, timeout: float) -> float:
    """Measures the round trip between two hosts, in seconds: the median of up to 50 ICMP echoes.

    Raises:
        LabError: an echo took longer than `timeout` seconds.
    """
    echo = namespaces.inside(a.keeper, lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    with echo:
        echo.settimeout(timeout)
        echo.connect((b.address, 0))
        times: list[float] = []
        end = time.monotonic() + ECHOES_S
        while len(times) < ECHOES and (len(times) < ECHOES_MIN or time.monotonic() < end):
            times.append(_echo(echo, len(times), a, b))
    # The first echo includes address resolution (ARP).
    return statistics.median(times[1:])


def _echo(echo: socket.socket, number: int, a: Host, b: Host) -> float:
    identity = os.getpid() & 0xFFFF
    begin = time.perf_counter()
    try:
        echo.send(_icmp(identity, number))
        while True:
            answer = echo.recv(2048)
            # After an IPv4 header of 20 bytes.
            kind, _, _, answered, sequence = struct.unpack_from("!BBHHH", answer, 20)
            if (kind, answered, sequence) == (ECHO_REPLY, identity, number):
                return time.perf_counter() - begin
    except OSError as error:
        raise LabError(
            f"no echo from {a.name} to {b.name} within {echo.gettimeout():g} s: {error}; check whether a link is cut"
        ) from error


def _icmp(identity: int, number: int) -> bytes:
    """Builds an echo request of 64 bytes."""
    words = [ECHO_REQUEST << 8, 0, identity, number] + [0] * 28
    total = sum(words)
    words[1] = 0xFFFF - (total + (total >> 16)) % 0xFFFF if total % 0xFFFF else 0xFFFF
    return struct.pack("!32H", *words)


class _Stream:
    """One TCP stream, with a sending and a receiving thread."""

    def __init__(self, a: Host, b: Host, rate: int) -> None:
        self._name = f"{a.name} to {b.name}"
        self._wake_bytes = max(1, min(WAKE_BYTES, round(rate / 8 * WAKE_S)))
        listener = namespaces.inside(b.keeper, _socket)
        self._source = namespaces.inside(a.keeper, _socket)
        with listener:
            try:
                listener.bind((b.address, 0))
                listener.listen(1)
                listener.settimeout(CONNECT_TIMEOUT_S)
                self._source.settimeout(CONNECT_TIMEOUT_S)
                self._source.connect(listener.getsockname())
                self._sink, _ = listener.accept()
            except OSError as error:
                self._source.close()
                raise LabError(
                    f"no stream from {self._name} within {CONNECT_TIMEOUT_S:g} s: {error}; check whether a link is cut"
                ) from error
        self._source.settimeout(None)
        self._sink.settimeout(None)
        self._memory = os.memfd_create("hoplite-lab")
        os.truncate(self._memory, CHUNK_BYTES)
        self._threads = [
            threading.Thread(target=work, name="hoplite-lab", daemon=True) for work in (self._send, self._receive)
        ]
        # Time of the receiver's last read, and the number of bytes received by then.
        self._seen = (0.0, 0)
        self._first = (0.0, 0)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while self._seen[1] == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        self._first = self._seen

    def end(self) -> float:
        (first_s, first), (last_s, last) = self._first, self._seen
        if first == 0 or last <= first:
            raise LabError(f"the stream from {self._name} carries no data: check whether the link is cut")
        return (last - first) * 8 / (last_s - first_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._source, self._sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for end in (self._source, self._sink):
            end.close()
        os.close(self._memory)

    def _send(self) -> None:
        # Returns when the socket is shut down.
        with contextlib.suppress(OSError):
            while True:
                os.sendfile(self._source.fileno(), self._memory, 0, CHUNK_BYTES)

    def _receive(self) -> None:
        # MSG_TRUNC writes nothing into the buffer, but Python requires one.
        buffer = bytearray(CHUNK_BYTES)
        count = 0
        self._sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._wake_bytes)
        with contextlib.suppress(OSError):
            while size := self._sink.recv_into(buffer, 0, socket.MSG_TRUNC):
                count += size
                self._seen = (time.perf_counter(), count)


def _socket() -> socket.socket:
    stream = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Every kernel has Reno. Where the machine's default is BBR, each stream has a pacing timer in addition to the
    # timer of its link, which takes a seventh of all processor time. Sixteen streams on two busy processors reach
    # 855 Mbit/s each with Reno, and 772 Mbit/s with BBR.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
    return stream
