"""The events of the fake cluster of `fake_activity`: what each node records, on a clock that only `advance` moves.

Rounds of `PERIOD_S` repeat. In each round:

- Node 0 puts `weights/R` (64 MiB). The other nodes get it through a chain of relays. The transfer of the fourth node
  fails once and resumes from another source.
- All nodes put `grads/R/N`, which node 0 reduces to `sums/R`; in odd rounds with a restart.
- A copy is evicted, another spilled, one node suspected, and a reader waits in vain for `weights/never`.

The reader on the last node is one version of `weights/` behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
BROADCAST_BYTES = 64 * MIB
INPUT_BYTES = 8 * MIB

# Time of the first event.
START = 1_800_000_000.0
PERIOD_S = 10.0

Row = dict[str, Any]


class Timeline:
    """The members of the cluster, their clocks and their events.

    Args:
        size: number of nodes, at least 4.
        skews: seconds that the clock of a node, by its number, is ahead.
        ring: number of events that a node retains.
        failed: seconds after the start at which a node fails, by its number.
        old: numbers of nodes of an older version, which has no `inspect`.

    Attributes:
        now: the current time, which `advance` changes.
        ids: ids of the nodes, by number.
    """

    def __init__(
        self,
        size: int = 6,
        *,
        skews: Mapping[int, float] | None = None,
        ring: int = 4096,
        failed: Mapping[int, float] | None = None,
        old: tuple[int, ...] = (),
    ) -> None:
        self.now = START
        self.ids = [f"{0xA000 + number:016x}" for number in range(size)]
        self.skews = dict(skews or {})
        self.ring = ring
        self.failed = dict(failed or {})
        self.old = old
        self._rounds = 0
        # Time and event, for each node.
        self._events: list[list[tuple[float, Row]]] = [[] for _ in self.ids]

    def advance(self, seconds: float) -> None:
        """Moves the clock of the cluster."""
        self.now += seconds

    def address(self, number: int) -> str:
        """Returns the address of a node."""
        return f"10.0.0.{number + 1}:7420"

    def is_down(self, number: int) -> bool:
        """Whether a node has failed."""
        return self.now - START >= self.failed.get(number, float("inf"))

    def events(self, number: int) -> list[Row]:
        """Returns all events of a node until now, with its own clock and serials from 0."""
        while START + self._rounds * PERIOD_S <= self.now:
            self._play(self._rounds)
            self._rounds += 1
        skew = self.skews.get(number, 0.0)
        past = [(time, event) for time, event in self._events[number] if time <= self.now]
        return [{"serial": serial, "time": round(time + skew, 6), **event} for serial, (time, event) in enumerate(past)]

    def _play(self, number: int) -> None:
        begun = START + number * PERIOD_S
        self._broadcast(number, begun)
        self._reduce(number, begun + 3)
        self._incidents(number, begun + 6)
        for other, at in self.failed.items():
            if begun <= START + at < begun + PERIOD_S:
                for node in range(len(self.ids)):
                    self._add(node, START + at + 0.5, "member", node=self.ids[other], state="failed", why="closed")
        for node, events in enumerate(self._events):
            fails = START + self.failed.get(node, float("inf"))
            events.sort(key=lambda entry: entry[0])
            self._events[node] = [entry for entry in events if entry[0] < fails]

    def _add(self, node: int, time: float, kind: str, /, **fields: object) -> None:
        self._events[node].append((round(time, 6), {"kind": kind, **fields}))

    def _broadcast(self, number: int, begun: float) -> None:
        ref, instance, size = f"weights/{number}", f"{self.ids[0]}.{number}", BROADCAST_BYTES
        self._add(0, begun, "create", ref=ref, bytes=size, process=100)
        self._add(0, begun + 0.3, "seal", ref=ref)
        if number:
            self._add(0, begun + 0.4, "delete", ref=f"weights/{number - 1}", process=100)
        for node in range(1, len(self.ids)):
            asked, started, ended = begun + 0.05, begun + 0.1 + 0.01 * node, begun + 1 + 0.1 * node
            self._add(node, asked, "wait", verb="get", ref=ref, process=200 + node)
            source, choice = node - 1, "only_holder" if node == 1 else "idle_relay"
            if node == 3:
                self._receive(node, source, ref, instance, started, begun + 0.8, choice, received=20 * MIB)
                self._add(node, begun + 0.81, "redirect", ref=ref, before=self.ids[2], source=self.ids[1])
                source, choice, started = 1, "least_loaded", begun + 0.82
            self._receive(node, source, ref, instance, started, ended, choice, resumed=node == 3)
            self._add(node, ended, "reply", verb="get", ref=ref, process=200 + node, seconds=ended - asked, error=None)

    def _receive(
        self,
        node: int,
        source: int,
        ref: str,
        instance: str,
        started: float,
        ended: float,
        choice: str,
        *,
        resumed: bool = False,
        received: int | None = None,
    ) -> None:
        """One transfer; it fails if `received` is given."""
        at, whom, size = self.ids[source], self.ids[node], BROADCAST_BYTES
        reason = "relays the copy that still arrives" if choice == "idle_relay" else "predicted to be the fastest"
        what: Row = {"ref": ref, "instance": instance}
        self._add(1, started - 0.002, "locate", ref=ref, reader=whom, source=at)
        self._add(node, started - 0.001, "source", ref=ref, source=at, choice=choice, reason=reason)
        self._add(node, started, "fetch", **what, source=at, bytes=size, resumed=resumed)
        self._add(source, started + 0.001, "serve", **what, reader=whom, relayed=source != 0)
        self._add(source, ended - 0.001, "served", ref=ref, instance=instance, seconds=ended - started - 0.002)
        if received is None:
            self._add(node, ended, "fetched", **what, source=at, bytes=size, seconds=ended - started)
        else:
            why = "the connection was closed"
            self._add(node, ended, "fetch_failed", **what, source=at, bytes=size, received=received, why=why)

    def _reduce(self, number: int, begun: float) -> None:
        result, size = f"sums/{number}", len(self.ids)
        inputs = [f"grads/{number}/{node}" for node in range(size)]
        for node, ref in enumerate(inputs):
            self._add(node, begun + 0.1 * node, "put", ref=ref, bytes=INPUT_BYTES, process=200 + node)
        self._add(0, begun, "reduce_begin", result=result, count=size, inputs=size, op="sum", process=100)
        self._add(0, begun + 0.01, "wait", verb="get", ref=result, process=100)
        planned, end = begun + 0.1 * size, begun + 0.1 * size + 1
        self._add(0, planned, "degree", result=result, degree="tree 2", reason="8 MiB over a link of 10 Gbit/s")
        epochs: list[tuple[int, float, float, str | None]] = [(1, planned, end, None)]
        if number % 2:
            middle = planned + 0.4
            epochs = [(1, planned, middle, "the epoch was aborted"), (2, middle, end, None)]
            why = f"the input {inputs[-1]} was lost"
            self._add(0, middle, "restart", result=result, epoch=2, why=why)
        for epoch, from_, until, error in epochs:
            for node in range(size):
                children = [self.ids[child] for child in (2 * node + 1, 2 * node + 2) if child < size]
                place: Row = {"result": result, "epoch": epoch, "position": node}
                at = until - 0.01 * node
                self._add(node, from_ + 0.02, "fold", **place, children=children, inputs=[inputs[node]])
                self._add(node, at, "folded", **place, seconds=at - from_ - 0.02, error=error)
        self._add(0, end, "reduced", result=result, seconds=end - begun)
        self._add(0, end, "reply", verb="get", ref=result, process=100, seconds=end - begun - 0.01, error=None)

    def _incidents(self, number: int, begun: float) -> None:
        last = len(self.ids) - 1
        self._add(2, begun, "evicted", copies=2)
        spilled = f"grads/{number}/1"
        self._add(1, begun + 0.1, "spill", ref=spilled, bytes=INPUT_BYTES)
        self._add(1, begun + 0.3, "spilled", ref=spilled, seconds=0.2)
        self._add(0, begun + 0.5, "member", node=self.ids[last], state="suspected", why="no ack within 1 s")
        self._add(0, begun + 0.9, "member", node=self.ids[last], state="trusted", why="acknowledged a probe")
        self._add(3, begun + 1, "limit", limit="requests", node=None, process=203)
        waited = {"verb": "get", "ref": "weights/never", "process": 201}
        self._add(1, begun, "wait", **waited)
        self._add(1, begun + 3, "reply", **waited, seconds=3.0, error="weights/never did not appear within 3 s")
