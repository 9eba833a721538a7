"""The story of one object or reduce: its events on all nodes, in order, in words, and the tree of its copies or folds.

It prints nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite.tools.observe.collect import collect
from hoplite.tools.observe.folds import pairs
from hoplite.tools.observe.words import node_name, seconds, sentence
from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hoplite import Client
    from hoplite.tools.observe.collect import Report, Row, Snapshot

# Kinds with which the story of an object begins.
BEGINNINGS = {"put", "create", "reduce_begin"}

# Events of inputs that belong to the story of their reduce.
ARRIVALS = {"put", "create", "seal", "delete"}

# Fields that differ between repetitions of one event.
MEASURED = {"serial", "time", "seconds", "received", "text"}

# Repetitions that are shown: the first and the last.
SHOWN = 2

# A request that is over sooner did not wait for anything of interest.
SHORT_S = 0.01

# Refs that are compared with an unknown one.
OTHERS_MAX = 10_000


@dataclass
class Tree:
    """Which node receives from which.

    Attributes:
        title: what the tree is.
        children: names of the nodes that receive from a node, by its name; a list for every node.
        root: name of the node at the top.
    """

    title: str
    root: str
    children: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Returns one line per node, indented by its depth. A node that appears twice ends its branch."""
        found: list[str] = []
        seen: set[str] = set()
        stack = [(self.root, 0)]
        while stack:
            node, depth = stack.pop()
            found.append("  " * depth + node)
            if node not in seen:
                seen.add(node)
                stack += [(child, depth + 1) for child in reversed(self.children.get(node, []))]
        return found


@dataclass
class Story:
    """What happened to an object.

    Attributes:
        ref: the object.
        events: its events in order of time, with the field `text`.
        trees: trees of its broadcast and of each epoch of its reduce.
        notes: what is missing, in sentences.
        error: largest error of the order between nodes, in seconds.
    """

    ref: str
    events: list[Row]
    trees: list[Tree]
    notes: list[str]
    error: float


def read(client: Client, ref: str) -> tuple[Snapshot, set[str]]:
    """Reads what concerns an object: its events, and the arrivals of its inputs if it is the result of a reduce.

    Returns:
        The events of all nodes, and refs that other events concern, for suggestions.
    """
    others: set[str] = set()

    def concerns(event: Row, _: float) -> bool:
        about = event.get("ref") or event.get("result")
        if about is not None and len(others) < OTHERS_MAX:
            others.add(about)
        return ref in (event.get("ref"), event.get("result"))

    snapshot = collect(client, concerns)
    inputs = _all_inputs(snapshot.events(), ref)
    if inputs:
        arrivals = collect(client, lambda event, _: event["kind"] in ARRIVALS and event.get("ref") in inputs)
        more = {report.node: report.events for report in arrivals.reports}
        for report in snapshot.reports:
            report.events += more.get(report.node, [])
    return snapshot, others


def tell(ref: str, snapshot: Snapshot, *, everything: bool = False) -> Story:
    """Returns the story of an object. It has no events if no node recorded any.

    Args:
        ref: text of its ref.
        snapshot: the events of all nodes.
        everything: whether to include repetitions, short waits, and events that another node records too.
    """
    recorded = snapshot.events()
    inputs = _all_inputs(recorded, ref)
    events = [event for event in recorded if _concerns(event, ref, inputs)]
    trees = _trees(events, ref, snapshot.names)
    if not everything:
        events = _once(events, {report.node for report in snapshot.reports if report.note is None})
        events = _folded(_without_short_waits(events))
    else:
        events = [dict(event) for event in events]
    for event in events:
        about = f"input {event['ref']}: " if event.get("ref") in inputs and event["ref"] != ref else ""
        event["text"] = about + sentence(event, snapshot.names) + event.pop("repeated", "")
    events += _running(ref, snapshot)
    errors = [report.offset.error for report in snapshot.reports if report.events]
    return Story(ref, events, trees, _notes(events, snapshot), max(errors, default=0.0))


def _all_inputs(events: Iterable[Row], ref: str) -> set[str]:
    # Of kinds other than folds, "inputs" is a number.
    folds = (event for event in events if event["kind"] == "fold" and event.get("result") == ref)
    return {one for fold in folds for one in fold.get("inputs") or ()}


def _concerns(event: Row, ref: str, inputs: set[str]) -> bool:
    if ref in (event.get("ref"), event.get("result")):
        return True
    return event.get("ref") in inputs and event["kind"] in ARRIVALS


def _once(events: Iterable[Row], replied: set[str]) -> list[Row]:
    """Leaves out what the receiver of a transfer records too, if it replied."""
    found = []
    sending: set[Any] = set()
    for event in events:
        kind = event["kind"]
        if kind in ("locate", "serve") and event.get("reader") in replied:
            continue
        if kind == "serve":
            sending.add(event["recorder"])
        if kind != "served" or event["recorder"] in sending:
            found.append(event)
    return found


def _without_short_waits(events: list[Row]) -> list[Row]:
    """Leaves out requests that waited only for a message."""
    begun: dict[Any, Row] = {}
    short: set[int] = set()
    for event in events:
        key = event["recorder"], event.get("verb"), event.get("process")
        if event["kind"] == "wait":
            begun[key] = event
        elif event["kind"] == "reply" and key in begun:
            wait = begun.pop(key)
            if event.get("error") is None and event.get("seconds", 0.0) < SHORT_S:
                short |= {id(wait), id(event)}
    return [event for event in events if id(event) not in short]


def _folded(events: list[Row]) -> list[Row]:
    """Returns copies of the events, of repetitions only the first and the last."""
    keys = [
        tuple(sorted((name, repr(value)) for name, value in event.items() if name not in MEASURED)) for event in events
    ]
    count = Counter(keys)
    seen: Counter[Any] = Counter()
    found = []
    for event, key in zip(events, keys, strict=True):
        seen[key] += 1
        if count[key] <= SHOWN:
            found.append(dict(event))
        elif seen[key] in (1, count[key]):
            which = "first" if seen[key] == 1 else "last"
            found.append({**event, "repeated": f" ({which} of {count[key]} times)"})
    return found


def _running(ref: str, snapshot: Snapshot) -> list[Row]:
    """What has not ended yet, as events at the time of the snapshot."""
    found: list[Row] = []

    def add(report: Report, kind: str, text: str) -> None:
        found.append({"time": snapshot.time, "kind": kind, "recorder": report.node, "text": text})

    for report in snapshot.reports:
        running: Mapping[str, list[Row]] = report.activity
        for row in running.get("transfers", ()):
            if row.get("ref") == ref:
                size = f"{write_size(row.get('received', 0))} of {write_size(row.get('bytes', 0))}"
                add(report, "receiving", f"still receives from {node_name(row.get('source'), snapshot.names)}: {size}")
        for row in running.get("folds", ()):
            if row.get("result") == ref:
                add(report, "folding", f"still folds position {row.get('position')} of epoch {row.get('epoch')}")
        for row in running.get("waits", ()):
            if row.get("ref") == ref:
                process = f"process {row['process']}" if row.get("process") is not None else "a process"
                since = seconds(snapshot.time - row["since"])
                add(report, "waiting", f"{row.get('verb')} of {process} still waits, {since} so far")
    return found


def _trees(events: list[Row], ref: str, names: Mapping[str, str]) -> list[Tree]:
    found = []
    # The last source of each node with a complete copy.
    sources = {
        event["recorder"]: event["source"]
        for event in events
        if event["kind"] == "fetched" and event.get("ref") == ref and event.get("source")
    }
    tops = [source for source in dict.fromkeys(sources.values()) if source not in sources]
    found += [_tree("broadcast", top, sources, names) for top in tops]
    folds = [event for event in events if event["kind"] == "fold" and event.get("result") == ref]
    edges = [(child, parent) for child, parent in pairs(folds) if child["recorder"] != parent["recorder"]]
    below = {id(child) for child, _ in edges}
    for epoch in dict.fromkeys(fold.get("epoch") for fold in folds):
        parents = {child["recorder"]: parent["recorder"] for child, parent in edges if child.get("epoch") == epoch}
        nodes = [fold["recorder"] for fold in folds if fold.get("epoch") == epoch and id(fold) not in below]
        tops = [node for node in dict.fromkeys(nodes) if node not in parents]
        found += [_tree(f"epoch {epoch}", top, parents, names) for top in tops]
    return found


def _tree(title: str, top: str, parents: Mapping[str, str], names: Mapping[str, str]) -> Tree:
    tree = Tree(title, node_name(top, names))
    for node, parent in parents.items():
        tree.children.setdefault(node_name(parent, names), []).append(node_name(node, names))
    return tree


def _notes(events: list[Row], snapshot: Snapshot) -> list[str]:
    begun = next((event["time"] for event in events if event["kind"] in BEGINNINGS), None)
    notes = snapshot.notes(begun or 0.0)
    if events and begun is None:
        notes.append("the beginning is missing: no node has recorded the put, or it was overwritten")
    return notes
