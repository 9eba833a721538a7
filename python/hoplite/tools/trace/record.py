"""Recording of a cluster's activity for a time, until a signal or a deadline. Knows no file format."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoplite.tools.observe.collect import Collector

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client
    from hoplite.tools.observe.collect import Report, Row, Snapshot

# Interval between two requests: shorter than the time in which a busy node overwrites its events.
EVERY_S = 0.5

ENDS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Recording:
    """What was recorded.

    Attributes:
        events: in order of time.
        reports: the last report of each node.
        names: names of the nodes, by id.
        begun: Unix seconds of its begin.
        ended: Unix seconds of its end.
        notes: what is missing, in sentences.
        error: largest error of the clock of a node, in seconds.
    """

    begun: float
    ended: float = 0.0
    events: list[Row] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: float = 0.0

    def add(self, snapshot: Snapshot, names: dict[str, str]) -> None:
        """Adds a snapshot."""
        self.events += snapshot.events(self.begun)
        self.reports = snapshot.reports
        self.ended = snapshot.time
        self.names = dict(names)
        self.notes += [note for note in snapshot.notes(self.begun) if note not in self.notes]
        self.error = max((report.offset.error for report in snapshot.reports if not report.note), default=0.0)


def past(client: Client, seconds: float) -> Recording:
    """Returns the last seconds, from what the nodes still have."""

    async def once() -> Recording:
        recording = Recording(time.time() - seconds)
        collector = Collector(client, keep=lambda _, at: at >= recording.begun)
        recording.add(await collector.collect(), collector.names)
        return recording

    return asyncio.run(once())


def record(client: Client, seconds: float, show: Callable[[float], None]) -> Recording:
    """Records until the time is over, or until a signal (SIGINT, SIGTERM).

    Args:
        client: attached to a node of the cluster.
        seconds: how long to record.
        show: called with the seconds recorded so far.
    """
    return asyncio.run(_record(client, seconds, show))


async def _record(client: Client, seconds: float, show: Callable[[float], None]) -> Recording:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        over.set()
        # A second signal ends the process.
        for number in ENDS:
            loop.remove_signal_handler(number)

    for number in ENDS:
        loop.add_signal_handler(number, end)
    collector = Collector(client, history=False)
    recording = Recording(time.time())
    begun = time.monotonic()
    while True:
        recording.add(await collector.collect(), collector.names)
        elapsed = time.monotonic() - begun
        show(min(elapsed, seconds))
        if over.is_set() or elapsed >= seconds:
            break
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(over.wait(), min(EVERY_S, seconds - elapsed))
    recording.events.sort(key=lambda event: event["time"])
    return recording
