"""The paper's second stage: an SMT solver looks for an order that costs less than the one that annealing found.

As the paper has it: the machine of each rank is an integer, all are distinct, and the times are an array that these
index. It comes to an end for about ten machines; the other solvers don't need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite_topology import _native

if TYPE_CHECKING:
    from hoplite_topology.problem import Wanted

EXTRA = "hoplite-topology[solvers]"
# Above this the formula alone takes longer than any patience.
RANKS_MAX = 16
# Microseconds become whole numbers of nanoseconds.
NANOSECONDS = 1000


@dataclass(frozen=True)
class Improved:
    """What the solver came to.

    Attributes:
        order: a better order, if there is one.
        is_best: whether it is proven that no order is better than the one that is now known.
        said: the same in words.
    """

    order: list[int] | None
    is_best: bool
    said: str


def improve(
    rows: list[list[float]], wanted: Wanted, order: list[int], cost: float, *, model: str, seconds: float
) -> Improved:
    """Looks for an order that costs less by the paper's model, for so many seconds.

    Args:
        rows: round-trip times in microseconds.
        wanted: the collective.
        order: the one that is known.
        cost: what it costs, in microseconds.
        model: by which.
        seconds: when to give up.
    """
    if len(order) > RANKS_MAX:
        return Improved(None, is_best=False, said=f"Z3 was left out: it doesn't end for more than {RANKS_MAX} ranks")
    if len(order) != len(rows):
        return Improved(None, is_best=False, said="Z3 was left out: it doesn't choose among machines")
    if model != "paper":
        return Improved(None, is_best=False, said="Z3 was left out: it knows the paper's model only")
    try:
        import z3
    except ImportError:
        return Improved(None, is_best=False, said=f"Z3 was left out: pip install '{EXTRA}'")
    best, limit, is_best = None, round(cost * NANOSECONDS), False
    solver = z3.Solver()
    solver.set("timeout", max(1, round(seconds * 1000)))
    ranks = [z3.Int(f"rank{rank}") for rank in range(len(order))]
    total = _formula(z3, solver, rows, wanted, ranks)
    while True:
        solver.add(total < limit)
        said = solver.check()
        if said != z3.sat:
            is_best = said == z3.unsat
            break
        found: Any = solver.model()
        best = [found[rank].as_long() for rank in ranks]
        limit = found.eval(total).as_long()
    if is_best:
        words = "Z3 proved that no order costs less"
    else:
        words = f"Z3 found {'a better order' if best else 'nothing better'}, and gave up after {seconds:g} s"
    return Improved(best, is_best=is_best, said=words)


def _formula(z3: Any, solver: Any, rows: list[list[float]], wanted: Wanted, ranks: list[Any]) -> Any:  # noqa: ANN401
    """The cost in nanoseconds, as a term of the ranks' machines."""
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
    """The way from each rank of the trees to its root; trees are pairs of a rank and its parent."""
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
