"""Successive halving: which candidate to measure next within a budget of seconds, and which ones to drop. Pure.

Candidates race in cells, one cell for each operation and size. In every rung, each remaining candidate of a cell gets
samples until it has the rung's number. Then those are dropped whose confidence interval lies above the best one's. If
the next rung does not fit into the budget, the slower half is dropped until it does. A race ends when one candidate is
left, or after the last rung.

The module does not measure: the caller measures what `following` returns, and reports it with `record` or `exclude`.
"""

from __future__ import annotations

import dataclasses
import math
import random
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError
from hoplite_bench.select.estimates import Estimate, estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.plan import Cell, Contender

# Samples of a candidate at the end of each rung.
RUNGS = (2, 4, 8, 12)
SPENT = "not measured: the budget of {budget:g} s was spent; set a larger --budget"
CUT = "not compared: the budget of {budget:g} s was spent before all others were measured; set a larger --budget"


class BudgetTooSmall(HopliteError):
    """The budget does not allow a comparison for every operation; the message names the seconds that it takes."""


@dataclasses.dataclass
class _Race:
    cell: Cell
    # The first rung of a size precedes that of the next size, candidate by candidate for all its operations.
    tier: int
    active: list[Contender]
    samples: dict[Contender, list[float]]
    # Wall-clock seconds of each measurement.
    costs: dict[Contender, list[float]]
    rung: int = 0
    # Whether the budget was spent before each candidate had a sample.
    is_cut: bool = False

    @property
    def ended(self) -> bool:
        return self.rung >= len(RUNGS) or not self.active or (self.rung > 0 and len(self.active) == 1)

    @property
    def begun(self) -> int:
        """How many samples there are."""
        return sum(map(len, self.samples.values()))

    def waiting(self) -> list[Contender]:
        """The candidates that need another sample in this rung, those with the fewest samples first."""
        wanted = [one for one in self.active if len(self.samples[one]) < RUNGS[self.rung]]
        fewest = min((len(self.samples[one]) for one in wanted), default=0)
        return [one for one in wanted if len(self.samples[one]) == fewest]

    def cost_s(self) -> float:
        """Expected seconds of the rest of this rung. A first sample includes a start, so the cheapest one counts."""
        return sum(
            (RUNGS[self.rung] - len(self.samples[one])) * min(self.costs[one]) for one in self.active if self.costs[one]
        )


class Halving:
    """The races of one search.

    Args:
        cells: the candidates of each cell. Sizes that matter more, and candidates that matter more, come first.
        budget_s: seconds for all measurements.
        seed: seed of the order in which candidates take turns after the first rung.

    Attributes:
        dropped: why a candidate left a race, by cell and candidate.
        excluded: why a candidate left all races.
    """

    def __init__(self, cells: Mapping[Cell, Sequence[Contender]], budget_s: float, *, seed: int = 0) -> None:
        self.budget_s = budget_s
        self.dropped: dict[tuple[Cell, Contender], str] = {}
        self.excluded: dict[Contender, str] = {}
        sizes = list(dict.fromkeys(cell.nbytes for cell in cells))
        self._races = {
            cell: _Race(cell, sizes.index(cell.nbytes), list(who), {one: [] for one in who}, {one: [] for one in who})
            for cell, who in cells.items()
        }
        self._orders = random.Random(seed)

    def following(self, spent_s: float) -> tuple[Cell, Contender] | None:
        """Returns what to measure next, or None if all races have ended.

        Args:
            spent_s: seconds since the search began.

        Raises:
            BudgetTooSmall: the budget was spent before two candidates of every operation were measured.
        """
        while races := [race for race in self._races.values() if not race.ended]:
            race = min(races, key=lambda race: (race.rung, race.tier, race.rung == 0 and race.begun))
            if not race.waiting():
                self._prune(race)
                race.rung += 1
                continue
            if race.rung and not self._fit(race, spent_s):
                continue
            waiting = race.waiting()
            if spent_s >= self.budget_s:
                self._check_enough(spent_s)
                self._end(race, waiting)
                continue
            return race.cell, waiting[0] if race.rung == 0 else self._orders.choice(waiting)
        return None

    def record(self, cell: Cell, one: Contender, seconds: float, cost_s: float) -> None:
        """Adds a sample.

        Args:
            cell: where it was measured.
            one: what was measured.
            seconds: time of the operation.
            cost_s: wall-clock time of the measurement.
        """
        self._races[cell].samples[one].append(seconds)
        self._races[cell].costs[one].append(cost_s)

    def drop(self, cell: Cell, one: Contender, reason: str) -> None:
        """Takes a candidate out of one race; its samples remain."""
        self._races[cell].active.remove(one)
        self.dropped[cell, one] = reason

    def exclude(self, one: Contender, reason: str) -> None:
        """Takes a candidate out of all races."""
        self.excluded[one] = reason
        for race in self._races.values():
            if one in race.active:
                race.active.remove(one)

    def has(self, cell: Cell) -> bool:
        """Whether there is a race in a cell."""
        return cell in self._races

    def is_cut(self, cell: Cell) -> bool:
        """Whether the budget was spent before all candidates of a cell had a sample: the best may be missing."""
        return self._races[cell].is_cut

    def estimates(self, cell: Cell) -> dict[Contender, Estimate]:
        """The estimated times in a cell, of all candidates that have samples there and are not excluded."""
        found = self._races[cell].samples.items()
        return {one: estimate(samples) for one, samples in found if samples and one not in self.excluded}

    def _prune(self, race: _Race) -> None:
        """Drops the candidates that are slower than the best beyond doubt.

        With few samples, other load on the machine may have slowed all but one of them, so the fastest one counts.
        """
        found = {one: estimate(race.samples[one]) for one in race.active}
        best = min(found.values(), key=lambda one: one.seconds)
        for one, own in found.items():
            if min(race.samples[one]) * (1 - own.spread) > best.high:
                self.drop(race.cell, one, f"{own.seconds / best.seconds:.1f} times the time of the fastest")

    def _fit(self, race: _Race, spent_s: float) -> bool:
        """Drops the slower half until the rung fits into the budget; returns whether any candidate is measured."""
        while len(race.active) > 1 and spent_s + race.cost_s() > self.budget_s:
            ranked = sorted(race.active, key=lambda one: estimate(race.samples[one]).seconds)
            for one in ranked[(len(ranked) + 1) // 2 :]:
                self.drop(race.cell, one, f"slower after {len(race.samples[one])} samples; the budget allows no more")
        return len(race.active) > 1

    def _end(self, race: _Race, waiting: Sequence[Contender]) -> None:
        """Ends a race because the budget is spent; keeps candidates that have samples."""
        for one in waiting:
            if not race.samples[one]:
                self.drop(race.cell, one, SPENT.format(budget=self.budget_s))
                race.is_cut = True
        race.rung = len(RUNGS)

    def _check_enough(self, spent_s: float) -> None:
        """Raises if the budget was spent before two candidates of an operation could be compared."""
        missing = {}
        for op in dict.fromkeys(cell.op for cell in self._races):
            races = [race for cell, race in self._races.items() if cell.op == op]
            done = {one for race in races for one, samples in race.samples.items() if samples} - self.excluded.keys()
            waiting = {one for race in races for one in race.active} - done
            if len(done) < 2 and waiting:
                missing[op] = min(2 - len(done), len(waiting))
        if missing:
            costs = [cost for race in self._races.values() for own in race.costs.values() for cost in own]
            needed = spent_s + sum(missing.values()) * max(costs, default=spent_s)
            raise BudgetTooSmall(
                f"the budget of {self.budget_s:g} s is too small to compare candidates of {', '.join(missing)}: set "
                f"--budget to at least {math.ceil(needed)} s"
            )
