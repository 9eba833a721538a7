"""The probe's program on one host: sends and returns echoes, and streams bytes; uses only the standard library.

It is sent to a host as text and run by the `python3` there (3.8 or later), so it imports nothing of hoplite. It reads
one JSON object per line from stdin. It replies to each with one line on stdout: a mark, the number of the request, and
a JSON object. It ends when stdin ends. It is independent of the purpose of its figures.
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

# Start of a reply line.
MARK = "hoplite-probe"
# An echo has eight random bytes, new for each probed host, and its number, so that nobody can reply without seeing it.
NONCE_BYTES = 8
NUMBER = struct.Struct("!I")
ECHO_BYTES = NONCE_BYTES + NUMBER.size
COUNT_MAX = (1 << 20) - 1
# A reply has one byte more than the echo, so that a forged datagram can't make two hosts reply to each other forever.
ANSWERED = b"\0"
# Share of the timeout that the first replies may take. After some replies the limit is this multiple of their median,
# but at least 20 ms, which a scheduler may take.
PATIENCE_PART = 4
PATIENCE_MEDIANS = 5
PATIENCE_S_MIN = 0.02
ANSWERS_KNOWN = 8
# Preamble of a stream: the key, which the probe sends to all its agents on stdin, the warm-up time, the measured time,
# and the window.
KEY_BYTES = 16
PREAMBLE = struct.Struct(f"!{KEY_BYTES}sddI")
# Time after which a stream without the key is closed, and maximum number of such streams; the oldest is closed first.
PREAMBLE_TIMEOUT_S = 5.0
STRANGERS_MAX = 64
# Pause after an error of the listener, for example if there are no descriptors left.
PAUSE_S = 0.05
RATE = struct.Struct("!d")
CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 3.0
# Streams do not start at the same moment; each must be measured while all of them run.
SLACK_S = 0.03
# Maximum time to drain the queue of a slow link.
DRAIN_TIMEOUT_S = 20.0


class Agent:
    """The sockets of one host: an echo and a listener that reply by themselves, and sockets that send.

    Args:
        address: address of this host for the other hosts.
        port: port of the echo and the listener; 0 selects free ones.
        key: preamble of streams between the agents of one probe; other streams are closed.
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
        """Executes one request."""
        done = getattr(self, "do_" + str(request["do"]))(request)
        assert isinstance(done, dict)
        return done

    def do_hello(self, _request: dict[str, object]) -> dict[str, object]:
        """Returns the ports and the identity of this host."""
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123 - as short as possible
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
        """Sends echoes to one host, one at a time; returns the nanoseconds of each that arrived in time."""
        peer, count = request["peer"], int(str(request["count"]))
        assert isinstance(peer, list)
        times, late = ask(self.asker, (str(peer[0]), int(peer[1])), count, float(str(request["timeout_s"])))
        return {"times_ns": times, "lost": count - len(times), "late": late}

    def do_fping(self, request: dict[str, object]) -> dict[str, object]:
        """Like `do_probe`, with fping, to which the kernel of the other host replies."""
        if shutil.which("fping") is None:
            raise RuntimeError("fping is not installed; run apt-get install fping there, or omit --backend fping")
        peer, count = request["peer"], int(str(request["count"]))
        assert isinstance(peer, list)
        timeout_ms = max(1, round(float(str(request["timeout_s"])) * 1000 / PATIENCE_PART))
        command = ["fping", "-C", str(count), "-q", "-p", "1", "-t", str(timeout_ms), str(peer[0])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = re.findall(r"^\S+ *: (.*)$", done.stderr, re.MULTILINE)
        if not found:
            # Only root may set an interval below 10 ms.
            command[command.index("-p") + 1] = "10"
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found = re.findall(r"^\S+ *: (.*)$", done.stderr, re.MULTILINE)
        if not found:
            raise RuntimeError("fping failed: " + repr((done.stderr or done.stdout).strip()[:200]))
        times = [round(float(word) * 1e6) for word in found[-1].split() if word != "-"]
        return {"times_ns": times, "lost": count - len(times), "late": 0}

    def do_open(self, request: dict[str, object]) -> dict[str, object]:
        """Opens streams to another host, without sending payload yet."""
        peer, window = request["peer"], int(str(request["window"]))
        assert isinstance(peer, list)
        self.close_streams()
        for _ in range(int(str(request["streams"]))):
            stream = socket.create_connection((str(peer[0]), int(peer[1])), CONNECT_TIMEOUT_S)
            self.streams.append(stream)
            _even(stream)
            # Bytes that are queued here delay the end of the stream, and the next round starts only after it.
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, window)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            warm_s, seconds = float(str(request["warm_s"])), float(str(request["seconds"]))
            stream.sendall(PREAMBLE.pack(self.key, warm_s, seconds, window))
        return {}

    def do_go(self, request: dict[str, object]) -> dict[str, object]:
        """Sends over the open streams; returns the bits per second that the other host received."""
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
        """Closes the open streams."""
        for stream in self.streams:
            stream.close()
        self.streams = []

    def answer_echoes(self) -> None:
        """Replies to every echo, until the socket is closed."""
        while not self.is_closed:
            # A reply that can't be sent, for example to port 0, must not end the loop.
            with contextlib.suppress(OSError):
                word, sender = self.echo.recvfrom(64)
                if len(word) == ECHO_BYTES:
                    self.echo.sendto(word + ANSWERED, sender)

    def accept(self) -> None:
        """Accepts streams, each in its own thread, until the socket is closed."""
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
                # No more threads can be started.
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
        """Removes a stream from the list of those without a key; returns false if it was closed already."""
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
            # Wakes the thread that waits on it. Sockets without a connection also raise an error, which is ignored.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.memory.close()


def ask(asker: socket.socket, peer: tuple[str, int], count: int, timeout_s: float) -> tuple[list[int], int]:
    """Sends echoes, each when the previous one has returned or timed out; the first one does not count.

    Args:
        asker: socket that sends and receives.
        peer: host that replies; datagrams from elsewhere are ignored.
        count: number of echoes.
        timeout_s: time without any reply after which it stops.

    Returns:
        Nanoseconds of each echo that returned in time, and the number of late or foreign replies.
    """
    times: list[int] = []
    late = 0
    nonce = os.urandom(NONCE_BYTES)
    # Normalized like the kernel's sender addresses; link-local ones may or may not have a zone.
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
        # A timeout of the kernel: Python's own needs two system calls per reply.
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
        # Other hosts may reach this host by an address that none of its interfaces has.
        end.bind(("", port))
    return end


def _even(stream: socket.socket) -> None:
    # Reno reaches its full window immediately. Others leave slow start when a queue grows, and share a link unevenly
    # for longer than a stream lasts here.
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
    """Discards received bytes, and finally sends the rate at which they arrived during the measured time."""
    buffer = bytearray(CHUNK_BYTES)
    stream.settimeout(DRAIN_TIMEOUT_S)
    # Streams with the same window share a link evenly, and a full queue drains soon.
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
    """Executes requests until stdin ends; the first line contains the address, port and key."""
    begin = json.loads(sys.stdin.readline())
    agent = Agent(begin["address"], begin["port"], bytes.fromhex(begin["key"]))
    # Terminates a line that a login shell may have started.
    sys.stdout.write("\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = agent.answer(request)
        except Exception as error:  # noqa: BLE001 - reported to the probe, which continues without this host
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(MARK + " " + str(request["number"]) + " " + json.dumps(answer) + "\n")
        sys.stdout.flush()
    agent.close()


if __name__ == "__main__":
    main()
