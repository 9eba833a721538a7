"""The Trace Event Format of Chrome, which https://ui.perfetto.dev opens.

Each node is a process of the trace. Its tracks are the kinds of its spans and the processes that wait at it. Spans that
overlap are on tracks of their own. Arrows lead from senders to receivers.

Source: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hoplite.tools.observe.words import node_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hoplite.tools.observe.collect import Row
    from hoplite.tools.trace.spans import Instant, Span

# Tracks of a node, from the top.
TRACKS = ("reduce", "fold", "receive", "send", "spill", "unspill", "events")

# Smallest time between events whose order matters.
TICK_S = 1e-6

# Fields that the trace shows elsewhere.
HIDDEN = {"serial", "time", "kind", "recorder", "since"}


def chrome(
    spans: Sequence[Span], instants: Sequence[Instant], names: Mapping[str, str], about: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the parts of the file, whose times are microseconds since the first event.

    Args:
        spans: in order of their begin.
        instants: events without a duration.
        names: names of the nodes, by id.
        about: facts about the recording.
    """
    zero = min(itertools.chain((span.begin for span in spans), (one.time for one in instants)), default=0.0)
    head = {"displayTimeUnit": "ms", "otherData": {**about, "begin": zero}}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for row in _rows(spans, instants, names, zero):
        yield separator + json.dumps(row)
        separator = ",\n"
    yield "\n]}\n"


def _rows(spans: Sequence[Span], instants: Sequence[Instant], names: Mapping[str, str], zero: float) -> Iterator[Row]:
    pids = {node: number for number, node in enumerate(names, 1)}
    for node in [*(span.node for span in spans), *(one.node for one in instants)]:
        pids.setdefault(node, len(pids) + 1)
    for node, pid in pids.items():
        name = f"node {node_name(node, names)}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    tracks = _Tracks()
    places = {id(span): (pids[span.node], tracks.place(span)) for span in spans}
    events = {node: tracks.number(node, "events", 0) for node in pids}
    for (node, track, lane), tid in tracks.numbers.items():
        where = {"ph": "M", "pid": pids[node], "tid": tid}
        yield {**where, "name": "thread_name", "args": {"name": track if lane == 0 else f"{track} ({lane + 1})"}}
        order = TRACKS.index(track) if track in TRACKS else len(TRACKS)
        yield {**where, "name": "thread_sort_index", "args": {"sort_index": order * 1000 + tid}}
    for span in spans:
        pid, tid = places[id(span)]
        verb = span.fields.get("verb", span.kind)
        yield {
            "ph": "X",
            "name": f"{verb} {span.ref}",
            "cat": span.kind,
            "pid": pid,
            "tid": tid,
            **_lasts(span.begin, span.end, zero),
            "args": _arguments(span.fields, names),
        }
    for one in instants:
        where = {"pid": pids[one.node], "tid": events[one.node], "ts": _micros(one.time - zero)}
        arguments = _arguments(one.fields, names)
        yield {"ph": "i", "s": "t", "name": one.text, "cat": one.kind, **where, "args": arguments}
    yield from _arrows(spans, places, zero)


def _arrows(spans: Sequence[Span], places: Mapping[int, tuple[int, int]], zero: float) -> Iterator[Row]:
    """Arrows with the slices to which they lead.

    A receiver requests bytes before its source sends them, but Perfetto reverses an arrow to an earlier slice. So an
    arrow leads to a slice within the receiver's, which begins when the sender has begun.
    """
    numbers = itertools.count(1)
    for span in spans:
        pid, tid = places[id(span)]
        earliest = span.begin
        for sender in sorted(span.senders, key=lambda sender: sender.begin):
            begin = max(earliest, sender.begin + TICK_S)
            # A fold can have several, which must not overlap, and arrows of its own must not begin at them.
            end = span.end if span.kind == "receive" else begin + TICK_S
            leaves = min(begin - TICK_S, sender.end)
            # With clocks that are not aligned well enough, the receiver may end first.
            if end > span.end or begin >= end or leaves < sender.begin:
                continue
            earliest = end + TICK_S
            where: Row = {"cat": "arrow", "pid": pid, "tid": tid, "ts": _micros(begin - zero)}
            yield {"ph": "X", "name": f"from {sender.kind}", **where, **_lasts(begin, end, zero)}
            arrow: Row = {"id": next(numbers), "name": sender.kind}
            from_pid, from_tid = places[id(sender)]
            yield {"ph": "s", **where, **arrow, "pid": from_pid, "tid": from_tid, "ts": _micros(leaves - zero)}
            yield {"ph": "f", **where, **arrow, "bp": "e"}


class _Tracks:
    """Numbers of tracks. Spans of one kind that overlap get different ones."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str, int], int] = {}
        # Free and used lanes of each track: their numbers, and ends with numbers.
        self._free: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._used: defaultdict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)

    def place(self, span: Span) -> int:
        """Returns the number of the track of a span. Call it in order of their begin."""
        process = span.fields.get("process")
        track = f"process {process}" if span.kind == "wait" and process is not None else span.kind
        key = span.node, track
        free, used = self._free[key], self._used[key]
        while used and used[0][0] <= span.begin:
            heapq.heappush(free, heapq.heappop(used)[1])
        lane = heapq.heappop(free) if free else len(used)
        heapq.heappush(used, (span.end, lane))
        return self.number(*key, lane)

    def number(self, node: str, track: str, lane: int) -> int:
        """Returns the number of a lane of a track."""
        return self.numbers.setdefault((node, track, lane), len(self.numbers) + 1)


def _arguments(fields: Row, names: Mapping[str, str]) -> Row:
    shown = {name: value for name, value in fields.items() if name not in HIDDEN and value is not None}
    return {name: names.get(value, value) if isinstance(value, str) else value for name, value in shown.items()}


def _lasts(begin: float, end: float, zero: float) -> Row:
    """Begin and duration of a slice in microseconds. Slices with the same end end in the same nanosecond."""
    first, last = (round((time - zero) * 1e9) for time in (begin, end))
    return {"ts": first / 1e3, "dur": (last - first) / 1e3}


def _micros(seconds: float) -> float:
    return round(seconds * 1e9) / 1e3
