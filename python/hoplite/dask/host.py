"""The process of a host's node: serves it for as long as a worker of the host has a link to it.

Reads its settings as one line of JSON from stdin, which a worker writes, and answers with one line. It imports no Dask:
its memory is the node's.
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
from hoplite.errors import HopliteError

# What a worker that leaves says, so that nothing waits for it to come back.
BYE = b"bye\n"
# A worker that was killed comes back within this time if it has a nanny.
GRACE_S = 15.0
# Between two looks whether the node has ended itself.
FAILURE_EVERY_S = 0.5
# For handing over what only this node holds.
LEAVE_TIMEOUT_S = 30.0


class Keeper:
    """Counts the links of workers.

    Args:
        ready: what a worker is told.

    Attributes:
        over: set when the last worker is gone.
        left: set when the node has left the cluster.
    """

    def __init__(self, ready: bytes) -> None:
        self._ready = ready
        self._links: set[asyncio.StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()
        self.left = asyncio.Event()
        # The worker that has started this process may die before it has a link.
        self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(GRACE_S, self.over.set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Holds the link of one worker; that of one that comes too late until the node has left."""
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
        """Closes all links: the node has left."""
        self.left.set()
        for writer in self._links:
            writer.close()


async def _keep(node: Node, path: str, ready: dict[str, str]) -> None:
    """Returns when the node has left."""
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
    await asyncio.to_thread(node.close, LEAVE_TIMEOUT_S)
    # Before a worker that waits starts the next one.
    for file in (path, node.socket):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)  # noqa: PTH108 - pathlib's are none for a loop
    keeper.end()
    server.close()


def main() -> int:
    """Runs until the last worker has left; the exit code is 0 unless the node did not start."""
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    path = settings.pop("keeper")
    try:
        with Node(**settings) as node:
            # A file that a killed node has left.
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
