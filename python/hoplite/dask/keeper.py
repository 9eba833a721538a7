"""A worker's side of its host's node: which worker starts it, how the others find it, and who keeps it running.

The node is a process of its own (`host.py`), for it shall outlive each single worker. It ends with the last link.
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

# Between two looks at a lock that another worker of the host holds.
LOCK_POLL_S = 0.02
# A start takes a second; a busy machine may take many times that.
START_TIMEOUT_S = 60.0
# What a node of this installation takes from the environment; the rest is meant for other nodes.
KEPT = ("HOPLITE_RACK", "HOPLITE_TOPOLOGY", "HOPLITE_LOG_LEVEL", "HOPLITE_DETECTION_TIMEOUT", "HOPLITE_LEAVE_TIMEOUT")


class Paths(NamedTuple):
    """Where on this host the files of an installation are.

    Attributes:
        socket: of the node.
        keeper: the socket whose connections keep the node running.
        lock: held while one worker looks for the node, or starts it.
    """

    socket: str
    keeper: str
    lock: str

    @classmethod
    def of(cls, installation: str) -> Paths:
        """Those of an installation, in this user's runtime folder.

        Raises:
            HopliteError: there is no such folder, or others may look into it.
        """
        folder = sockets.runtime_dir()
        base = f"{folder}/dask-{installation}"
        return cls(f"{base}.sock", f"{base}.keep", f"{folder}/dask.lock")


class Link(NamedTuple):
    """A connection that keeps the host's node running.

    Attributes:
        address: where other nodes join the node.
        id: the node's identity.
        reader: ends when the node has ended.
        writer: takes the farewell.
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
        """Lets the node end if no other worker has a link; returns when it has ended, or will stay for others."""
        with contextlib.suppress(OSError):
            self.writer.write(host.BYE)
            await self.writer.drain()
        await self.ended()
        self.writer.close()


async def attach(paths: Paths, start: Callable[[], Awaitable[None]]) -> Link:
    """Finds the host's node, or starts it: one worker at a time.

    Args:
        paths: of the installation.
        start: starts the node.

    Raises:
        HopliteError: whatever `start` raises, or the node ended at once.
    """
    async with _locked(paths.lock):
        link = await _connect(paths.keeper)
        if link is not None:
            return link
        await start()
        link = await _connect(paths.keeper)
    if link is None:
        raise HopliteError("the Hoplite node of this host ended as it was started; the worker's stderr says why")
    return link


def start(settings: dict[str, Any]) -> None:
    """Starts the host's node and waits until it is a member.

    Args:
        settings: of the node, as `host` reads them. They go through a pipe: they have the secret of the cluster.

    Raises:
        HopliteError: the node did not start; of the class that the node raised.
    """
    environment = {name: text for name, text in os.environ.items() if not name.startswith("HOPLITE_") or name in KEPT}
    process = subprocess.Popen(
        # -P: the folder of that file is no place to import from.
        [sys.executable, "-P", host.__file__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # What ends a worker, such as Ctrl-C, is not meant for the node.
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
    # It outlives this worker, or else has to be reaped.
    threading.Thread(target=process.wait, name="hoplite-reaper", daemon=True).start()
    said = json.loads(line) if line.endswith("\n") else {}
    if "error" in said:
        kind = getattr(errors, said["kind"], HopliteError)
        raise kind(f"the Hoplite node of host {socket.gethostname()} did not start: {said['error']}")
    if "ready" not in said:
        raise HopliteError(
            f"the Hoplite node of host {socket.gethostname()} did not start; the worker's stderr says why"
        )


async def _connect(keeper: str) -> Link | None:
    """A link to the running node of this host; None if there is none."""
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
    """Holds a lock among the workers of this host, in a loop that goes on meanwhile."""
    with Path(path).open("a") as file:  # noqa: ASYNC230 - opens at once
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOCK_POLL_S)
        yield
