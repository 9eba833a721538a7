"""Finds an order of machines, and reports its cost, the cost of others, and a lower bound."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hoplite.extras import install
from hoplite_topology import linear, problem, relaxation, smt

if TYPE_CHECKING:
    from hoplite_topology.linear import Proof
    from hoplite_topology.problem import Machines, Options, Searched, Wanted

# A bound with this relative distance from the cost counts as equal to it.
PROVEN = 1e-6
# Maximum time of the search for a ring before the proof starts, in seconds.
FIRST_S = 0.5


@dataclass(frozen=True)
class Planned:
    """An order, with costs and bounds in microseconds.

    Attributes:
        wanted: the collective.
        options: options of the search.
        machines: the machines.
        order: the machine of each rank.
        cost: cost of this order.
        cost_given: cost of the machines in the order of the matrix.
        cost_worst: highest cost found.
        bound: lower bound for all orders.
        reason: why this order is better than the given one.
        seconds: duration of the search.
        is_cut: whether the clock ended the search.
        notes: what was assumed or skipped.
    """

    wanted: Wanted
    options: Options
    machines: Machines
    order: list[int]
    cost: float
    cost_given: float
    cost_worst: float
    bound: float
    reason: str
    seconds: float
    is_cut: bool
    notes: list[str]

    @property
    def gap(self) -> float | None:
        """Relative distance of the cost from the bound; None if the bound is 0."""
        if self.cost <= self.bound:
            return 0.0
        return (self.cost - self.bound) / self.bound if self.bound > 0 else None

    @property
    def is_proven(self) -> bool:
        """Whether the order is proven to be optimal."""
        return self.gap is not None and self.gap <= PROVEN

    def as_json(self) -> dict[str, Any]:
        """Returns all fields for programs."""
        return {
            "order": self.order,
            "cost": self.cost,
            "cost_given": self.cost_given,
            "cost_worst": self.cost_worst,
            "bound": self.bound,
            "gap": self.gap,
            "proven": self.is_proven,
            "reason": self.reason,
            "seconds": self.seconds,
            "cut": self.is_cut,
            "algorithm": self.wanted.algorithm,
            "library": self.wanted.library,
            "base": self.wanted.base if self.wanted.algorithm == "bcube" else None,
            "bytes": self.wanted.bytes,
            "model": self.options.model_chosen,
            "solver": self.options.solver,
            "seed": self.options.seed,
            "machines": len(self.machines.cluster),
            "ranks": len(self.order),
            "clusters": self.machines.cluster,
            "notes": self.notes,
        }


def plan(rows: list[list[float]], wanted: Wanted, options: Options) -> Planned:
    """Searches an order with low cost.

    Args:
        rows: round-trip times in microseconds.
        wanted: the collective.
        options: options of the search.

    Raises:
        InvalidArgument: the algorithm or the options do not support this number of machines.
    """
    search = problem.search_of(wanted, options, len(rows))
    machines = problem.machines(rows, options)
    begun = time.monotonic()
    is_linear = _is_linear(wanted, search, options, len(rows))
    # HiGHS proves faster than the search, which only provides the start.
    first = replace(search, seconds=min(FIRST_S, search.seconds / 4)) if is_linear else search
    found = machines.native.plan(wanted, first)
    order, cost, bound = found["order"], found["cost"], found["bound"]
    notes = list(options.assumed)
    if options.solver == "exact" and wanted.algorithm == "ring" and not found["is_exhaustive"]:
        if is_linear:
            rings = machines.native.rings(wanted, search.model)
            proof = linear.prove(rings, order, seconds=search.seconds - (time.monotonic() - begun))
            bound = max(bound, rings.scale * proof.bound)
            if (shorter := machines.native.cost(wanted, search.model, proof.order)) < cost:
                order, cost = proof.order, shorter
            notes.append(_said(proof, search))
        elif search.ranks == len(rows):
            step = install("solvers", "hoplite-topology")
            notes.append(f"HiGHS, which proves tighter bounds for rings, is not installed: {step}")
    if options.solver == "paper":
        better = smt.improve(rows, wanted, order, cost, model=search.model, seconds=search.seconds)
        notes.append(better.note)
        if better.order is not None:
            order = better.order
            cost = machines.native.cost(wanted, search.model, order)
        if better.is_best:
            bound = cost
    if found["is_cut"]:
        notes.append("the search reached its time limit; another run may find another order")
    if options.choose is not None and options.choose < len(rows):
        notes.append(
            f"{options.choose} of {len(rows)} machines were chosen; the bound is loose, because it holds for any choice"
        )
    given = list(range(len(order)))
    reason = machines.native.reason(wanted, machines.cluster, given, order)
    return Planned(
        wanted=wanted,
        options=options,
        machines=machines,
        order=order,
        cost=cost,
        cost_given=found["cost_given"],
        cost_worst=max(found["cost_worst"], cost),
        bound=min(bound, cost),
        reason=reason,
        seconds=time.monotonic() - begun if is_linear else found["seconds"],
        is_cut=found["is_cut"],
        notes=notes,
    )


def _is_linear(wanted: Wanted, search: Searched, options: Options, count: int) -> bool:
    """Whether HiGHS proves the ring: requested, installed, and all machines take part."""
    is_asked = options.solver == "exact" and wanted.algorithm == "ring" and options.start is None
    return is_asked and search.ranks == count and relaxation.is_there()


def _said(proof: Proof, search: Searched) -> str:
    said = f"HiGHS proved the bound on the sum of hops by examining {proof.cases} cases"
    if search.model == "congestion":
        said += "; uplink load can raise the cost of the best order above this bound"
    return said


def advice(planned: Planned) -> str | None:
    """Advises on other machines: halving-doubling benefits from clusters whose sizes are powers of two."""
    sizes = planned.machines.sizes
    base = {"halving-doubling": 2, "bcube": planned.wanted.base}.get(planned.wanted.algorithm)
    if base is None or len(sizes) < 2:
        return None
    power = 1
    while all(size % (power * base) == 0 for size in sizes):
        power *= base
    rounds = sum(1 for _ in itertools.takewhile(lambda at: base**at <= power, itertools.count(1)))
    whole = sum(size // base * base for size in sizes)
    inside = f"{rounds} of the rounds can stay" if rounds else "no round can stay"
    advice = (
        f"clusters whose sizes are multiples of {base}, {base**2}, {base**3} keep 1, 2, 3 rounds inside a cluster; "
        f"with the present sizes, {inside} inside a cluster for all machines"
    )
    if whole < sum(sizes) and whole >= base:
        advice += (
            f"; {whole} of the machines would form clusters whose sizes are multiples of {base}: set --choose {whole}"
        )
    return advice
