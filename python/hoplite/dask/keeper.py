"""A worker's link to its host's node: one worker starts the node, and the others connect to it.

The node is a separate process (`host.py`), so that it outlives single workers. It ends with the last link.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import errors, sockets
from hoplite.dask import host
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

# Interval between attempts to take a lock that another worker of the host holds.
LOCK_POLL_S = 0.02
# Timeout of a start. It takes a second, on a busy machine many times that.
START_TIMEOUT_S = 60.0
# Variables that a node of this installation inherits. Other HOPLITE_ variables configure other nodes.
KEPT = ("HOPLITE_RACK", "HOPLITE_TOPOLOGY", "HOPLITE_LOG_LEVEL", "HOPLITE_DETECTION_TIMEOUT", "HOPLITE_LEAVE_TIMEOUT")


class Paths(NamedTuple):
    """Paths of an installation's files on this host.

    Attributes:
        socket: the socket of the node.
        keeper: the socket whose connections keep the node running.
        lock: the lock file of the worker that finds or starts the node.
    """

    socket: str
    keeper: str
    lock: str

    @classmethod
    def of(cls, installation: str) -> Paths:
        """Returns the paths of an installation, in this user's runtime folder.

        Raises:
            HopliteError: the folder can't be created, or other users can read it.
        """
        folder = sockets.runtime_dir()
        base = f"{folder}/dask-{installation}"
        return cls(f"{base}.sock", f"{base}.keep", f"{folder}/dask.lock")


class Link(NamedTuple):
    """A connection that keeps the host's node running.

    Attributes:
        address: the address at which other nodes join.
        id: the node id.
        reader: reaches its end when the node has ended.
        writer: sends the farewell.
    """

    address: str
    id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ended(self) -> None:
        """Waits until the node has ended."""
        with contextlib.suppress(OSError):
            await self.reader.read()

    async def leave(self) -> None:
        """Releases the link. Returns when the node has ended, or at once if it stays for other workers."""
        with contextlib.suppress(OSError):
            self.writer.write(host.BYE)
            await self.writer.drain()
        await self.ended()
        self.writer.close()


async def attach(paths: Paths, start: Callable[[], Awaitable[None]]) -> Link:
    """Finds or starts the host's node, one worker at a time.

    Args:
        paths: the paths of the installation.
        start: starts the node.

    Raises:
        HopliteError: raised by `start`, or the node ended at once.
    """
    async with _locked(paths.lock):
        link = await _connect(paths.keeper)
        if link is not None:
            return link
        await start()
        link = await _connect(paths.keeper)
    if link is None:
        raise HopliteError("the Hoplite node of this host exited during startup: check the worker's stderr")
    return link


def start(settings: dict[str, Any]) -> None:
    """Starts the host's node and waits until it is a member.

    Args:
        settings: the settings of the node, as `host` reads them. A pipe transfers them, because they contain the
            secret of the cluster.

    Raises:
        HopliteError: the node did not start; the class is that of the node's error.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith("HOPLITE_") or name in KEPT}
    process = subprocess.Popen(
        # -P: do not import from the folder of that file.
        [sys.executable, "-P", host.__file__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A signal that ends a worker, such as Ctrl-C, must not end the node.
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as stdout:
        with contextlib.suppress(OSError), process.stdin as stdin:
            stdin.write(json.dumps(settings) + "\n")
        timer = threading.Timer(START_TIMEOUT_S, process.kill)
        timer.start()
        line = stdout.readline()
        timer.cancel()
    # Reaps the process if it ends before this worker.
    threading.Thread(target=process.wait, name="hoplite-reaper", daemon=True).start()
    said = json.loads(line) if line.endswith("\n") else {}
    if "error" in said:
        kind = getattr(errors, said["kind"], HopliteError)
        raise kind(f"the Hoplite node of host {socket.gethostname()} did not start: {said['error']}")
    if "ready" not in said:
        raise HopliteError(f"the Hoplite node of host {socket.gethostname()} did not start: check the worker's stderr")


async def _connect(keeper: str) -> Link | None:
    """Connects to the running node of this host; returns None if there is none."""
    try:
        reader, writer = await asyncio.open_unix_connection(keeper)
        line = await reader.readline()
    except OSError:
        return None
    if not line:
        writer.close()
        return None
    said = json.loads(line)
    return Link(said["address"], said["id"], reader, writer)


@contextlib.asynccontextmanager
async def _locked(path: str) -> AsyncIterator[None]:
    """Holds a lock among the workers of this host, without blocking the event loop."""
    with Path(path).open("a") as file:  # noqa: ASYNC230 - opens at once
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield
