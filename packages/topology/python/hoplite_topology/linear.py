"""Proves lower bounds for rings: a linear program with cuts, then branch and bound on edges.

HiGHS finds good dual prices. `_native.Rings` computes exactly what they prove, over all edges of the complete graph, so
neither tolerances of HiGHS nor missing edges make a bound too high.
"""

from __future__ import annotations

import heapq
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hoplite_topology.relaxation import WHOLE, Cut, Edge, Relaxation

if TYPE_CHECKING:
    from hoplite_topology._native import Rings

# A bound this close to the cost closes a case.
NEAR = 1e-9
# Edges of the first program, per machine.
FIRST = 6
# Maximum rounds of cuts in one case, which end earlier if the value hardly rises.
ROUNDS = 12
RISE = 0.02
# Prices of a program without a solution are scaled to this multiple of the known ring's cost.
LARGE = 4.0
# Share of the remaining time for a search among the edges that the first program makes likely.
SHORTEN = 0.1
# Number of edges on which branching is tried.
TRIED = 6


@dataclass
class Proof:
    """A ring with a lower bound; costs are sums of hops.

    Attributes:
        order: shortest known ring.
        cost: its cost.
        bound: lower bound for all rings.
        cases: number of examined cases.
    """

    order: list[int]
    cost: float
    bound: float = 0.0
    cases: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether the known ring is proven to be the shortest."""
        return self.cost - self.bound <= NEAR * self.cost

    def take(self, order: list[int], cost: float) -> None:
        """Records a ring, if it is shorter."""
        if cost < self.cost:
            self.order, self.cost = order, cost


@dataclass(order=True)
class _Case:
    """The rings with some edges and without others; the lowest bound comes first."""

    bound: float
    number: int
    fixed: dict[Edge, bool] = field(compare=False)


def prove(rings: Rings, order: list[int], *, seconds: float, gap: float = 0.0) -> Proof:
    """Searches a lower bound for all rings, and a shorter ring, within a time limit.

    Args:
        rings: costs of hops.
        order: a short ring.
        seconds: approximate time limit.
        gap: relative distance from the bound at which the proof may stop.
    """
    return _Prover(rings, order, seconds, gap).prove()


class _Prover:
    def __init__(self, rings: Rings, order: list[int], seconds: float, gap: float) -> None:
        self._rings = rings
        self._end = time.monotonic() + seconds
        self._gap = gap
        self._proof = Proof(order, rings.length(order))
        self._among: list[Edge] | None = None
        self._program = Relaxation(rings, len(order), [Edge(*hop) for hop in rings.near(FIRST)] + _hops(order))

    def prove(self) -> Proof:
        self._root()
        if not self._is_over():
            self._shorten()
            self._narrow()
            self._branch()
        return self._proof

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _is_over(self) -> bool:
        proof = self._proof
        return self._left() <= 0 or proof.is_closed or proof.cost - proof.bound <= self._gap * proof.bound

    def _bound(
        self, *, fixed: dict[Edge, bool] | None = None, known: float | None = None, scale: float = 1.0
    ) -> tuple[float, list[tuple[float, int, int]]]:
        """The bound that the program's prices prove for a case, and the relevant edges."""
        prices = self._program.prices
        cuts = [
            (cut.inside, cut.teeth, scale * price)
            for cut, price in zip(self._program.cuts, prices.cuts, strict=False)
            if price > 0
        ]
        nodes = [scale * price for price in prices.nodes]
        edges = [(edge.a, edge.b, is_in) for edge, is_in in (fixed or {}).items()]
        return self._rings.bound(nodes, cuts, edges, self._among, known)

    def _root(self) -> None:
        """Solves the program over all edges with all violated cuts that can be found."""
        while self._program.solve(self._left()):
            cuts = self._broken()
            if cuts:
                self._program.add_cuts(cuts)
                continue
            bound, missing = self._bound()
            self._proof.bound = max(self._proof.bound, min(bound, self._proof.cost))
            if (ring := self._program.order()) is not None:
                self._proof.take(ring, self._rings.length(ring))
            most = 2 * self._program.count
            if self._is_over() or not self._program.add_edges([Edge(a, b) for _, a, b in missing[:most]]):
                return
        # The time limit was reached: the last prices prove a weaker bound.
        bound, _ = self._bound()
        self._proof.bound = max(self._proof.bound, min(bound, self._proof.cost))

    def _broken(self) -> list[Cut]:
        return [Cut(*cut) for cut in self._rings.cuts(*self._program.support())]

    def _shorten(self) -> None:
        """Searches a shorter ring of edges that the program makes likely."""
        proof = self._proof
        _, edges = self._bound(known=proof.cost)
        # Prices do not change the order of rings, but show the search which edges are long for their machines.
        start = (proof.order, self._program.prices.nodes)
        order = self._rings.shorten(start, edges, 2**40, SHORTEN * max(self._left(), 0.0), 1)
        proof.take(order, self._rings.length(order))

    def _narrow(self) -> None:
        """Builds a program with the edges that a shorter ring can have, and the cuts with a price."""
        _, edges = self._bound(known=self._proof.cost)
        self._among = [Edge(a, b) for _, a, b in edges]
        old = self._program
        first = self._among[: FIRST * old.count]
        self._program = Relaxation(self._rings, old.count, first + _hops(self._proof.order))
        counting = [cut for cut, price in zip(old.cuts, old.prices.cuts, strict=False) if price > WHOLE]
        if counting:
            self._program.add_cuts(counting)

    def _branch(self) -> None:
        """Examines cases until all are closed or the time limit is reached: lowest bound first, likelier half next."""
        proof, numbers = self._proof, itertools.count()
        waiting = [_Case(proof.bound, next(numbers), {})]
        # The lowest bound of the closed cases.
        closed = proof.cost
        case: _Case | None = None
        while case or waiting:
            lowest = min(waiting[0].bound if waiting else proof.cost, case.bound if case else proof.cost)
            proof.bound = max(proof.bound, min(lowest, closed, proof.cost))
            if self._is_over():
                return
            case = case or heapq.heappop(waiting)
            proof.cases += 1
            bound, edge = self._look(case)
            if bound >= proof.cost * (1 - NEAR) or edge is None:
                closed, case = min(closed, bound), None
                continue
            heapq.heappush(waiting, _Case(bound, next(numbers), {**case.fixed, edge: False}))
            case = _Case(bound, next(numbers), {**case.fixed, edge: True})
        proof.bound = max(proof.bound, min(closed, proof.cost))

    def _look(self, case: _Case) -> tuple[float, Edge | None]:
        """Returns the bound of a case, and the edge to branch on; None if branching can't improve it."""
        program, proof = self._program, self._proof
        program.fix(case.fixed)
        bound, before = case.bound, None
        for _ in range(ROUNDS):
            solved = program.solve(self._left())
            if not solved and solved is not None and program.add_edges(self._among or []):
                # The program may lack an edge.
                solved = program.solve(self._left())
            if solved is None:
                return bound, None
            if not solved:
                return max(bound, self._hopeless(case)), None
            proven, missing = self._bound(fixed=case.fixed)
            bound = max(bound, proven)
            if bound >= proof.cost * (1 - NEAR):
                return bound, None
            if program.add_edges([Edge(a, b) for _, a, b in missing]):
                continue
            if (ring := program.order()) is not None:
                proof.take(ring, self._rings.length(ring))
                return bound, None
            if before is not None and program.value - before < RISE * (proof.cost - program.value):
                break
            before = program.value
            cuts = self._broken()
            if not cuts:
                break
            program.add_cuts(cuts)
        return bound, self._choose(case, program.value)

    def _hopeless(self, case: _Case) -> float:
        """The bound of a case whose program has no solution, so that its prices can be scaled arbitrarily."""
        prices = self._program.prices
        largest = max(map(abs, prices.nodes + prices.cuts))
        return self._bound(fixed=case.fixed, scale=LARGE * self._proof.cost / largest)[0] if largest > 0 else 0.0

    def _choose(self, case: _Case, value: float) -> Edge | None:
        """The edge for which both branches raise the value most."""
        program, left = self._program, self._left()
        edges, parts = program.support()
        loose = [(abs(part - 0.5), edge) for edge, part in zip(edges, parts, strict=True) if part < 1 - WHOLE]
        if not loose or left <= 0:
            return None
        best: tuple[float, Edge] | None = None
        for _, edge in sorted(loose)[:TRIED]:
            rises = []
            for is_in in (True, False):
                program.fix({**case.fixed, edge: is_in})
                solved = program.solve(left)
                rises.append(self._proof.cost - value if not solved else max(program.value - value, 1e-9))
            score = rises[0] * rises[1]
            if best is None or score > best[0]:
                best = (score, edge)
        return best[1] if best else None


def _hops(order: list[int]) -> list[Edge]:
    return [Edge(min(hop), max(hop)) for hop in zip(order, order[1:] + order[:1], strict=True)]
