"""Runs commands inside a container for clients outside of it and in other containers, like a minimal sshd.

Clients connect to a Unix socket and pass their own stdin, stdout and stderr, so this program copies no bytes. It is the
first process of a container. When its stdin ends, because the bench has closed it or was killed, it ends all processes
that it started, and then itself. It runs without the bench's packages, as a file.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

# Maximum size of a command.
COMMAND_BYTES = 1 << 20
# An agent ends its processes in this time at most.
END_TIMEOUT_S = 15.0
POLL_S = 0.01
RECEIVE_TIMEOUT_S = 5.0
# See prctl(2): orphans become children of this process, so that they are found at the end.
PR_SET_CHILD_SUBREAPER = 36


class Server:
    """The sessions of one container.

    Args:
        path: path of the socket.
    """

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.selector = selectors.DefaultSelector()
        # The client of each process.
        self.sessions: dict[int, socket.socket] = {}

    def serve(self, stdin: int) -> None:
        """Executes commands until stdin ends."""
        woken, wake = socket.socketpair()
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for source in (self.listener, woken, stdin):
            self.selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj is woken:
                    woken.recv(4096)
                    self.reap()
                elif key.fileobj == stdin:
                    if not os.read(stdin, 4096):
                        return
                # A command and its client may have ended at once.
                elif self.sessions.get(key.data) is key.fileobj:
                    self.hang_up(key.data)

    def accept(self) -> None:
        """Starts a command of a new client."""
        client, _ = self.listener.accept()
        client.settimeout(RECEIVE_TIMEOUT_S)
        streams: list[int] = []
        try:
            command, streams = receive(client)
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError):
            client.close()
            return
        finally:
            for stream in streams:
                os.close(stream)
        # `reap` waits for all children, including orphans; Python must not wait for this one too.
        process.returncode = 0
        self.sessions[process.pid] = client
        self.selector.register(client, selectors.EVENT_READ, process.pid)

    def reap(self) -> None:
        """Reaps all ended children, and sends the exit status of commands to their clients."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if client := self.sessions.pop(ended[0], None):
                    code = os.waitstatus_to_exitcode(ended[1])
                    with contextlib.suppress(OSError):
                        client.sendall(bytes([code if code >= 0 else 128 - code]))
                    # After a hangup it is not registered any more.
                    with contextlib.suppress(KeyError):
                        self.selector.unregister(client)
                    client.close()

    def hang_up(self, process: int) -> None:
        """Ends a command whose client has ended; its session remains until its process has ended."""
        self.selector.unregister(self.sessions[process])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGHUP)

    def close(self) -> None:
        """Ends all processes: commands by SIGTERM, then everything that is left by SIGKILL."""
        self.listener.close()
        for process in self.sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGTERM)
        deadline = time.monotonic() + END_TIMEOUT_S
        while self.sessions and time.monotonic() < deadline:
            time.sleep(POLL_S)
            self.reap()
        while children := children_of(os.getpid()):
            for process in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(POLL_S)
            self.reap()


def receive(client: socket.socket) -> tuple[str, list[int]]:
    """Receives a command and the three streams of a client.

    Raises:
        ValueError: malformed.
        OSError: the client has ended, or sends nothing.
    """
    streams = array.array("i")
    data = b""
    while not data.endswith(b"\n") and len(data) < COMMAND_BYTES:
        part, passed, _, _ = client.recvmsg(1 << 16, socket.CMSG_SPACE(3 * streams.itemsize))
        for level, kind, content in passed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                streams.frombytes(content[: len(content) - len(content) % streams.itemsize])
        if not part:
            break
        data += part
    for stream in streams:
        os.set_inheritable(stream, False)
    return str(json.loads(data)), list(streams)


def children_of(parent: int) -> list[int]:
    """The living children of a process."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are enough
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == parent and fields[0] not in ("Z", "X"):
                    found.append(int(name))
    return found


def main() -> None:
    """Serves on a socket; commands use a folder of temporary files. The command line names both."""
    os.environ["TMPDIR"] = sys.argv[2]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = Server(sys.argv[1])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        server.serve(sys.stdin.fileno())
    finally:
        server.close()


if __name__ == "__main__":
    main()
