"""The rows of a study, by set-up, operation, number of workers and contender; refuses rows that would mislead.

Pure: takes rows and returns selections; does not depend on how they are shown.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from hoplite_bench import tables, words
from hoplite_bench.markdown import DEFAULT
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.study import matrix
from hoplite_bench.study.times import competing, contender_of, is_enough, measured, on_gpu, time_of, workers_of
from hoplite_bench.systems.hoplite import OWN
from hoplite_bench.tables import HOPLITE, Unreportable, median, unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.study.times import Contender

# A winner in one set-up counts as another than that of a second set-up only if it is slower there by this ratio.
CLEAR = 1.05


@dataclasses.dataclass(frozen=True)
class Case:
    """Cells that differ in the set-up only, with arrays in one kind of memory.

    Attributes:
        layer: the layer.
        op: the operation.
        workers: the number of workers.
        on_gpu: whether arrays are in memory of GPUs.
    """

    layer: str
    op: str
    workers: int
    on_gpu: bool

    def __str__(self) -> str:
        return f"{self.op}, {words.count(self.workers, 'worker')} ({self.layer}{', GPU' if self.on_gpu else ''})"


@dataclasses.dataclass(frozen=True)
class Change:
    """An operation whose fastest library differs between two set-ups.

    Attributes:
        case: the operation.
        one: row of the fastest in the first set-up.
        other: row of the fastest in the second set-up.
        one_there: row of the first one's system in the second set-up.
        other_there: row of the second one's system in the first set-up.
    """

    case: Case
    one: Row
    other: Row
    one_there: Row
    other_there: Row

    @property
    def ratio(self) -> float:
        """The smaller of the two ratios by which the wrong choice is slower."""
        return min(median(self.other_there) / median(self.one), median(self.one_there) / median(self.other))


@dataclasses.dataclass(frozen=True)
class Study:
    """All rows of a report.

    Attributes:
        rows: the rows, in display order.
        nbytes: size of each array; that of training is fixed.
        workers: the largest number of workers, which the tables are about.
    """

    rows: Sequence[Row]
    nbytes: int
    workers: int

    @property
    def containers(self) -> list[str]:
        """The set-ups with rows, in display order."""
        return [name for name in matrix.CONTAINERS if any(row.container == name for row in self.rows)]

    @property
    def layers(self) -> list[str]:
        """The layers with rows."""
        return [name for name in matrix.LAYERS if any(_in(row, name) for row in self.rows)]

    def cell(self, container: str, op: str, layer: str, workers: int | None = None) -> list[Row]:
        """The rows of a layer in one cell, without the wire; by default that with the most workers."""
        count = self.workers if workers is None else workers
        return [
            row
            for row in self.rows
            if (row.container, row.op, row.layer, workers_of(row)) == (container, op, layer, count)
            and row.system != WIRE
        ]

    def row(self, container: str, op: str, contender: Contender) -> Row | None:
        """The row of one contender in the cell with the most workers."""
        return next(
            (
                row
                for row in self.rows
                if (row.container, row.op, workers_of(row)) == (container, op, self.workers)
                and contender_of(row) == contender
            ),
            None,
        )

    def has_gpu(self, layer: str, op: str) -> bool:
        """Whether a layer has times of an operation on arrays in memory of GPUs."""
        return any(on_gpu(row) for row in self.rows if (row.layer, row.op) == (layer, op))

    def competing(self, container: str, op: str, layer: str) -> list[Row]:
        """The rows of the cell with the most workers that are compared with each other.

        If there are times on arrays in memory of GPUs, these are compared, as in the published study.
        """
        return self.of(Case(layer, op, self.workers, self.has_gpu(layer, op)), container)

    def of(self, case: Case, container: str) -> list[Row]:
        """The rows of a case in a set-up that are compared with each other."""
        cell = self.cell(container, case.op, case.layer, case.workers)
        return [row for row in competing(cell) if on_gpu(row) is case.on_gpu]

    def not_compared(self) -> list[str]:
        """Set-ups in which Hoplite is measured with views only, and therefore not compared."""
        hoplite = [row for row in measured(self.rows) if row.system == HOPLITE]
        copying = {(row.container, row.op, row.hosts) for row in hoplite if row.variant == OWN}
        return unique(row.container for row in hoplite if (row.container, row.op, row.hosts) not in copying)

    def contenders(self, layer: str, ops: Iterable[str]) -> list[Contender]:
        """The contenders of a layer that have rows of some operations, without the wire, in display order."""
        ops = list(ops)
        return unique(contender_of(row) for row in self.rows if row.op in ops and _in(row, layer))

    def cases(self) -> list[Case]:
        """Cases in which a set-up could change the fastest library: two have enough samples in the same two set-ups."""
        found = unique(Case(row.layer, row.op, workers_of(row), on_gpu(row)) for row in measured(self.rows))
        return [case for case in found if any(self._pairs(case))]

    def changes(self) -> list[Change]:
        """Cases in which the container set-up changes the fastest library, the largest ratio first.

        Both libraries must have samples in both set-ups, the wrong choice must be slower by `CLEAR` in each, and the
        confidence intervals of the two must not overlap in either.
        """
        found = []
        for case in self.cases():
            for one, other in self._pairs(case):
                here, there = min(one.values(), key=median), min(other.values(), key=median)
                if here.system == there.system:
                    continue
                change = Change(case, here, there, other[here.system], one[there.system])
                apart = not time_of(here).overlaps(time_of(change.other_there)) and not time_of(there).overlaps(
                    time_of(change.one_there)
                )
                if apart and change.ratio >= CLEAR:
                    found.append(change)
        return sorted(found, key=lambda change: -change.ratio)

    def _pairs(self, case: Case) -> Iterator[tuple[dict[str, Row], dict[str, Row]]]:
        """The rows of two set-ups by system, for the systems that have enough samples in both, if there are several."""
        cells = [{row.system: row for row in self.of(case, name) if is_enough(row)} for name in self.containers]
        for one, other in itertools.combinations(cells, 2):
            common = [name for name in one if name in other]
            if len(common) > 1:
                yield {name: one[name] for name in common}, {name: other[name] for name in common}


def collect(rows: Sequence[Row]) -> Study:
    """Checks rows and arranges them.

    Raises:
        Unreportable: there are no rows of a study, or some are of a debug build, not verified, duplicates, from several
            machines, or of several sizes.
    """
    rows = [row for row in rows if row.container]
    if not rows:
        raise Unreportable("there are no rows of a study: they have the field container, as `hoplite study` writes it")
    tables.refuse((row for row in rows if row.container not in matrix.CONTAINERS), "of an unknown container set-up")
    tables.refuse((row for row in rows if row.build != "release"), "not from a release build")
    tables.refuse((row for row in rows if row.samples and not row.verified), "not verified, so they may be wrong")
    machines = unique(_machine(row) for row in rows)
    if len(machines) > 1:
        told = "; ".join(machines)
        raise Unreportable(f"the rows are from {len(machines)} machines, whose times differ: report one only: {told}")
    sizes = unique(row.bytes for row in rows if row.op not in matrix.TRAINING)
    if len(sizes) > 1:
        told = ", ".join(map(words.size, sizes))
        raise Unreportable(f"the rows are of {len(sizes)} sizes ({told}): report one size only")
    seen: dict[tuple[object, ...], Row] = {}
    twice = [row for row in rows if seen.setdefault((row.container, *row.key()), row) is not row]
    tables.refuse(twice, "duplicates; delete the rows of one run")
    return Study(
        sorted(rows, key=_order),
        sizes[0] if sizes else 0,
        max(workers_of(row) for row in rows),
    )


def _in(row: Row, layer: str) -> bool:
    return row.layer == layer and row.system != WIRE


def _machine(row: Row) -> str:
    return ", ".join(words.fact(key, value) for key, value in row.machine.items())


def _order(row: Row) -> tuple[object, ...]:
    ops = (*matrix.OPS, *matrix.TRAINING)
    op = ops.index(row.op) if row.op in ops else len(ops)
    container = list(matrix.CONTAINERS).index(row.container)
    own = row.variant not in (DEFAULT, STREAM)
    return op, row.op, workers_of(row), container, row.layer, tables.rank(row.system), row.system, own, row.variant
