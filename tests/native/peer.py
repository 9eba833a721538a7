"""The native peer of packages/native/tests/peer: a C program that uses the library by hoplite.h alone.

Starts and ends its process, sends commands and raises the errors in its replies. Knows no verbs; see `native.clients`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from hoplite import errors
from native.clients import NativeClient
from support import SOON

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

# The codes of hoplite.h and the exceptions of hoplite.errors for the same errors.
ERRORS: dict[int, type[errors.HopliteError]] = {
    1: errors.Timeout,
    2: errors.ObjectLost,
    3: errors.ObjectCorrupt,
    4: errors.ObjectDeleted,
    5: errors.NameTaken,
    6: errors.StoreFull,
    7: errors.ShapeMismatch,
    8: errors.UnknownOp,
    9: errors.UnsupportedDtype,
    10: errors.InvalidArgument,
    11: errors.NodeDown,
    12: errors.NotAllowed,
    13: errors.ClientClosed,
    14: errors.ForkedClient,
    15: errors.JoinError,
    16: errors.AddressInUse,
    17: errors.ConnectError,
}


class NativeError(errors.HopliteError):
    """An error with a code that has no exception in Python, such as INVALID_HANDLE.

    Attributes:
        code: the number.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Peer:
    """A running peer. The end of the `with` statement ends it, in order if it still runs.

    Args:
        program: path of the program.
        folder: for files with the bytes of values.
        environment: variables to add to this process's environment.
    """

    def __init__(self, program: Path, folder: Path, **environment: str) -> None:
        self._folder = folder
        self._files = itertools.count()
        self._lines: queue.Queue[str] = queue.Queue()
        self._events: queue.Queue[str] = queue.Queue()
        self._one_call = threading.Lock()
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            # A session of its own, by which `processes` finds what it leaves behind.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """PID of the process, and id of its session."""
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            (self._events if line.startswith('{"event"') else self._lines).put(line)
        self._lines.put("")

    def send(self, command: str, **fields: object) -> None:
        """Sends a command without waiting for its reply. Fields that are None are omitted."""
        words = [f"{key}={_field(value)}" for key, value in fields.items() if value is not None]
        assert self.process.stdin is not None
        print(command, *words, sep="\t", file=self.process.stdin, flush=True)

    def reply(self) -> dict[str, Any]:
        """Waits for the reply to the oldest command that has none, and raises its error."""
        line = self._lines.get(timeout=SOON)
        assert line, f"the peer has ended with {self.process.wait(SOON)}"
        reply: dict[str, Any] = json.loads(line)
        code = reply["code"]
        if code:
            message = reply["message"]
            raise ERRORS[code](message) if code in ERRORS else NativeError(code, message)
        return reply

    def call(self, command: str, **fields: object) -> dict[str, Any]:
        """Runs a command to completion, and raises its error."""
        with self._one_call:
            self.send(command, **fields)
            return self.reply()

    def event(self) -> str:
        """Waits for the next signal that the peer handles. Returns the thread that ran its handler: "main" or other."""
        name: str = json.loads(self._events.get(timeout=SOON))["event"]
        return name

    def file(self, data: bytes | memoryview | None = None) -> Path:
        """Returns the path of a new file with these bytes, or of one that the peer writes."""
        path = self._folder / f"{self.pid}-{next(self._files)}"
        if data is not None:
            path.write_bytes(data)
        return path

    def node(self, **options: object) -> NativeNode:
        """Starts a node in the peer."""
        return NativeNode(self, self.call("node", **options))

    def connect(self, address: str, *, timeout: float | None = 10.0, **options: object) -> NativeClient:
        """Attaches the peer to a node of this host."""
        return NativeClient(self, self.call("connect", address=address, timeout=timeout, **options)["client"])

    def init(self, address: str | None = None, *, timeout: float | None = 10.0, **options: object) -> NativeClient:
        """Attaches the peer to the node that `hoplite.init` would select."""
        return NativeClient(self, self.call("init", address=address, timeout=timeout, **options)["client"])

    def processes(self) -> list[int]:
        """The processes of the peer's session that have not ended: the peer, its children and theirs."""
        found = []
        for name in os.listdir("/proc"):  # noqa: PTH208 - names alone
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as stat:  # noqa: PTH123
                state, _, _, session = stat.read().rpartition(") ")[2].split()[:4]
                if int(session) == self.pid and state != "Z":
                    found.append(int(name))
        return found

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kills the peer and waits until it has ended."""
        self.process.send_signal(number)
        self.process.wait(SOON)

    def end(self) -> int:
        """Ends the peer, which closes all handles first. Returns its exit status."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(SOON)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            had_ended = self.process.poll() is not None
            code = self.end()
        except BaseException:
            self.process.kill()
            raise
        finally:
            with self.process:
                self._reader.join(SOON)
        if kind is None and not had_ended:
            assert code == 0, f"the peer ended with {code}"


class NativeNode:
    """A node of the peer.

    Attributes:
        id: id of the node.
        address: host and port that other nodes join; empty if it does not listen.
        socket: path of its Unix socket.
    """

    def __init__(self, peer: Peer, started: dict[str, Any]) -> None:
        self.peer = peer
        self.id: str = started["id"]
        self.address: str = started["address"] or ""
        self.socket: str = started["socket"]
        self._slot: int = started["node"]

    def client(self, **options: object) -> NativeClient:
        """A client of this node, in the peer."""
        return NativeClient(self.peer, self.peer.call("client", node=self._slot, **options)["client"])

    def close(self, timeout: float | None = None) -> bool:
        """Makes the node leave. Returns whether other nodes hold all of its objects."""
        complete: bool = self.peer.call("release", node=self._slot, timeout=timeout)["complete"]
        return complete


def _field(value: object) -> str:
    """A value as words.h reads it."""
    if isinstance(value, list):
        text = "\x1f".join(map(str, value))
    elif isinstance(value, tuple):
        text = ",".join(map(str, value))
    elif isinstance(value, bool):
        text = str(int(value))
    else:
        text = str(value)
    assert not set(text) & {"\t", "\n"}
    return text
