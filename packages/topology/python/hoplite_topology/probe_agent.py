"""The probe's program on one host: answers echoes, asks for them, and streams bytes; uses Python's own library alone.

It is sent to a host as text and run by the `python3` there (3.8 or later), so it imports nothing of hoplite. Reads a
JSON object a line on stdin and answers each on stdout, by a line of a mark, the request's number and a JSON object.
Ends when stdin does. Knows one host at a time, and nothing of what its figures are for.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

# Begins a line of an answer.
MARK = "hoplite-probe"
# An echo is eight random bytes, new for each host that is asked, and its number: none is answered unseen.
NONCE_BYTES = 8
NUMBER = struct.Struct("!I")
ECHO_BYTES = NONCE_BYTES + NUMBER.size
COUNT_MAX = (1 << 20) - 1
# An answer has a byte more than the question: a forged datagram can't make two hosts answer each other for ever.
ANSWERED = b"\0"
# Of the time that a host has for its first answer; after some answers so many times their median, but at least 20 ms,
# which is what a scheduler may take.
PATIENCE_PART = 4
PATIENCE_MEDIANS = 5
PATIENCE_S_MIN = 0.02
ANSWERS_KNOWN = 8
# What a stream begins with: the key that all agents of a probe are given on stdin, how long it warms up, how long it is
# measured, and how much may be under way.
KEY_BYTES = 16
PREAMBLE = struct.Struct(f"!{KEY_BYTES}sddI")
# A stream without the key is ended after so long, and the oldest such one when there are more.
PREAMBLE_TIMEOUT_S = 5.0
STRANGERS_MAX = 64
# After an error of the listener, as when there are no descriptors left.
PAUSE_S = 0.05
RATE = struct.Struct("!d")
CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 3.0
# Streams don't begin in the same moment, and each is to be measured while all are there.
SLACK_S = 0.03
# A queue of a slow link may take so long to empty.
DRAIN_TIMEOUT_S = 20.0


class Agent:
    """One host's sockets: an echo and a listener that answer by themselves, and those that ask.

    Args:
        address: of this host, as the others reach it.
        port: of both the echo and the listener; 0 takes free ones.
        key: what streams between the agents of one probe begin with; others are ended.
    """

    def __init__(self, address: str, port: int = 0, key: bytes = bytes(KEY_BYTES)) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.echo = _bound(socket.socket(family, socket.SOCK_DGRAM), address, port)
        self.asker = _bound(socket.socket(family, socket.SOCK_DGRAM), address, 0)
        self.listener = _bound(socket.socket(family, socket.SOCK_STREAM), address, port)
        self.listener.listen(128)
        self.key = key
        self.streams: list[socket.socket] = []
        self.strangers: list[socket.socket] = []
        self.lock = threading.Lock()
        self.is_closed = False
        self.memory = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the agent lives
        self.memory.truncate(CHUNK_BYTES)
        for work in (self.answer_echoes, self.accept):
            threading.Thread(target=work, daemon=True).start()

    def answer(self, request: dict[str, object]) -> dict[str, object]:
        """Does what one line asks for."""
        done = getattr(self, "do_" + str(request["do"]))(request)
        assert isinstance(done, dict)
        return done

    def do_hello(self, _request: dict[str, object]) -> dict[str, object]:
        """Where this host answers, and what tells it from others."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - as short as can be
                machine = file.read().strip() + "/" + str(os.stat("/proc/self/ns/net").st_ino)  # noqa: PTH116
        except OSError:
            machine = ""
        return {
            "echo": self.echo.getsockname()[1],
            "listener": self.listener.getsockname()[1],
            "machine": machine,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }

    def do_probe(self, request: dict[str, object]) -> dict[str, object]:
        """Asks one host for echoes, one at a time; nanoseconds of each that came in time."""
        peer, count = request["peer"], int(str(request["count"]))
        assert isinstance(peer, list)
        times, late = ask(self.asker, (str(peer[0]), int(peer[1])), count, float(str(request["timeout_s"])))
        return {"times_ns": times, "lost": count - len(times), "late": late}

    def do_fping(self, request: dict[str, object]) -> dict[str, object]:
        """The same by fping, which asks the kernel of the other host."""
        if shutil.which("fping") is None:
            raise RuntimeError("fping is not installed; apt-get install fping there, or leave out --backend fping")
        peer, count = request["peer"], int(str(request["count"]))
        assert isinstance(peer, list)
        timeout_ms = max(1, round(float(str(request["timeout_s"])) * 1000 / PATIENCE_PART))
        command = ["fping", "-C", str(count), "-q", "-p", "1", "-t", str(timeout_ms), str(peer[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.findall(r"^\S+ *: (.*)$", done.stderr, re.MULTILINE)
        if not found:
            # Of an interval below 10 ms, which only root may ask for.
            command[command.index("-p") + 1] = "10"
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = re.findall(r"^\S+ *: (.*)$", done.stderr, re.MULTILINE)
        if not found:
            raise RuntimeError("fping said " + repr((done.stderr or done.stdout).strip()[:200]))
        times = [round(float(word) * 1e6) for word in found[-1].split() if word != "-"]
        return {"times_ns": times, "lost": count - len(times), "late": 0}

    def do_open(self, request: dict[str, object]) -> dict[str, object]:
        """Opens streams to another host; nothing goes out yet."""
        peer, window = request["peer"], int(str(request["window"]))
        assert isinstance(peer, list)
        self.close_streams()
        for _ in range(int(str(request["streams"]))):
            stream = socket.create_connection((str(peer[0]), int(peer[1])), CONNECT_TIMEOUT_S)
            self.streams.append(stream)
            _even(stream)
            # What waits at this end takes time to leave it, and the next round begins after that.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, window)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            warm_s, seconds = float(str(request["warm_s"])), float(str(request["seconds"]))
            stream.sendall(PREAMBLE.pack(self.key, warm_s, seconds, window))
        return {}

    def do_go(self, request: dict[str, object]) -> dict[str, object]:
        """Sends over what is open; bits per second that the other host saw."""
        seconds, rates = float(str(request["seconds"])), [0.0] * len(self.streams)

        def send(place: int) -> None:
            with contextlib.suppress(OSError):
                rates[place] = _send(self.streams[place], self.memory.fileno(), seconds + SLACK_S)

        threads = [threading.Thread(target=send, args=(place,)) for place in range(1, len(self.streams))]
        for thread in threads:
            thread.start()
        if self.streams:
            send(0)
        for thread in threads:
            thread.join()
        self.close_streams()
        return {"rate": sum(rates)}

    def close_streams(self) -> None:
        """Closes what was opened."""
        for stream in self.streams:
            stream.close()
        self.streams = []

    def answer_echoes(self) -> None:
        """Answers every echo, until the socket is closed."""
        while not self.is_closed:
            # One that can't be answered, as from port 0, ends nothing.
            with contextlib.suppress(OSError):
                word, sender = self.echo.recvfrom(64)
                if len(word) == ECHO_BYTES:
                    self.echo.sendto(word + ANSWERED, sender)

    def accept(self) -> None:
        """Takes streams, each in a thread of its own, until the socket is closed."""
        while not self.is_closed:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                time.sleep(PAUSE_S)
                continue
            with self.lock:
                self.strangers.append(stream)
                if len(self.strangers) > STRANGERS_MAX:
                    # Wakes its thread, which closes it.
                    with contextlib.suppress(OSError):
                        self.strangers[0].shutdown(socket.SHUT_RDWR)
                    del self.strangers[0]
            try:
                threading.Thread(target=self.receive, args=(stream,), daemon=True).start()
            except RuntimeError:
                # There are no threads left.
                self.is_known(stream)
                stream.close()

    def receive(self, stream: socket.socket) -> None:
        """Serves one stream, if it begins with the key."""
        with contextlib.suppress(OSError, struct.error), stream:
            try:
                stream.settimeout(PREAMBLE_TIMEOUT_S)
                key, warm_s, seconds, window = PREAMBLE.unpack(stream.recv(PREAMBLE.size, socket.MSG_WAITALL))
            finally:
                is_known = self.is_known(stream)
            if is_known and hmac.compare_digest(key, self.key):
                _receive(stream, warm_s, seconds, window)

    def is_known(self, stream: socket.socket) -> bool:
        """Takes a stream off the list of those without a key; false if it was ended to make room."""
        with self.lock:
            is_there = stream in self.strangers
            if is_there:
                self.strangers.remove(stream)
            return is_there

    def close(self) -> None:
        """Closes all sockets."""
        self.close_streams()
        self.is_closed = True
        for end in (self.echo, self.asker, self.listener):
            # Wakes the thread that waits there; a socket of no connection says that it has none, too.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.memory.close()


def ask(asker: socket.socket, peer: tuple[str, int], count: int, timeout_s: float) -> tuple[list[int], int]:
    """Asks for echoes, each when the last one has come or is given up; the first one isn't counted.

    Args:
        asker: sends and receives.
        peer: who answers; what comes from elsewhere is thrown away.
        count: how many.
        timeout_s: after so long without any answer there will be none.

    Returns:
        Nanoseconds of each that came in time; and how many answers came too late, or were of something else.
    """
    times: list[int] = []
    late = 0
    nonce = os.urandom(NONCE_BYTES)
    # As the kernel spells senders; link-local ones have a zone there or not.
    place = socket.getaddrinfo(peer[0], peer[1], asker.family, socket.SOCK_DGRAM)[0][4]
    expected = _spelled(place)
    patience_s = timeout_s / PATIENCE_PART
    begun = time.perf_counter_ns()
    for sequence in range(min(count, COUNT_MAX) + 1):
        if not times and time.perf_counter_ns() - begun > timeout_s * 1e9:
            break
        word = nonce + NUMBER.pack(sequence)
        if len(times) == ANSWERS_KNOWN:
            patience_s = min(patience_s, max(PATIENCE_S_MIN, PATIENCE_MEDIANS * statistics.median(times) / 1e9))
        # Of the kernel: Python's own timeout asks it twice for each answer.
        timeval = struct.pack("ll", int(patience_s), int(patience_s % 1 * 1e6))
        if sequence == 0 or len(times) == ANSWERS_KNOWN:
            asker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        sent = time.perf_counter_ns()
        with contextlib.suppress(OSError):
            asker.sendto(word, place)
            while True:
                answer, sender = asker.recvfrom(64)
                now = time.perf_counter_ns()
                if answer == word + ANSWERED and _spelled(sender) == expected:
                    if sequence:
                        times.append(now - sent)
                    break
                late += 1
                if now - sent > patience_s * 1e9:
                    break
    return times, late


def _spelled(place: tuple[object, ...]) -> tuple[str, object]:
    return str(place[0]).partition("%")[0], place[1]


def _bound(end: socket.socket, address: str, port: int) -> socket.socket:
    try:
        end.bind((address, port))
    except OSError:
        # Others may reach this host by an address that its own interfaces don't have.
        end.bind(("", port))
    return end


def _even(stream: socket.socket) -> None:
    # Reno gets to its full window at once; others leave slow start when a queue grows, and share a link unevenly for
    # longer than a stream lasts here.
    with contextlib.suppress(OSError, AttributeError):
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def _send(stream: socket.socket, memory: int, seconds: float) -> float:
    stream.settimeout(None)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        os.sendfile(stream.fileno(), memory, 0, CHUNK_BYTES // 8)
    stream.shutdown(socket.SHUT_WR)
    stream.settimeout(DRAIN_TIMEOUT_S)
    told = stream.recv(RATE.size, socket.MSG_WAITALL)
    return float(RATE.unpack(told)[0]) if len(told) == RATE.size else 0.0


def _receive(stream: socket.socket, warm_s: float, seconds: float, window: int) -> None:
    """Throws away what comes, and tells at the end how fast it came while it was to be measured."""
    buffer = bytearray(CHUNK_BYTES)
    stream.settimeout(DRAIN_TIMEOUT_S)
    # Streams of one window each share a link evenly, and a queue that is full empties soon.
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, window)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, max(1, min(window // 4, 1 << 18)))
    total, begun = 0, 0.0
    first, last = (0.0, 0), (0.0, 0)
    while True:
        size = stream.recv_into(buffer, 0, socket.MSG_TRUNC)
        now = time.perf_counter()
        if not size:
            break
        total += size
        begun = begun or now
        if now - begun <= warm_s or not first[1]:
            first = (now, total)
        elif now - begun <= warm_s + seconds or last[1] <= first[1]:
            last = (now, total)
    rate = (last[1] - first[1]) * 8 / (last[0] - first[0]) if last[0] > first[0] else 0.0
    stream.sendall(RATE.pack(rate))


def main() -> None:
    """Answers until stdin ends; the first line says where."""
    begin = json.loads(sys.stdin.readline())
    agent = Agent(begin["address"], begin["port"], bytes.fromhex(begin["key"]))
    # Ends a line that a login shell may have begun.
    sys.stdout.write("\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = agent.answer(request)
        except Exception as error:  # noqa: BLE001 - told to the probe, which goes on without this host
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(MARK + " " + str(request["number"]) + " " + json.dumps(answer) + "\n")
        sys.stdout.flush()
    agent.close()


if __name__ == "__main__":
    main()
