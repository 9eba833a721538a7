"""The second stage of the paper: an SMT solver searches an order with a lower cost than the one from annealing.

As in the paper, the machine of each rank is an integer, all are distinct, and they index an array of times. It
terminates for about ten machines; the other solvers do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite.extras import install
from hoplite_topology import _native

if TYPE_CHECKING:
    from hoplite_topology.problem import Wanted

# With more ranks, building the formula alone takes too long.
RANKS_MAX = 16
# Microseconds are converted to integer nanoseconds.
NANOSECONDS = 1000


@dataclass(frozen=True)
class Improved:
    """The result of the solver.

    Attributes:
        order: a better order, if one was found.
        is_best: whether it is proven that no better order exists than the best known one.
        note: a description for people.
    """

    order: list[int] | None
    is_best: bool
    note: str


def improve(
    rows: list[list[float]], wanted: Wanted, order: list[int], cost: float, *, model: str, seconds: float
) -> Improved:
    """Searches an order with a lower cost in the paper's model, within a time limit.

    Args:
        rows: round-trip times in microseconds.
        wanted: the collective.
        order: the known order.
        cost: its cost in microseconds.
        model: cost model.
        seconds: time limit.
    """
    if len(order) > RANKS_MAX:
        return Improved(None, is_best=False, note=f"Z3 was skipped: it does not finish for more than {RANKS_MAX} ranks")
    if len(order) != len(rows):
        return Improved(None, is_best=False, note="Z3 was skipped: it does not support --choose")
    if model != "paper":
        return Improved(None, is_best=False, note="Z3 was skipped: it supports only the paper's model")
    try:
        import z3
    except ImportError:
        step = install("solvers", "hoplite-topology")
        return Improved(None, is_best=False, note=f"Z3 was skipped, because it is not installed: {step}")
    best, limit, is_best = None, round(cost * NANOSECONDS), False
    solver = z3.Solver()
    solver.set("timeout", max(1, round(seconds * 1000)))
    ranks = [z3.Int(f"rank{rank}") for rank in range(len(order))]
    total = _formula(z3, solver, rows, wanted, ranks)
    while True:
        solver.add(total < limit)
        verdict = solver.check()
        if verdict != z3.sat:
            is_best = verdict == z3.unsat
            break
        found: Any = solver.model()
        best = [found[rank].as_long() for rank in ranks]
        limit = found.eval(total).as_long()
    if is_best:
        words = "Z3 proved that no order costs less"
    else:
        words = f"Z3 found {'a better order' if best else 'no better order'} within {seconds:g} s"
    return Improved(best, is_best=is_best, note=words)


def _formula(z3: Any, solver: Any, rows: list[list[float]], wanted: Wanted, ranks: list[Any]) -> Any:  # noqa: ANN401
    """Builds the cost in nanoseconds, as a term of the machines of the ranks."""
    count = len(ranks)
    times = z3.Array("times", z3.IntSort(), z3.IntSort())
    for row, cells in enumerate(rows):
        for column, time in enumerate(cells):
            solver.add(times[row * count + column] == round(time * NANOSECONDS))
    for rank in ranks:
        solver.add(rank >= 0, rank < count)
    solver.add(z3.Distinct(*ranks))

    def hop(a: int, b: int) -> Any:  # noqa: ANN401
        return times[ranks[a] * count + ranks[b]]

    def most(name: str, terms: list[Any]) -> Any:  # noqa: ANN401
        largest = z3.Int(name)
        for term in terms:
            solver.add(largest >= term)
        solver.add(z3.Or(*[largest == term for term in terms]))
        return largest

    rounds = _native.collective_pairs(wanted, count)
    if wanted.algorithm == "ring":
        return z3.Sum(*[hop(*pair) for pair in rounds[0]])
    if wanted.algorithm == "double-tree":
        return most("trees", _ways(count, rounds, hop))
    return z3.Sum(*[most(f"round{at}", [hop(*pair) for pair in pairs]) for at, pairs in enumerate(rounds)])


def _ways(count: int, trees: list[list[tuple[int, int]]], hop: Any) -> list[Any]:  # noqa: ANN401
    """The path from each rank to the root of each tree; a tree consists of pairs of a rank and its parent."""
    ways = []
    for tree in trees:
        parents = dict(tree)
        for leaf in range(count):
            way, rank = [], leaf
            while rank in parents:
                way.append(hop(rank, parents[rank]))
                rank = parents[rank]
            if way:
                ways.append(sum(way[1:], way[0]))
    return ways
