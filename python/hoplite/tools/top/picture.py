"""The tables of `hoplite top`, computed from frames (`hoplite.tools.observe.frames`). Knows no terminal.

A table consists of groups of rows. Sorting and filtering keep a group together: a group is a tree, or one row.
"""

from __future__ import annotations

import collections
import datetime as dt
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.tools.observe.words import CHOICES
from hoplite.tools.quantities import visible, write_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite.tools.observe.collect import Row

EVENTS_MAX = 500
BAR_WIDTH = 8

# Styles of states. The state itself is in words.
STYLES = {"suspected": "yellow", "silent": "yellow", "dead": "red", "left": "dim"}


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: what it shows.
        key: what rows are sorted by.
        style: a style of rich; never the only sign of anything.
    """

    text: str
    key: Any
    style: str = ""


Line = list[Cell]
Groups = list[list[Line]]


class Tab(NamedTuple):
    """A view of the cluster.

    Attributes:
        title: its name.
        columns: titles of its columns.
        groups: computes its rows.
        empty: what it shows without rows.
    """

    title: str
    columns: tuple[str, ...]
    groups: Callable[[Picture], Groups]
    empty: str


class Picture:
    """The state of the cluster, from all frames so far.

    Attributes:
        frame: the last frame.
        nodes: rows of all nodes, by id.
        events: recent events, the newest first.
    """

    def __init__(self) -> None:
        self.frame: Row = {}
        self.nodes: dict[str, Row] = {}
        self.events: collections.deque[Row] = collections.deque(maxlen=EVENTS_MAX)

    def update(self, frame: Row) -> None:
        """Takes the next frame. Frames between full ones have only the nodes that changed."""
        self.frame = frame
        rows = {row["id"]: row for row in frame["nodes"]}
        self.nodes = rows if frame["full"] else self.nodes | rows
        # Another node may report later what happened earlier.
        events = sorted((*reversed(frame["events"]), *self.events), key=lambda event: -event["time"])
        self.events = collections.deque(events, maxlen=EVENTS_MAX)

    def whole(self) -> Row:
        """Returns the last frame with all nodes."""
        return {**self.frame, "full": True, "nodes": list(self.nodes.values())}

    def name(self, node: str | None) -> str:
        """Returns the name of a node."""
        return "-" if node is None else self.nodes.get(node, {}).get("name") or node[:8]

    def headlines(self) -> list[str]:
        """Returns two lines about the whole cluster."""
        totals, rates = self.frame.get("totals", {}), self.frame.get("rates", {})
        if not totals:
            return ["no node has replied yet", ""]
        dead = f", {totals['dead']} dead" if totals.get("dead") else ""
        first = (
            f"{visible(self.frame['cluster'])}: {_count(totals, 'node')}{dead}, {_count(totals, 'object')} in "
            f"{write_size(totals['bytes'])}, in {_rate(rates['in'])}, out {_rate(rates['out'])}"
        )
        running = ", ".join(_count(totals, what) for what in ("transfer", "reduce", "wait"))
        return [first, f"{_local(self.frame['time']):%Y-%m-%d %H:%M:%S}  {running}"]


def select(groups: Groups, text: str) -> Groups:
    """Returns the groups with a text in any cell, in upper or lower case."""
    text = text.lower()
    return [group for group in groups if any(text in cell.text.lower() for line in group for cell in line)]


def arrange(groups: Groups, column: int, *, reverse: bool) -> Groups:
    """Sorts groups by a column of their first lines."""
    return sorted(groups, key=lambda group: group[0][column].key, reverse=reverse)


def _nodes(picture: Picture) -> Groups:
    rows = sorted(picture.nodes.values(), key=lambda row: _natural(row["name"]))
    own = picture.frame.get("node")
    return [[_node(row, is_own=row["id"] == own)] for row in rows]


def _node(row: Row, *, is_own: bool) -> Line:
    share = row["used"] / row["capacity"] if row["capacity"] else 0.0
    style = STYLES.get(row["state"], "")
    return [
        Cell(row["name"] + (" *" if is_own else ""), _natural(row["name"]), style),
        Cell(row["state"], row["state"], style),
        Cell(f"{bar(share)} {share:4.0%}", share),
        Cell(*_size(row["used"])),
        Cell(*_size(row["in"])),
        Cell(*_size(row["out"])),
        Cell(f"{row['objects']}", row["objects"]),
        Cell(*_size(row["spilled"])),
        Cell("-" if row["rtt_us"] is None else f"{row['rtt_us']:.0f} us", row["rtt_us"] or 0.0),
        Cell(row["rack"] or "-", row["rack"] or ""),
    ]


def _trees(picture: Picture) -> Groups:
    return [_tree(picture, tree) for tree in picture.frame.get("trees", ())]


def _tree(picture: Picture, tree: Row) -> list[Line]:
    """Draws a tree from its root: a broadcast along its edges, a reduce against them."""
    is_up = tree["kind"] == "reduce"
    below: dict[str, list[tuple[str, Row]]] = collections.defaultdict(list)
    for edge in tree["edges"]:
        above, under = (edge["to"], edge["from"]) if is_up else (edge["from"], edge["to"])
        below[above].append((under, edge))
    done = min((edge["done"] for edge in tree["edges"]), default=0.0)
    rate = sum(edge["rate"] for edge in tree["edges"])
    epoch = f", epoch {tree['epoch']}" if tree["epoch"] > 1 else ""
    what = tree["degree"] or tree["kind"]
    why = f"{what} of {write_size(tree['bytes'])}{epoch}" if tree["bytes"] else f"{what}{epoch}"
    title = [
        Cell(tree["ref"], tree["ref"], "bold"),
        Cell("" if is_up else f"{bar(done)} {done:4.0%}", done),
        Cell(*_size(rate)),
        Cell(f"{why}: {tree['reason']}" if tree["reason"] else why, tree["kind"]),
    ]
    lines = [title]
    seen: set[str] = set()
    tops = [tree["root"], *(node for node in below if node != tree["root"])]
    for top in tops:
        if top in seen:
            continue
        lines.append([Cell(picture.name(top), ""), Cell("", 0), Cell("", 0), Cell("", "")])
        seen.add(top)
        lines += _branches(picture, below, top, seen, is_up=is_up)
    if tree["omitted"]:
        lines.append([Cell(f"and {tree['omitted']} more", ""), Cell("", 0), Cell("", 0), Cell("", "")])
    return lines


def _branches(
    picture: Picture, below: dict[str, list[tuple[str, Row]]], top: str, seen: set[str], *, is_up: bool
) -> Iterator[Line]:
    """Yields the nodes below a node, in depth-first order. Not recursive: a chain can be as long as the cluster."""
    stack = [("", iter(below[top]), len(below[top]), len(below[top]) == 1)]
    while stack:
        indent, rest, left, is_chain = stack.pop()
        if left == 0:
            continue
        stack.append((indent, rest, left - 1, is_chain))
        node, edge = next(rest)
        branch, deeper = ("└─", "   ") if left == 1 else ("├─", "│  ")
        # A chain is not indented, since it can be as long as the cluster.
        if is_chain:
            branch, deeper = "←" if is_up else "→", ""
        words = CHOICES.get(edge["choice"], edge["choice"].replace("_", " "))
        why = ": ".join(filter(None, (words, edge["reason"])))
        yield [
            Cell(f"{indent}{branch} {picture.name(node)}", ""),
            Cell("" if is_up else f"{bar(edge['done'])} {edge['done']:4.0%}", 0),
            Cell(_size(edge["rate"])[0] if edge["rate"] else "", 0),
            Cell(why, ""),
        ]
        if node not in seen:
            seen.add(node)
            under = below.get(node, [])
            stack.append((indent + deeper, iter(under), len(under), len(under) == 1))


def _transfers(picture: Picture) -> Groups:
    return [
        [[_name(picture, row["from"]), _name(picture, row["to"]), Cell(*_size(row["rate"])), _number(row["transfers"])]]
        for row in picture.frame.get("pairs", ())
    ]


def _waits(picture: Picture) -> Groups:
    return [
        [
            [
                Cell(f"{row['seconds']:.1f}", row["seconds"]),
                Cell(f"{row['verb']} {row['ref'] or ''}".strip(), row["ref"] or ""),
                _name(picture, row["node"]),
                _process(row["process"]),
                _name(picture, row["on"]),
                Cell(row["reason"], row["reason"]),
            ]
        ]
        for row in picture.frame.get("waits", ())
    ]


def _readers(picture: Picture) -> Groups:
    return [
        [
            [
                Cell(row["prefix"], row["prefix"]),
                _number(row["lag"]),
                _number(row["version"]),
                _number(row["newest"]),
                _name(picture, row["node"]),
                _process(row["process"]),
                Cell(f"{row['seconds']:.0f}", row["seconds"]),
            ]
        ]
        for row in picture.frame.get("lags", ())
    ]


def _events(picture: Picture) -> Groups:
    return [
        [
            [
                Cell(f"{_local(row['time']):%H:%M:%S}", row["time"]),
                _name(picture, row["node"]),
                Cell(row["ref"] or "-", row["ref"] or ""),
                Cell(row["text"], row["text"]),
            ]
        ]
        for row in picture.events
    ]


def bar(share: float) -> str:
    """Draws a share from 0 to 1 as a bar."""
    full = round(min(max(share, 0.0), 1.0) * BAR_WIDTH)
    return "█" * full + "░" * (BAR_WIDTH - full)


def _size(count: float) -> tuple[str, float]:
    return write_size(count), count


def _rate(bytes_per_second: float) -> str:
    return f"{write_size(bytes_per_second)}/s"


def _count(totals: Row, what: str) -> str:
    count = totals.get(f"{what}s", 0)
    return f"{count} {what}{'' if count == 1 else 's'}"


def _local(time: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(time).astimezone()


def _name(picture: Picture, node: str | None) -> Cell:
    name = picture.name(node)
    state = picture.nodes.get(node or "", {}).get("state", "")
    return Cell(name, _natural(name), STYLES.get(state, ""))


def _number(value: int) -> Cell:
    return Cell(str(value), value)


def _process(pid: int | None) -> Cell:
    return Cell("-" if pid is None else str(pid), pid or 0)


def _natural(name: str) -> list[int | str]:
    """Sorts numbers in names by their value: 10.0.0.9 before 10.0.0.10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


NODE_COLUMNS = ("node", "state", "memory", "used", "in/s", "out/s", "objects", "disk", "rtt", "rack")

TABS = (
    Tab("Nodes", NODE_COLUMNS, _nodes, "no nodes"),
    Tab("Trees", ("tree", "received", "rate/s", "why"), _trees, "no broadcast or reduce runs"),
    Tab("Transfers", ("from", "to", "rate/s", "transfers"), _transfers, "no transfer runs"),
    Tab("Waits", ("seconds", "waits for", "node", "process", "on", "because"), _waits, "no request waits"),
    Tab("Readers", ("prefix", "behind", "version", "newest", "node", "process", "seconds"), _readers, "no reader"),
    Tab("Events", ("time", "node", "object", "event"), _events, "no event yet"),
)
