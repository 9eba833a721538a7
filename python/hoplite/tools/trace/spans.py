"""Spans of time: pairs the events that begin and end a transfer, fold, wait, reduce or spill. Knows no file format.

Of a pair, an event may be missing: it happened before the recording, after it, or was overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.tools.observe.folds import pairs
from hoplite.tools.observe.words import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hoplite.tools.observe.collect import Report, Row


class Pair(NamedTuple):
    """How a kind of span is recorded.

    Attributes:
        kind: kind of the span.
        ends: kinds of the events that end it.
        key: fields that both events have.
    """

    kind: str
    ends: tuple[str, ...]
    key: tuple[str, ...]


# By the kind of the event that begins the span.
PAIRS = {
    "fetch": Pair("receive", ("fetched", "fetch_failed"), ("ref", "instance")),
    "serve": Pair("send", ("served",), ("ref", "instance")),
    "fold": Pair("fold", ("folded",), ("result", "epoch", "position")),
    "wait": Pair("wait", ("reply",), ("verb", "ref", "process")),
    "reduce_begin": Pair("reduce", ("reduced",), ("result",)),
    "spill": Pair("spill", ("spilled", "spill_failed"), ("ref",)),
    "unspill": Pair("unspill", ("unspilled",), ("ref",)),
}
ENDS = {kind: (begin, pair) for begin, pair in PAIRS.items() for kind in pair.ends}

# Lists of what a node does now, with the event that began each row.
RUNNING = {"transfers": "fetch", "folds": "fold", "waits": "wait", "reduces": "reduce_begin"}

# Two sides of a transfer begin at about the same time.
MATCH_S = 5.0


@dataclass
class Span:
    """What a node did for some time.

    Attributes:
        kind: "receive", "send", "fold", "wait", "reduce", "spill" or "unspill".
        node: id of the node.
        ref: the object.
        begin: Unix seconds.
        end: Unix seconds.
        fields: fields of its events.
        senders: spans that send to this one: the other side of a transfer, or the folds of children.
    """

    kind: str
    node: str
    ref: str
    begin: float
    end: float
    fields: Row
    senders: list[Span] = field(default_factory=list)

    @property
    def failure(self) -> str | None:
        """Why it failed; None if it did not."""
        return self.fields.get("error") or (self.fields.get("why") if "failed" in self.fields["ended"] else None)


class Instant(NamedTuple):
    """An event without a duration.

    Attributes:
        node: id of the node.
        time: Unix seconds.
        kind: kind of the event.
        text: the event in words.
        fields: its fields.
    """

    node: str
    time: float
    kind: str
    text: str
    fields: Row


def spans(events: Iterable[Row], reports: Iterable[Report], until: float) -> list[Span]:
    """Returns the spans of events, each with its senders.

    Args:
        events: in order of time.
        reports: the last reports, for what began before the first event and has not ended.
        until: Unix seconds of the end of the recording, where spans end that are not over.
    """
    found: list[Span] = []
    open_: defaultdict[Any, list[Row]] = defaultdict(list)
    for event in events:
        kind = event["kind"]
        if kind in PAIRS:
            open_[_key(kind, event)].append(event)
        elif kind in ENDS:
            begin, _ = ENDS[kind]
            found.append(_ended(event, _taken(open_[_key(begin, event)], event)))
    running = {
        _key(kind, begun): begun
        for report in reports
        for name, kind in RUNNING.items()
        for row in report.activity.get(name, ())
        for begun in [{**row, "kind": kind, "time": row["since"], "recorder": report.node}]
    }
    # A row that is also an event has more fields there.
    left = [*(event for group in open_.values() for event in group)]
    left += [row for key, row in running.items() if not open_.get(key)]
    found += [_span(event, event["time"], until, {**event, "ended": "not over"}) for event in left]
    found.sort(key=lambda span: span.begin)
    _connect(found)
    return found


def instants(events: Iterable[Row], names: Mapping[str, str]) -> list[Instant]:
    """Returns the events that neither begin nor end a span."""
    return [
        Instant(event["recorder"], event["time"], event["kind"], sentence(event, names), event)
        for event in events
        if event["kind"] not in PAIRS and event["kind"] not in ENDS
    ]


def _key(begin: str, event: Row) -> tuple[Any, ...]:
    return begin, event["recorder"], *(event.get(name) for name in PAIRS[begin].key)


def _taken(begun: list[Row], end: Row) -> Row | None:
    """Removes the event that began what `end` ended: of several, the one at the closest time."""
    if not begun:
        return None
    seconds = end.get("seconds")
    at = end["time"] - seconds if seconds is not None else begun[0]["time"]
    event = min(begun, key=lambda event: abs(event["time"] - at))
    begun.remove(event)
    return event


def _ended(end: Row, begun: Row | None) -> Span:
    kind = ENDS[end["kind"]][0]
    begin = begun["time"] if begun is not None else end["time"] - (end.get("seconds") or 0.0)
    fields = {**(begun or {}), **end, "kind": kind, "ended": end["kind"]}
    return _span({**end, "kind": kind}, begin, end["time"], fields)


def _span(event: Row, begin: float, end: float, fields: Row) -> Span:
    ref = str(event.get("result") or event.get("ref"))
    return Span(PAIRS[event["kind"]].kind, event["recorder"], ref, begin, max(begin, end), fields)


def _connect(found: list[Span]) -> None:
    """Finds the senders of each span."""
    sends: defaultdict[Any, list[Span]] = defaultdict(list)
    folds = {id(span.fields): span for span in found if span.kind == "fold"}
    for span in found:
        if span.kind == "send":
            sends[span.node, span.fields.get("reader"), span.fields.get("instance")].append(span)
    for span in found:
        if span.kind == "receive":
            there = sends[span.fields.get("source"), span.node, span.fields.get("instance")]
            near = [one for one in there if one.begin <= span.end + MATCH_S and one.end >= span.begin - MATCH_S]
            if near:
                closest = min(near, key=lambda one: abs(one.begin - span.begin))
                span.senders = [closest]
                there.remove(closest)
    for child, parent in pairs([span.fields for span in found if span.kind == "fold"]):
        folds[id(parent)].senders.append(folds[id(child)])
