"""Measures the candidates of a request on a network, and makes the plan of it.

Each group of settings of a library runs in its own processes, through the bench, which verifies every result. A
candidate whose processes crash, hang or have a wrong result is excluded with the reason, and the others go on. The
seconds that a failed candidate took do not count against the budget.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError, Timeout
from hoplite_bench import plan as bench
from hoplite_bench.environments import STEP
from hoplite_bench.run import Measured, Runner
from hoplite_bench.select import candidates as known
from hoplite_bench.select.choice import choose, ranges
from hoplite_bench.select.halving import CUT, Halving
from hoplite_bench.select.model import Curve
from hoplite_bench.select.plan import Candidate, Plan, Rule
from hoplite_bench.systems.pytorch import CUDA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Agents, Network
    from hoplite_bench.plan import Cell, Contender
    from hoplite_bench.select.estimates import Estimate
    from hoplite_bench.select.request import Request
    from hoplite_bench.systems import System

# Sizes that are measured below the requested one.
SIZES = (2**10, 2**16, 2**20, 2**24, 2**26, 2**28, 2**30)
# Sizes that differ by less than this factor do not need one measurement each.
NEAR = 2
# Rate of memory that ranks share, in bit/s, to estimate the time of a cell on one machine.
MEMORY_BITS = 32 * 10**9
# The first rung at the largest size may take this share of the budget.
SHARE = 0.5
# A rank that does not answer for this time, plus that of the data, hangs. A start includes an import of torch by each
# rank.
HANG_S = 5.0
START_HANG_S = 40.0
# A step gets at least this time, however close the deadline is.
SHORTEST_S = 0.1


class NoCandidate(HopliteError):
    """No library can be chosen; the message names the reason for each."""


class _Turns(Runner):
    """Runs single measurements, with timeouts for candidates that may hang, none of them beyond a deadline."""

    start_timeout_s: float = START_HANG_S
    deadline = float("inf")

    @property
    def _remaining_s(self) -> float:
        return max(SHORTEST_S, self.deadline - time.monotonic())

    def step_timeout_s(self, cell: Cell) -> float:
        return min(HANG_S + super().step_timeout_s(cell) - bench.PATIENCE_S, self._remaining_s)

    def measure_once(self, cell: Cell, found: Measured) -> bool:
        """Adds a sample, after a warm-up if it is the first; returns whether a failure is one of the processes."""
        self.start_timeout_s = min(type(self).start_timeout_s, self._remaining_s)
        if not found.samples:
            self._turn(cell, found, warm=True)
        if not found.failure:
            self._turn(cell, found, warm=False)
        one = found.contender
        return cell in self._failures.get((one.system, one.group), {})


class Search:
    """One search.

    Args:
        network: the hosts.
        agents: agents of these hosts.
        request: what to choose for.
        systems: the candidates' systems.
        environments: where they are installed.
        previous: an earlier plan for the same environment, whose choices stay unless they are clearly slower.
        unsafe: checks which systems do not survive failures; returns the reason of each.
        notify: called with a progress message when a step begins.
        deadline: time of the monotonic clock at which the search is abandoned.
    """

    def __init__(
        self,
        network: Network,
        agents: Agents,
        request: Request,
        *,
        systems: Sequence[System],
        environments: Environments,
        previous: Plan | None = None,
        unsafe: Callable[[Sequence[System]], Mapping[str, str]] = lambda _: {},
        notify: Callable[[str], None] = lambda _: None,
        deadline: float = float("inf"),
    ) -> None:
        self._network = network
        self._request = request
        self._systems = {system.name: system for system in systems}
        self._previous = previous
        self._find_unsafe = unsafe
        self._notify = notify
        self._deadline = deadline
        self._runner = _Turns(
            network, agents, systems, repeats=1, environments=environments, notify=notify, turned=self._check_deadline
        )
        self._runner.deadline = deadline

    def run(self, key: str) -> Plan:
        """Measures and chooses.

        Args:
            key: fingerprint of the plan.

        Raises:
            BudgetTooSmall: the budget was spent before two candidates of every operation were measured.
            NoCandidate: no library is left for an operation.
            Timeout: the deadline passed.
        """
        for system in self._systems.values():
            system.adapt(self._network.hosts, self._network.topology, plain=False, transports=self._network.transports)
        self._runner.prepare()
        there = [one for name, one in self._systems.items() if name not in self._runner.unavailable]
        self._check_deadline()
        unsafe = self._find_unsafe(there) if self._request.safe else {}
        self._check_deadline()
        usable = [one for one in there if one.name not in unsafe]
        sizes = measured_sizes(self._request, self._network, len(usable))
        halving = Halving(
            {bench.Cell(op, size): who for size in sizes for op in self._request.all_ops if (who := _who(usable, op))},
            self._request.budget_s,
        )
        try:
            self._measure(halving)
        finally:
            self._runner.close()
        unavailable = {
            name: why.replace(STEP, "run hoplite select --install") for name, why in self._runner.unavailable.items()
        }
        return _Result(self._request, self._systems, halving, sizes, unavailable, unsafe).plan(
            key, known.default(self._request.layer, there), self._previous
        )

    def _measure(self, halving: Halving) -> None:
        measured: dict[tuple[Cell, Contender], Measured] = {}
        spent = 0.0
        while (following := halving.following(spent)) is not None:
            cell, one = following
            found = measured.setdefault(following, Measured(one))
            began = time.monotonic()
            crashed = self._runner.measure_once(cell, found)
            took = time.monotonic() - began
            if not found.failure:
                spent += took
                halving.record(cell, one, found.samples[-1], took)
            elif crashed:
                halving.exclude(one, f"{cell}: {found.failure}")
            else:
                halving.drop(cell, one, found.failure)

    def _check_deadline(self, *_: object) -> None:
        if time.monotonic() > self._deadline:
            raise Timeout("the selection did not end within its timeout: set a longer timeout or a smaller budget")


def measured_sizes(request: Request, network: Network, systems: int) -> list[int]:
    """The sizes to measure, that which matters most first: the requested one, or the largest that the budget allows."""
    hosts = len(network.hosts)
    is_one_machine = len({host.address for host in network.hosts}) == 1
    rate = network.rate or (MEMORY_BITS if is_one_machine else 0)
    smaller = [size for size in SIZES if size * NEAR <= request.nbytes]
    sizes = [*smaller, request.nbytes]

    def cost_s(size: int) -> float:
        return systems * sum(bench.expected_s(bench.Cell(op, size), hosts, rate, 1) for op in request.all_ops)

    while len(sizes) > 1 and cost_s(sizes[-1]) > SHARE * request.budget_s:
        sizes.pop()
    return sizes[::-1]


def _who(systems: Sequence[System], op: str) -> list[Contender]:
    """The candidates of an operation, those without settings first, because they start most of what is needed.

    Arrays are in host memory: times of tensors on a GPU can't be compared with these.
    """
    found = [one for one in bench.contenders(systems, op) if one.variant != CUDA]
    return sorted(found, key=lambda one: one.group != "default")


@dataclasses.dataclass(frozen=True)
class _Result:
    """What a search found, from which the plan is made."""

    request: Request
    systems: Mapping[str, System]
    halving: Halving
    sizes: Sequence[int]
    unavailable: Mapping[str, str]
    unsafe: Mapping[str, str]

    def plan(self, key: str, default: Contender | None, previous: Plan | None) -> Plan:
        rules: list[Rule] = []
        candidates: list[Candidate] = []
        for op in self.request.all_ops:
            tables = self._tables(op)
            if not tables:
                raise NoCandidate(self._nobody(op))
            choices = {
                size: choose(found, default=default, previous=self._earlier(previous, op, size))
                for size, found in tables.items()
            }
            rules += self._rules(op, choices)
            candidates += [one for size in tables for one in self._outcomes(op, size, tables[size], choices[size])]
            cut = [size for size in sorted(self.sizes) if size not in tables and self._is_cut(op, size)]
            candidates += [one for size in cut for one in self._outcomes(op, size, {}, None)]
        request = self.request
        return Plan(
            key,
            request.arch,
            request.nbytes,
            request.ranks,
            request.layer,
            tuple(rules),
            tuple(candidates),
            cached=False,
            budget_s=request.budget_s,
        )

    def _tables(self, op: str) -> dict[int, dict[Contender, Estimate]]:
        """The estimates at each compared size and at the requested one, which may have to be predicted."""
        found = {size: self._estimates(op, size) for size in sorted(self._compared(op))}
        if found and self.request.nbytes not in found:
            last, curves = max(found), self._curves(op)
            found[self.request.nbytes] = {
                one: dataclasses.replace(at, seconds=curves[one].seconds(self.request.nbytes))
                for one, at in found[last].items()
            }
        return found

    def _compared(self, op: str) -> list[int]:
        """The sizes at which all candidates were measured; if there is none, the first one with any."""
        measured = [size for size in self.sizes if self._estimates(op, size)]
        return [size for size in measured if not self._is_cut(op, size)] or measured[:1]

    def _is_cut(self, op: str, size: int) -> bool:
        cell = bench.Cell(op, size)
        return self.halving.has(cell) and self.halving.is_cut(cell)

    def _estimates(self, op: str, size: int) -> dict[Contender, Estimate]:
        cell = bench.Cell(op, size)
        return self.halving.estimates(cell) if self.halving.has(cell) else {}

    def _curves(self, op: str) -> dict[Contender, Curve]:
        points: dict[Contender, dict[int, Estimate]] = {}
        for size in self._compared(op):
            for one, found in self._estimates(op, size).items():
                points.setdefault(one, {})[size] = found
        return {one: Curve(found) for one, found in points.items()}

    def _earlier(self, previous: Plan | None, op: str, size: int) -> Contender | None:
        if previous is None or op not in previous.ops:
            return None
        rule = previous.rule(op, size)
        who = _who([self.systems[rule.system]] if rule.system in self.systems else [], op)
        return next((one for one in who if one.variant == rule.variant), None)

    def _rules(self, op: str, choices: Mapping[int, tuple[Contender, str]]) -> list[Rule]:
        curves = self._curves(op)
        chosen = {size: one for size, (one, _) in choices.items()}
        return [
            Rule(
                op,
                below,
                one.system,
                one.variant,
                known.settings(self.systems[one.system], op, one),
                curves[one].seconds(self.request.nbytes if below is None else below),
            )
            for below, one in ranges(chosen, curves)
        ]

    def _outcomes(
        self, op: str, size: int, found: Mapping[Contender, Estimate], choice: tuple[Contender, str] | None
    ) -> list[Candidate]:
        """What became of each candidate at one size; without a choice if the budget did not allow a comparison."""
        chosen, reason = choice or (None, "")
        # A size that was not measured is predicted from the largest one that was.
        last = max(self._compared(op))
        is_measured = bool(self._estimates(op, size))
        cell = bench.Cell(op, size if size in self.sizes else last)
        if self._is_cut(op, cell.nbytes):
            reason += "; the budget was spent before others were measured"
        fastest = min((one.seconds for one in found.values()), default=0.0)
        outcomes: list[Candidate] = []
        for one in _who(list(self.systems.values()), op):
            own = found.get(one)
            seconds = own.seconds if own is not None else None
            spread = own.spread if own is not None and is_measured else None
            if one.system in self.unavailable:
                state, why = "unavailable", self.unavailable[one.system]
            elif one.system in self.unsafe:
                state, why = "excluded", self.unsafe[one.system]
            elif one in self.halving.excluded:
                state, why = "excluded", self.halving.excluded[one]
            elif one == chosen:
                state, why = "chosen", reason
            elif (cell, one) in self.halving.dropped:
                state, why = "dropped", self.halving.dropped[cell, one]
            elif choice is None:
                state, why = "dropped", CUT.format(budget=self.request.budget_s)
            elif seconds is None:
                state, why = "dropped", "no time at this size"
            else:
                state = "measured"
                why = f"{seconds / fastest:.2f} times the time of the fastest" if seconds > fastest else "the fastest"
            if spread is None and seconds is not None:
                why += f"; predicted from {last} bytes"
            outcomes.append(Candidate(one.system, one.variant, op, size, seconds, spread, state, why))
        return outcomes

    def _nobody(self, op: str) -> str:
        reasons = {**self.unavailable, **self.unsafe}
        reasons |= {one.system: reason for one, reason in self.halving.excluded.items()}
        reasons |= {one.system: reason for (cell, one), reason in self.halving.dropped.items() if cell.op == op}
        every = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no library supports it"
        step = "set --no-require-failures to accept libraries that hang" if self.unsafe else "add --install to install"
        return f"no library can be chosen for {op}: {every}; {step}"
