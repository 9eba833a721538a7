"""Observes a cluster: queries all nodes once per second while anybody looks, and keeps the last ten minutes.

Shared by all viewers of a process. Runs in the event loop of its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite.tools.observe.collect import Collector
from hoplite.tools.observe.frames import BUDGET, Model, Viewer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from hoplite import Client
    from hoplite.tools.observe.collect import Row

INTERVAL_S = 1.0
# Time limit of a request to one node.
TIMEOUT_S = 2.0
# Events per second that are read from all nodes together. Older ones count as skipped.
EVENTS_PER_TICK = 5000
# Nodes whose metrics are read per tick, in turn. Each reply lists all members.
METRICS_PER_TICK = 16
# Prefixes whose newest version is looked up per tick, in turn.
LOOKUPS_PER_TICK = 16
# Seconds without a viewer after which no node is queried any more.
LINGER_S = 10.0


class Observer:
    """The activity of a cluster, as seen from one node.

    Args:
        client: attached to any node. It is not closed.
        now: returns Unix seconds.
    """

    def __init__(self, client: Client, *, now: Callable[[], float] = time.time) -> None:
        self.model = Model()
        # What the last tick failed with; None if this client's node replied.
        self.failure: str | None = None
        self._client: Any = client
        self._now = now
        self._collector = Collector(client, most=EVENTS_PER_TICK, timeout=TIMEOUT_S, clock=now)
        self._turns = itertools.count()
        self._task: asyncio.Task[None] | None = None
        self._ticked = asyncio.Condition()
        self._starting = asyncio.Lock()
        self._looked = 0.0
        self._closed = False

    async def texts(self, budget: int = BUDGET) -> AsyncGenerator[str, None]:
        """Yields a frame as JSON once per second, or less often if frames exceed the budget in bytes per second.

        Yields nothing while this client's node does not reply, so that viewers see that frames are missing.
        """
        viewer = Viewer(self.model, budget)
        async for _ in self.ticks():
            text = viewer.text(self._now()) if self.failure is None else None
            if text is not None:
                yield text

    async def frames(self) -> AsyncIterator[Row]:
        """Yields a frame once per second, for a viewer in this process."""
        viewer = Viewer(self.model)
        async for _ in self.ticks():
            yield viewer.frame(self._now())

    async def ticks(self) -> AsyncIterator[None]:
        """Yields after each tick, at first immediately. Nodes are queried while such an iterator is in use.

        It ends when the observer is closed.
        """
        await self.look()
        while not self._closed:
            yield
            async with self._ticked:
                await self.look()
                if not self._closed:
                    await self._ticked.wait()

    async def look(self) -> None:
        """Makes the observer query the nodes for the next seconds; waits for the first replies."""
        self._looked = time.monotonic()
        async with self._starting:
            if not self._closed and (self._task is None or self._task.done()):
                await self.tick()
                self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stops querying the nodes, and ends all iterators."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            # Viewers have got the error of a tick that failed.
            await asyncio.wait([self._task])
            self._task = None
        async with self._ticked:
            self._ticked.notify_all()

    async def _run(self) -> None:
        begun = time.monotonic()
        while time.monotonic() - self._looked < LINGER_S:
            await asyncio.sleep(max(INTERVAL_S - (time.monotonic() - begun), 0.05))
            begun = time.monotonic()
            try:
                await self.tick()
            finally:
                # After an unexpected error, each viewer tries a tick of its own and gets the error.
                async with self._ticked:
                    self._ticked.notify_all()

    async def tick(self) -> None:
        """Queries all nodes once and updates the model."""
        try:
            snapshot = await self._collector.collect()
            replied = [report.node for report in snapshot.reports if report.note is None]
            metrics = await self._metrics(replied, snapshot.status["id"])
            await self._look_up()
        except HopliteError as error:
            self.failure = str(error)
            return
        self.failure = None
        self.model.update(self._now(), snapshot, metrics)

    async def _metrics(self, members: list[str], own: str) -> dict[str, Row]:
        turn = next(self._turns)
        others = [node for node in members if node != own]
        queried = [own, *_in_turn(others, turn, METRICS_PER_TICK)]
        replies = await asyncio.gather(*map(self._metrics_of, queried))
        return {node: reply for node, reply in zip(queried, replies, strict=True) if reply is not None}

    async def _metrics_of(self, node: str) -> Row | None:
        try:
            reply: Row = await self._client.inspect_async("metrics", node=node, timeout=TIMEOUT_S)
        except HopliteError:
            # Its activity reports that it does not reply.
            return None
        return reply

    async def _look_up(self) -> None:
        """Finds the newest versions of some prefixes, since other nodes may put them."""
        prefixes = _in_turn(self.model.readers.prefixes(), next(self._turns), LOOKUPS_PER_TICK)
        for prefix in prefixes:
            with contextlib.suppress(HopliteError):
                found = await self._client.latest_async(prefix, timeout=0)
                self.model.readers.note(prefix, found.number)


def _in_turn(items: list[str], turn: int, count: int) -> list[str]:
    """Returns the next items of a list, so that all have a turn."""
    if len(items) <= count:
        return items
    start = turn * count % len(items)
    return [*items[start : start + count], *items[: max(start + count - len(items), 0)]]
