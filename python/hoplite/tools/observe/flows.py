"""What moves: transfers and folds of all nodes, as trees of one object each and as pairs of nodes.

Computed from the activity of nodes alone, with the time as an argument. Does not know how activity is fetched, or who
looks at the result.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from hoplite.tools.observe.collect import Report

# What a frame shows at most.
TREES_MAX = 8
EDGES_MAX = 64
PAIRS_MAX = 50

# Seconds that a tree stays after its last transfer, so that short ones are seen.
STAY_S = 3.0
# Objects whose trees are kept, apart from those with a running transfer.
REFS_MAX = 4000

BROADCAST, REDUCE, RING = "broadcast", "reduce", "ring"
NO_PLAN: dict[str, Any] = {}


class Edge:
    """One transfer or one position of a reduce: bytes from a node to another."""

    __slots__ = ("at", "bytes", "choice", "ended", "rate", "reason", "received", "since", "source", "to")

    def __init__(self, source: str, to: str, since: float) -> None:
        self.source = source
        self.to = to
        self.since = since
        # Time of the last report.
        self.at = since
        self.bytes = self.received = 0
        self.rate = 0.0
        self.choice = self.reason = ""
        self.ended: float | None = None

    @property
    def done(self) -> float:
        """The received part, from 0 to 1."""
        if self.ended is not None:
            return 1.0
        return min(self.received / self.bytes, 1.0) if self.bytes else 0.0

    def report(self, received: int, at: float) -> None:
        """Updates the rate by how much has been received until a time."""
        if at > self.at:
            self.rate = max(received - self.received, 0) / (at - self.at)
        self.received, self.at = received, at

    def end(self, at: float) -> None:
        """Records when everything was received."""
        self.ended, self.rate = at, 0.0


class Flows:
    """Transfers and folds of all nodes, and the recently ended ones."""

    def __init__(self) -> None:
        # By object, then by receiver. Folds: by result, then by child and node.
        self._transfers: dict[str, dict[str, Edge]] = {}
        self._folds: dict[str, dict[tuple[str, str], Edge]] = {}
        # What each node received at its last report, and whose sums it folded.
        self._receiving: dict[str, set[str]] = {}
        self._folding: dict[str, set[tuple[str, str]]] = {}
        # The plan of each reduce: root, degree, reason, epoch.
        self._plans: dict[str, dict[str, Any]] = {}

    def update(self, now: float, report: Report) -> None:
        """Takes what one node reported."""
        self._read_transfers(now, report)
        self._read_folds(now, report)

    def _read_transfers(self, now: float, report: Report) -> None:
        node, activity = report.node, report.activity
        at = activity.get("time", now) - report.offset.seconds
        running = set()
        for row in activity.get("transfers", ()):
            ref, source = row["ref"], row.get("source")
            running.add(ref)
            if source is None:
                # It waits for a source.
                continue
            edges = self._transfers.setdefault(ref, {})
            edge = edges.get(node)
            if edge is None or edge.source != source or edge.ended is not None:
                edge = edges[node] = Edge(source, node, row.get("since", at))
            edge.bytes = row.get("bytes") or 0
            edge.choice, edge.reason = row.get("choice") or "", row.get("reason") or ""
            edge.report(row.get("received") or 0, at)
        chosen: dict[str, Mapping[str, Any]] = {}
        fetched = set()
        for event in report.events:
            kind, ref = event.get("kind"), event.get("ref") or ""
            if kind == "source":
                chosen[ref] = event
            elif kind == "fetched" and ref and ref not in running:
                fetched.add(ref)
                self._add_fetched(node, event, chosen.get(ref, NO_PLAN))
        for ref in self._receiving.get(node, set()) - running - fetched:
            # It failed, or its end was among events that were skipped.
            self._transfers.get(ref, {}).pop(node, None)
        self._receiving[node] = running

    def _add_fetched(self, node: str, event: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
        # A viewer that has just started reads events of minutes ago.
        ended = event["time"]
        edges = self._transfers.setdefault(event["ref"], {})
        source = event.get("source")
        edge = edges.get(node)
        if edge is None or (source is not None and edge.source != source):
            if source is None:
                return
            edge = edges[node] = Edge(source, node, ended - (event.get("seconds") or 0.0))
            edge.choice, edge.reason = chosen.get("choice") or "", chosen.get("reason") or ""
        edge.bytes = edge.received = event.get("bytes") or edge.bytes
        edge.end(ended)

    def _read_folds(self, now: float, report: Report) -> None:
        node = report.node
        for event in report.events:
            # A short reduce is over before the next report.
            if event.get("kind") in ("reduce_begin", "degree", "ring", "restart") and event.get("result"):
                plan = self._plans.setdefault(event["result"], {"root": node})
                plan.update({name: event[name] for name in ("epoch", "degree", "reason") if event.get(name)})
                if event.get("kind") == "ring":
                    plan["degree"] = f"ring of {event.get('parts')}"
        for row in report.activity.get("reduces", ()):
            self._plans[row["result"]] = {**row, "root": node}
        running = {
            (row["result"], child): row.get("since", now)
            for row in report.activity.get("folds", ())
            for child in row.get("children") or ()
        }
        begun = {
            (event["result"], child): event["time"]
            for event in report.events
            if event.get("kind") == "fold" and event.get("result")
            for child in event.get("children") or ()
        }
        folded = {
            event["result"]: event["time"]
            for event in report.events
            if event.get("kind") == "folded" and event.get("result")
        }
        for (result, child), since in {**begun, **running}.items():
            edges = self._folds.setdefault(result, {})
            edge = edges.get((child, node))
            # The caller's node can be its own child.
            if child != node and (edge is None or edge.ended is not None):
                edges[child, node] = Edge(child, node, since)
        for result, child in (self._folding.get(node, set()) | begun.keys()) - running.keys():
            edge = self._folds.get(result, {}).get((child, node))
            if edge is not None:
                # Without the event of its end, it ended after the last report, or soon after it began.
                was_running = (result, child) in self._folding.get(node, set())
                edge.end(folded.get(result, now if was_running else edge.since))
        self._folding[node] = set(running)

    def forget(self, now: float, gone: set[str]) -> None:
        """Drops transfers of nodes that are gone, and trees without recent transfers."""
        both: tuple[dict[str, dict[Any, Edge]], ...] = (self._transfers, self._folds)
        for trees in both:
            ended = []
            for ref in list(trees):
                edges = trees[ref]
                for key in [key for key, edge in edges.items() if edge.source in gone or edge.to in gone]:
                    del edges[key]
                last = max((edge.ended or now for edge in edges.values()), default=0.0)
                if now - last > STAY_S:
                    del trees[ref]
                elif all(edge.ended is not None for edge in edges.values()):
                    ended.append(ref)
            for ref in ended[: max(len(trees) - REFS_MAX, 0)]:
                del trees[ref]
        for result in [result for result in self._plans if result not in self._folds]:
            del self._plans[result]

    def source_of(self, node: str, ref: str | None) -> Edge | None:
        """Returns the running transfer of an object to a node."""
        edge = self._transfers.get(ref or "", {}).get(node)
        return edge if edge is not None and edge.ended is None else None

    def coordinator_of(self, result: str | None) -> str | None:
        """Returns the node that coordinates the reduce with a result."""
        plan = self._plans.get(result or "")
        return None if plan is None else plan["root"]

    def oldest(self, most: int) -> list[tuple[str, str, Edge]]:
        """Returns the transfers and folds that have run for the longest: kind, object and edge."""
        receiving = (("receive", ref, edge) for ref, edges in self._transfers.items() for edge in edges.values())
        folding = (("fold", result, edge) for result, folds in self._folds.items() for edge in folds.values())
        running = (found for found in itertools.chain(receiving, folding) if found[2].ended is None)
        return heapq.nsmallest(most, running, key=lambda found: (found[2].since, found[1], found[2].to))

    def pairs(self) -> list[dict[str, Any]]:
        """Returns the running transfers by pair of nodes, the fastest pairs first."""
        rates: collections.Counter[tuple[str, str]] = collections.Counter()
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for edge in self._running():
            rates[edge.source, edge.to] += int(edge.rate)
            counts[edge.source, edge.to] += 1
        largest = sorted(counts, key=lambda pair: (-rates[pair], -counts[pair], pair))[:PAIRS_MAX]
        return [{"from": a, "to": b, "rate": rates[a, b], "transfers": counts[a, b]} for a, b in largest]

    def running(self) -> int:
        """Returns the number of running transfers."""
        return sum(1 for _ in self._running())

    def _running(self) -> Iterable[Edge]:
        return (edge for edges in self._transfers.values() for edge in edges.values() if edge.ended is None)

    def trees(self, pair_rates: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
        """Returns the trees with the most running transfers.

        Args:
            pair_rates: measured bytes per second by pair of nodes, for partial sums.
        """
        for folds in self._folds.values():
            for edge in folds.values():
                edge.rate = 0.0 if edge.ended is not None else pair_rates.get((edge.source, edge.to), 0.0)
        # The second half of a ring moves the result along the edges of the first.
        rings = {result for result in self._folds if self._kind(result) == RING}
        broadcasts = (
            (BROADCAST, ref, edges.values()) for ref, edges in self._transfers.items() if edges and ref not in rings
        )
        reduces = ((self._kind(result), result, folds.values()) for result, folds in self._folds.items() if folds)

        def size(tree: tuple[str, str, Collection[Edge]]) -> tuple[int, int, str]:
            return sum(edge.ended is None for edge in tree[2]), len(tree[2]), tree[1]

        found = heapq.nlargest(TREES_MAX, itertools.chain(broadcasts, reduces), key=size)
        return [self._tree(kind, ref, list(edges)) for kind, ref, edges in found]

    def _kind(self, result: str) -> str:
        return RING if str(self._plans.get(result, NO_PLAN).get("degree", "")).startswith("ring") else REDUCE

    def _tree(self, kind: str, ref: str, edges: list[Edge]) -> dict[str, Any]:
        plan = self._plans.get(ref, NO_PLAN) if kind != BROADCAST else NO_PLAN
        edges.sort(key=lambda edge: (edge.since, edge.to))
        return {
            "ref": ref,
            "kind": kind,
            "bytes": max(edge.bytes for edge in edges),
            "epoch": plan.get("epoch") or 0,
            "root": plan.get("root") or root(edges, reverse=kind != BROADCAST),
            "degree": plan.get("degree") or "",
            "reason": plan.get("reason") or "",
            "since": round(min(edge.since for edge in edges), 3),
            "edges": [
                {
                    "from": edge.source,
                    "to": edge.to,
                    "done": round(edge.done, 3),
                    "rate": int(edge.rate),
                    "choice": edge.choice,
                    "reason": edge.reason[:160],
                }
                for edge in edges[:EDGES_MAX]
            ],
            "omitted": max(len(edges) - EDGES_MAX, 0),
        }


def root(edges: Iterable[Edge], *, reverse: bool = False) -> str:
    """Returns the node from which most others can be reached along edges, or with `reverse` against them."""
    below = collections.defaultdict(list)
    targets = set()
    for edge in edges:
        source, to = (edge.to, edge.source) if reverse else (edge.source, edge.to)
        below[source].append(to)
        targets.add(to)
    candidates = [node for node in below if node not in targets] or list(below)

    def reached(start: str) -> int:
        seen, queue = {start}, [start]
        while queue:
            for to in below.get(queue.pop(), ()):
                if to not in seen:
                    seen.add(to)
                    queue.append(to)
        return len(seen)

    return max(sorted(candidates), key=reached)
