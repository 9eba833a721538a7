"""The delay of a small object at a node whose only peer is busy with thousands of requests of its own clients.

`python -m gate.busy SOCKET` is a program of the busy node: it puts and deletes small objects, many at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING

import hoplite
from gate.figures import IDLE, NODES, Figure, Group, start
from hoplite.testing import node_process

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hoplite.testing import NodeProcess

PROGRAMS, IN_FLIGHT, NBYTES = 4, 2000, 64
IDLE_S, BUSY_S, BLOCKS = 5.0, 30.0, 5
LOOK_S, TIMEOUT_S = 0.05, 60.0


def measure(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Measures a named put and get at node B while programs keep node A busy, and whether B declares A dead."""
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(node_process())
        b = stack.enter_context(node_process("--join", a.address))
        client = stack.enter_context(b.client())
        names = (f"{number}" for number in range(sys.maxsize))
        _delays(client, names, IDLE_S / BLOCKS)
        idle = statistics.median(_slowest(_delays(client, names, IDLE_S / BLOCKS)) for _ in range(BLOCKS))
        for _ in range(PROGRAMS):
            start(stack, "gate.busy", a.socket)
        with _watched(b, a.id) as deaths:
            busy = [_slowest(_delays(client, names, BUSY_S / BLOCKS)) for _ in range(BLOCKS)]
    shown = f"{1000 * statistics.median(busy):.3g} ms, idle {1000 * idle:.2g} ms"
    yield Figure("busy-node/p99", [one / idle for one in busy], IDLE, shown=shown)
    yield Figure("busy-node/declared-dead", [float(bool(deaths))], NODES)


def _delays(client: hoplite.Client, names: Iterator[str], seconds: float) -> list[float]:
    """The times of puts and gets of small named objects, one after the other, for some seconds."""
    found = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        name = f"delay/{next(names)}"
        client.put(bytes(NBYTES), name=name, timeout=TIMEOUT_S)
        client.get(name, timeout=TIMEOUT_S)
        found.append(time.perf_counter() - begun)
        client.delete(name, timeout=TIMEOUT_S)
    return found


def _slowest(delays: list[float]) -> float:
    """The 99th percentile; of fewer than a hundred delays, the slowest."""
    return sorted(delays)[max(0, -(-99 * len(delays) // 100) - 1)]


@contextlib.contextmanager
def _watched(node: NodeProcess, member: str) -> Iterator[list[float]]:
    """Notes, during the block, the times at which a member is missing from a node's list."""
    missing: list[float] = []
    over = threading.Event()

    def watch() -> None:
        with node.client() as client:
            while not over.wait(LOOK_S):
                if member not in [other["id"] for other in client.status()["members"]]:
                    missing.append(time.monotonic())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield missing
    finally:
        over.set()
        watching.join()


async def _keep_busy(client: hoplite.Client) -> None:
    async def one() -> None:
        while True:
            await client.delete_async(await client.put_async(bytes(NBYTES)))

    await asyncio.gather(*(one() for _ in range(IN_FLIGHT)))


def main(socket: str) -> None:
    """Attaches to a node, and puts and deletes until it is killed."""
    with hoplite.connect(f"unix:{socket}") as client:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        asyncio.run(_keep_busy(client))


GROUP = Group(["busy-node"], measure, needs_root=False)

if __name__ == "__main__":
    main(sys.argv[1])
