"""The process of a host's node: it runs the node while a worker of the host has a link to it.

It reads its settings from stdin as one line of JSON, written by a worker, and replies with one line on stdout. It does
not import Dask, so its memory is that of the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from hoplite import Node
from hoplite._aside import in_own_thread
from hoplite.errors import HopliteError

# The farewell of a worker that leaves, so that the node does not wait for its return.
BYE = b"bye\n"
# Time for a killed worker to return, restarted by its nanny.
GRACE_S = 15.0
# Interval between checks for a failed node.
FAILURE_EVERY_S = 0.5
# Timeout for the transfer of objects that only this node holds.
LEAVE_TIMEOUT_S = 30.0


class Keeper:
    """Counts the links of workers, to end the node after the last one.

    Args:
        ready: the line sent to each worker.

    Attributes:
        over: set when the last worker has left.
        left: set when the node has left the cluster.
    """

    def __init__(self, ready: bytes) -> None:
        self._ready = ready
        self._links: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()
        self.left = asyncio.Event()
        # The worker that started this process may die before it has a link.
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self.over.set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves the link of one worker. The link of a late worker stays open until the node has left."""
        self._links.add(writer)
        if not self.over.is_set():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            said = b""
            with contextlib.suppress(OSError):
                writer.write(self._ready)
                said = await reader.readline()
            if said == BYE and len(self._links) == 1:
                self.over.set()
            if not self.over.is_set():
                self._links.discard(writer)
                writer.close()
                if not self._links:
                    self._wait()
                return
        await self.left.wait()
        writer.close()

    def end(self) -> None:
        """Closes all links, because the node has left the cluster."""
        self.left.set()
        for writer in self._links:
            writer.close()


async def _keep(node: Node, path: str, ready: dict[str, str]) -> None:
    """Serves workers until the node has left the cluster."""
    loop = asyncio.get_running_loop()
    keeper = Keeper(json.dumps(ready).encode() + b"\n")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, keeper.over.set)
    server = await asyncio.start_unix_server(keeper.serve, path)
    sys.stdout.write(json.dumps({"ready": ready}) + "\n")
    sys.stdout.close()
    while not keeper.over.is_set() and node.failure is None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(keeper.over.wait(), FAILURE_EVERY_S)
    keeper.over.set()
    await in_own_thread(node.close, LEAVE_TIMEOUT_S)
    # Remove the sockets before a waiting worker starts the next node.
    for file in (path, node.socket):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)  # noqa: PTH108 - ASYNC240 rejects pathlib here
    keeper.end()
    server.close()


def main() -> int:
    """Runs until the last worker has left. Returns 1 if the node did not start, otherwise 0."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    path = settings.pop("keeper")
    try:
        with Node(**settings) as node:
            # A killed node leaves this file.
            Path(path).unlink(missing_ok=True)
            asyncio.run(_keep(node, path, {"address": node.address, "id": node.id}))
    except HopliteError as error:
        if sys.stdout.closed:
            raise
        sys.stdout.write(json.dumps({"error": str(error), "kind": type(error).__name__}) + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
