"""What all nodes recorded, on one clock: pages of events from every member at the same time.

A node that does not reply becomes a note. Does not interpret events.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite.tools.observe.clocks import Clock, Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client

# A record of a node: a dict whose fields depend on its kind. Newer and older nodes have other kinds and fields.
Row = dict[str, Any]

# Events per request, the most that a node sends.
PAGE = 2500

# Time limit of one request. A node replies in milliseconds, unless it fails.
TIMEOUT_S = 3.0
# Time limit for a node that did not reply to the last request, so that it does not delay the others each time.
AGAIN_S = 0.5

# After the newest event of any node.
NEWEST = (1 << 53) - 1

# The offset of a clock before the first reply.
UNKNOWN = Offset(0.0, float("inf"))

# Lists of a reply whose rows have the time `since`.
RUNNING = ("transfers", "folds", "reduces", "waits", "reads")


@dataclass
class Report:
    """What one node reported.

    Attributes:
        node: id of the node.
        name: its address, or the start of its id.
        offset: the offset of its clock, which `events` and `activity` no longer have.
        events: new events, in the order of the node; `time` is on this process's clock, `recorder` is the node's id.
        activity: the other fields of the reply to `inspect("activity")`; empty without a reply.
        missed: number of events that the node overwrote before they were read.
        oldest: Unix seconds of the oldest event that was read, also if it was not retained; None without events.
        note: why the node did not reply; None if it did.
    """

    node: str
    name: str
    offset: Offset = UNKNOWN
    events: list[Row] = field(default_factory=list)
    activity: Row = field(default_factory=dict)
    missed: int = 0
    oldest: float | None = None
    note: str | None = None


@dataclass
class Snapshot:
    """What all members reported at about the same time.

    Attributes:
        time: Unix seconds of this process's clock.
        status: the status of this client's node.
        reports: a report of each member.
    """

    time: float
    status: Row
    reports: list[Report]

    @property
    def names(self) -> dict[str, str]:
        """Names of the nodes, by id."""
        return {report.node: report.name for report in self.reports}

    def events(self, since: float = 0.0) -> list[Row]:
        """Returns the new events, in order of time.

        Args:
            since: Unix seconds of this process's clock; earlier events are left out.
        """
        found = (event for report in self.reports for event in report.events if event["time"] >= since)
        return sorted(found, key=lambda event: event["time"])

    def notes(self, since: float = 0.0) -> list[str]:
        """Returns what is missing, in sentences.

        Args:
            since: Unix seconds of this process's clock; what nodes recorded before is not missing.
        """
        found = [f"{report.name} did not report: {report.note}" for report in self.reports if report.note]
        short = (report for report in self.reports if report.missed and (report.oldest or self.time) > since)
        return found + [f"{report.name} has overwritten its {report.missed} oldest events" for report in short]


class Collector:
    """Reads the activity of all members, each event once.

    Args:
        client: attached to any node of the cluster.
        history: whether the first snapshot has the events that the nodes recorded before.
        most: maximum number of events per snapshot, in equal shares of the members. Older ones count as missed.
        keep: which events to retain, by the event and its Unix seconds on this process's clock; None retains all.
        timeout: time limit of a request to one node, in seconds.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        history: bool = True,
        most: int | None = None,
        keep: Callable[[Row, float], bool] | None = None,
        timeout: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client: Any = client
        self._most = most
        self._keep = keep
        self._timeout = timeout
        self._now = clock
        self._first = 0 if history else NEWEST
        # Serial of the next event, by id of the node.
        self._next: dict[str, int] = {}
        self._clocks: dict[str, Clock] = {}
        # Nodes that did not reply to the last request.
        self._silent: set[str] = set()
        # Names of members, also of those that left: their ids remain in events.
        self.names: dict[str, str] = {}

    async def collect(self) -> Snapshot:
        """Requests the new events of all members.

        Raises:
            HopliteError: this client's node does not reply.
        """
        status: Row = await self._client.status_async()
        for member in (*status["members"], *status.get("lost", ())):
            self.names[member["id"]] = member["address"] or member["id"][:8]
        members = [member["id"] for member in status["members"]]
        for gone in self._next.keys() - members:
            del self._next[gone]
            self._clocks.pop(gone, None)
        share = PAGE if self._most is None else max(1, self._most // max(1, len(members)))
        reports = await asyncio.gather(*(self._report(node, share) for node in members))
        self._silent = {report.node for report in reports if report.note}
        # All events of members that join later are new.
        self._first = 0
        reports += [
            Report(lost["id"], self.names[lost["id"]], note=f"failed {lost['seconds']:.0f} s ago: {lost['reason']}")
            for lost in status.get("lost", ())
        ]
        return Snapshot(self._now(), status, reports)

    async def _report(self, node: str, share: int) -> Report:
        report = Report(node, self.names[node])
        clock = self._clocks.setdefault(node, Clock())
        after = self._next.get(node, self._first)
        # Serial at which this snapshot ends: a busy node records more meanwhile.
        end = None
        timeout = min(self._timeout, AGAIN_S) if node in self._silent else self._timeout
        try:
            while end is None or after < end:
                sent = self._now()
                reply: Row = await self._client.inspect_async(
                    "activity", node=node, after=after, limit=min(share, PAGE), timeout=timeout
                )
                clock.add(sent, self._now(), reply["time"])
                report.missed += max(0, reply["first"] - after) if after != NEWEST else 0
                end = reply["next"] if end is None else end
                events = reply.pop("events")
                if self._most is not None and events and end - events[0]["serial"] > share:
                    # Too many: continue with the newest.
                    report.missed += end - share - events[0]["serial"]
                    after = end - share
                    continue
                offset = clock.offset(self._now()).seconds
                if events and report.oldest is None:
                    report.oldest = events[0]["time"] - offset
                report.events += [
                    event for event in events if self._keep is None or self._keep(event, event["time"] - offset)
                ]
                report.activity = reply
                after = self._next[node] = events[-1]["serial"] + 1 if events else reply["next"]
        except HopliteError as error:
            report.note = str(error)
        self._align(report, clock.offset(self._now()))
        return report

    def _align(self, report: Report, offset: Offset) -> None:
        report.offset = offset
        report.events = [
            {**event, "time": event["time"] - offset.seconds, "recorder": report.node} for event in report.events
        ]
        for name in RUNNING:
            for row in report.activity.get(name, ()):
                row["since"] = row.get("since", report.activity["time"]) - offset.seconds


def collect(client: Client, keep: Callable[[Row, float], bool] | None = None) -> Snapshot:
    """Reads the activity of all members once, for programs without an event loop.

    Args:
        client: attached to any node of the cluster.
        keep: which events to retain, as in `Collector`.

    Raises:
        HopliteError: this client's node does not reply.
    """
    return asyncio.run(Collector(client, keep=keep).collect())
