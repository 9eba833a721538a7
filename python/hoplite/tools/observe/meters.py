"""Stores and rates of nodes, computed from their metrics. Does not know how metrics are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hoplite.tools.observe.collect import Row

BYTES_IN = ("bytes_received", "bytes_partial_received")
BYTES_OUT = ("bytes_direct", "bytes_relayed", "bytes_partial")

# What is known of a node without metrics.
NOTHING = {"used": 0, "capacity": 0, "spilled": 0, "objects": 0, "in": 0, "out": 0}


class Meters:
    """Stores and rates of nodes, from two replies to `inspect("metrics")` each."""

    def __init__(self) -> None:
        # Bytes per second by pair: sender, receiver.
        self.pair_rates: dict[tuple[str, str], float] = {}
        self._last: dict[str, Row] = {}
        self._rows: dict[str, Row] = {}
        self._owned: dict[str, int] = {}

    def read(self, node: str, reply: Row) -> None:
        """Takes a reply. Fields that an older node lacks count as zero."""
        status = reply.get("status") or {}
        store, counters = status.get("store") or {}, status.get("counters") or {}
        received = sum(counters.get(name, 0) for name in BYTES_IN)
        sent = sum(counters.get(name, 0) for name in BYTES_OUT)
        peers = {peer: row.get("received", 0) for peer, row in (reply.get("peers") or {}).items()}
        now = {"time": reply.get("time", 0.0), "in": received, "out": sent, "peers": peers}
        before = self._last.get(node, now)
        seconds = now["time"] - before["time"]
        self._last[node] = now
        row = self._rows.setdefault(node, dict(NOTHING))
        row.update({name: store.get(name, 0) for name in ("used", "capacity", "spilled")})
        row["objects"] = status.get("objects", 0)
        self._owned[node] = status.get("owned", 0)
        if seconds > 0:
            row["in"] = int(max(received - before["in"], 0) / seconds)
            row["out"] = int(max(sent - before["out"], 0) / seconds)
            for peer, total in peers.items():
                self.pair_rates[peer, node] = max(total - before["peers"].get(peer, total), 0) / seconds

    def of(self, node: str) -> Row:
        """Returns what the row of a node has of it."""
        return self._rows.get(node, NOTHING)

    def owned(self, node: str) -> int:
        """Returns the number of objects that a node owns."""
        return self._owned.get(node, 0)

    def forget(self, nodes: Mapping[str, object]) -> None:
        """Drops all other nodes."""
        for table in (self._last, self._rows, self._owned):
            for node in table.keys() - nodes.keys():
                table.pop(node)
        for pair in [pair for pair in self.pair_rates if not (pair[0] in nodes and pair[1] in nodes)]:
            del self.pair_rates[pair]
