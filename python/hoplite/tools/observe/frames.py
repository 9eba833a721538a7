"""What the live page and `hoplite top` show: the state of the cluster now, as frames of plain rows.

`Model` computes the rows from what the nodes report; `Viewer` composes the frames of one viewer within its budget. Both
take the time as an argument. Does not know how reports are fetched.
"""

from __future__ import annotations

import collections
import itertools
import json
from typing import TYPE_CHECKING, NamedTuple

from hoplite.tools.observe.flows import EDGES_MAX, Flows
from hoplite.tools.observe.meters import NOTHING, Meters
from hoplite.tools.observe.readers import Readers
from hoplite.tools.observe.words import node_name, sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hoplite.tools.observe.collect import Report, Row, Snapshot
    from hoplite.tools.observe.flows import Edge

# What the model remembers: at most this many rows, and none older.
HISTORY_MAX = 10_000
HISTORY_S = 600.0

# What a frame shows at most.
NODES_MAX = 1000
WAITS_MAX = 50
# Characters of the reason of a wait: enough for a full store with its largest objects.
REASON_MAX = 400
EVENTS_MAX = 40
SPANS_MAX = 60
OPEN_MAX = 60

# Replies that a node may miss before it counts as silent.
MISSED_MAX = 2

# Bytes per second of a viewer, averaged over this many seconds.
BUDGET = 50_000
WINDOW_S = 5.0
# Edges of a tree and open spans in a frame. Frames larger than the budget of one second have fewer.
EDGES = (EDGES_MAX, 24, 8)
# Seconds between frames with all nodes. The others have only nodes that changed.
FULL_EVERY_S = 60.0

# Events that end something, and the kind of its span.
SPANS = {
    "fetched": "receive",
    "served": "send",
    "folded": "fold",
    "reply": "wait",
    "reduced": "reduce",
    "spilled": "spill",
    "unspilled": "spill",
}

# Why a request waits, if no transfer or reduce explains it.
REASONS = {
    "put": "the store has no free memory",
    "create": "the store has no free memory",
    "latest": "no newer version exists yet",
    "delete": "nodes with a copy have not confirmed",
}


class Recorded(NamedTuple):
    """An event of a node.

    Attributes:
        number: position among all events; those of one report are consecutive.
        node: the node that recorded it.
        event: the event.
    """

    number: int
    node: str
    event: Row


class Model:
    """The state of the cluster, updated once per tick.

    Attributes:
        nodes: a row for each node, by id.
        events: recent events. Their sentences are written when they are shown, since most never are.
        spans: those of them that ended work.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Row] = {}
        self.events: collections.deque[Recorded] = collections.deque(maxlen=HISTORY_MAX)
        self.spans: collections.deque[Recorded] = collections.deque(maxlen=HISTORY_MAX)
        self.readers = Readers()
        self.trees: list[Row] = []
        self.pairs: list[Row] = []
        self.waits: list[Row] = []
        self.lags: list[Row] = []
        # Spans of transfers and folds that run. Waits are spans too.
        self.open: list[Row] = []
        self.totals: Row = {}
        self.status: Row = {}
        self.names: dict[str, str] = {}
        # Number of the next event and span, and how many events were never read.
        self.count = 0
        self.missed = 0
        self._flows = Flows()
        self._meters = Meters()
        self._silences: collections.Counter[str] = collections.Counter()
        self._gone: dict[str, float] = {}

    def update(self, now: float, snapshot: Snapshot, metrics: Mapping[str, Row]) -> None:
        """Takes what all nodes reported.

        Args:
            now: Unix seconds.
            snapshot: their activity.
            metrics: replies to `inspect("metrics")` by node, of some or all nodes.
        """
        self.status = snapshot.status
        self.names.update(snapshot.names)
        for node, reply in metrics.items():
            self._meters.read(node, reply)
        replied = [report for report in snapshot.reports if report.note is None]
        waits: list[Row] = []
        for report in replied:
            self._flows.update(now, report)
            self.readers.update(report)
            waits += self._waits_of(now, report)
            self._record(report)
        waits.sort(key=lambda row: -row["seconds"])
        self.waits = waits[:WAITS_MAX]
        self._update_nodes(now, snapshot)
        self._forget(now)
        self.pairs = self._flows.pairs()
        self.lags = self.readers.lags(now)
        self.trees = self._flows.trees(self._meters.pair_rates)
        self.open = [self._open_row(kind, ref, edge) for kind, ref, edge in self._flows.oldest(OPEN_MAX)]
        self._total(replied, len(waits))

    def history(
        self, limit: int, *, before: float | None = None, kind: str | None = None, node: str | None = None
    ) -> list[Row]:
        """Returns recent events, the newest first.

        Events with the same time as the last row are returned too, so that a request for those before it skips none.

        Args:
            limit: number of rows.
            before: Unix seconds; only events before that.
            kind: only events of this kind.
            node: only events that this node recorded.
        """
        wanted = [
            recorded
            for recorded in self.events
            if (before is None or _time(recorded) < before)
            and kind in (None, recorded.event.get("kind"))
            and node in (None, recorded.node)
        ]
        # Reports of nodes arrive one after another.
        wanted.sort(key=lambda recorded: (_time(recorded), recorded.number), reverse=True)
        shown, rest = wanted[:limit], wanted[limit:]
        if shown:
            last = _time(shown[-1])
            shown += itertools.takewhile(lambda recorded: _time(recorded) == last, rest)
        return [self.event_row(recorded) for recorded in shown]

    def event_row(self, recorded: Recorded) -> Row:
        """Returns an event as it is shown."""
        event = recorded.event
        return {
            "time": _time(recorded),
            "node": recorded.node,
            "serial": event.get("serial"),
            "kind": str(event.get("kind")),
            "text": sentence(event, self.names),
            "ref": event.get("ref") or event.get("result"),
        }

    def span_row(self, recorded: Recorded) -> Row:
        """Returns an event that ended work as the span of that work."""
        end = recorded.event["time"]
        row = self.event_row(recorded)
        span = {"node": row["node"], "kind": SPANS[row["kind"]], "ref": row["ref"], "text": row["text"]}
        return {**span, "begin": round(end - recorded.event["seconds"], 4), "end": round(end, 4)}

    def _open_row(self, kind: str, ref: str, edge: Edge) -> Row:
        source = node_name(edge.source, self.names)
        text = f"receives from {source}: {edge.done:.0%}" if kind == "receive" else f"folds the sum of {source}"
        return {"node": edge.to, "kind": kind, "ref": ref, "begin": round(edge.since, 3), "text": text}

    def _record(self, report: Report) -> None:
        self.missed += report.missed
        for event in report.events:
            self.count += 1
            recorded = Recorded(self.count, report.node, event)
            self.events.append(recorded)
            if event.get("kind") in SPANS and event.get("seconds") is not None:
                self.spans.append(recorded)

    def _waits_of(self, now: float, report: Report) -> Iterable[Row]:
        for row in report.activity.get("waits", ()):
            verb, ref = row.get("verb") or "", row.get("ref")
            source = self._flows.source_of(report.node, ref)
            coordinator = self._flows.coordinator_of(ref)
            on, reason = None, row.get("state") or REASONS.get(verb, "no node has a copy yet")
            if source is not None:
                on, reason = source.source, f"{source.done:.0%} received. {source.reason}".strip()
            elif coordinator is not None:
                on, reason = coordinator, "the reduce runs"
            yield {
                "node": report.node,
                "process": row.get("process"),
                "verb": verb,
                "ref": ref,
                "seconds": round(max(now - row.get("since", now), 0.0), 1),
                "on": on,
                "reason": reason[:REASON_MAX],
            }

    def _update_nodes(self, now: float, snapshot: Snapshot) -> None:
        notes = {report.node: report.note for report in snapshot.reports}
        members = {member["id"]: member for member in snapshot.status.get("members", ())}
        lost = {member["id"]: member for member in snapshot.status.get("lost", ())}
        for node, member in members.items():
            self._silences[node] = self._silences[node] + 1 if notes.get(node) else 0
            is_silent = self._silences[node] >= MISSED_MAX
            state = "suspected" if member.get("suspected") else "silent" if is_silent else "alive"
            self._gone.pop(node, None)
            place = member.get("place") or ()
            self.nodes[node] = {
                "id": node,
                "name": self.names.get(node) or node[:8],
                "rack": member.get("rack") or " > ".join(place) or None,
                "state": state,
                **self._meters.of(node),
                "rtt_us": member.get("rtt_us"),
            }
        for node in [*self.nodes, *lost]:
            if node in members:
                continue
            row = self.nodes.setdefault(node, {"id": node, "name": self.names.get(node) or node[:8], "rack": None})
            known = {**NOTHING, **row, "in": 0, "out": 0, "rtt_us": None}
            self.nodes[node] = {**known, "state": "dead" if node in lost or row.get("state") == "dead" else "left"}
            self._gone.setdefault(node, now)

    def _forget(self, now: float) -> None:
        for node, since in list(self._gone.items()):
            if now - since > HISTORY_S or len(self.nodes) > NODES_MAX:
                del self._gone[node]
                self.nodes.pop(node, None)
                self.names.pop(node, None)
        for rows in (self.events, self.spans):
            while rows and now - rows[0].event["time"] > HISTORY_S:
                rows.popleft()
        self._flows.forget(now, set(self._gone))
        self.readers.forget(set(self._gone))
        self._meters.forget(self.nodes)
        self._silences = collections.Counter({node: self._silences[node] for node in self.nodes})

    def _total(self, replied: Iterable[Report], waits: int) -> None:
        rows = list(self.nodes.values())
        alive = [row for row in rows if row["state"] not in ("dead", "left")]
        self.totals = {
            # Two nodes own each object, if there are two.
            "objects": sum(self._meters.owned(row["id"]) for row in alive) // min(max(len(alive), 1), 2),
            "bytes": sum(row["used"] for row in alive),
            "nodes": len(alive),
            "dead": sum(row["state"] == "dead" for row in rows),
            "transfers": self._flows.running(),
            "reduces": sum(len(report.activity.get("reduces", ())) for report in replied),
            "waits": waits,
        }


class Viewer:
    """The frames of one viewer: what changed since the last one, at most `budget` bytes per second on average.

    Args:
        model: what to show.
        budget: bytes per second of `text`.
    """

    def __init__(self, model: Model, budget: int = BUDGET) -> None:
        self._model = model
        self._budget = budget
        self._sent: collections.deque[tuple[float, int]] = collections.deque()
        self._nodes: dict[str, Row] = {}
        self._number = 0
        self._cursor = model.count
        self._last: float | None = None
        self._full = -FULL_EVERY_S
        self._missed = model.missed

    def text(self, now: float) -> str | None:
        """Returns the next frame as JSON; None if it exceeds the budget, so that the next one has its content too."""
        while self._sent and now - self._sent[0][0] >= WINDOW_S:
            self._sent.popleft()
        spent = sum(size for _, size in self._sent)
        frame, text = self._compose(now), ""
        # Fewer edges before fewer frames.
        for edges_max in EDGES:
            frame["trees"] = [_cut(tree, edges_max) for tree in frame["trees"]]
            frame["open"] = frame["open"][:edges_max]
            text = json.dumps(frame, separators=(",", ":"))
            if len(text) <= self._budget:
                break
        if self._sent and spent + len(text) > self._budget * WINDOW_S:
            return None
        self._commit(now, frame)
        self._sent.append((now, len(text)))
        return text

    def frame(self, now: float) -> Row:
        """Returns the next frame, without a budget."""
        frame = self._compose(now)
        self._commit(now, frame)
        return frame

    def _compose(self, now: float) -> Row:
        model = self._model
        is_full = now - self._full >= FULL_EVERY_S
        nodes = list(model.nodes.values())[:NODES_MAX]
        events = _since(model.events, self._cursor, EVENTS_MAX)
        skipped = model.count - self._cursor - len(events) + model.missed - self._missed
        rows = list(model.nodes.values())
        return {
            "time": round(now, 3),
            "number": self._number + 1,
            "interval": round(now - self._last, 3) if self._last is not None else 1.0,
            "cluster": model.status.get("cluster", ""),
            "node": model.status.get("id", ""),
            "full": is_full,
            "nodes": nodes if is_full else [row for row in nodes if self._nodes.get(row["id"]) != row],
            "trees": model.trees,
            "pairs": model.pairs,
            "waits": model.waits,
            "lags": model.lags,
            "events": [model.event_row(recorded) for recorded in events],
            "skipped": skipped,
            "spans": [model.span_row(recorded) for recorded in _since(model.spans, self._cursor, SPANS_MAX)],
            "open": model.open,
            "rates": {"in": sum(row["in"] for row in rows), "out": sum(row["out"] for row in rows)},
            "totals": model.totals,
        }

    def _commit(self, now: float, frame: Row) -> None:
        self._number = frame["number"]
        self._cursor, self._missed, self._last = self._model.count, self._model.missed, now
        if frame["full"]:
            self._full, self._nodes = now, {}
        self._nodes.update({row["id"]: dict(row) for row in frame["nodes"]})


def _time(recorded: Recorded) -> float:
    """The time of an event as it is shown: milliseconds."""
    time: float = recorded.event["time"]
    return round(time, 3)


def _cut(tree: Row, edges_max: int) -> Row:
    """Returns a tree with fewer edges."""
    cut = len(tree["edges"]) - edges_max
    return {**tree, "edges": tree["edges"][:edges_max], "omitted": tree["omitted"] + cut} if cut > 0 else tree


def _since(rows: collections.deque[Recorded], cursor: int, most: int) -> list[Recorded]:
    """Returns the newest rows with a number above `cursor`, oldest first."""
    newer = itertools.takewhile(lambda recorded: recorded.number > cursor, reversed(rows))
    return list(itertools.islice(newer, most))[::-1]
