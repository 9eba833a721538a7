"""The rows of a study, by set-up, operation, number of workers and contender; refuses rows that would mislead.

Pure: takes rows and returns selections; does not depend on how they are shown.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from typing import TYPE_CHECKING

from hoplite_bench import tables, words
from hoplite_bench.markdown import DEFAULT
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.study import matrix
from hoplite_bench.systems.hoplite import OWN
from hoplite_bench.tables import Unreportable, median, unique

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite_bench.row import Row

# A winner in one set-up counts as another than that of a second set-up only if it is slower there by this ratio.
CLEAR = 1.05


@dataclasses.dataclass(frozen=True)
class Contender:
    """A system with one variant, as it appears in tables and figures.

    Attributes:
        system: name of the system.
        variant: its variant.
    """

    system: str
    variant: str

    def __str__(self) -> str:
        plain = self.variant in (DEFAULT, STREAM)
        return words.name(self.system) if plain else f"{words.name(self.system)} ({self.variant})"


@dataclasses.dataclass(frozen=True)
class Change:
    """An operation whose fastest library differs between two set-ups.

    Attributes:
        one: row of the fastest in the first set-up.
        other: row of the fastest in the second set-up.
        one_there: row of the first one's system in the second set-up.
        other_there: row of the second one's system in the first set-up.
    """

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

    def competing(self, container: str, op: str, layer: str, workers: int | None = None) -> list[Row]:
        """The rows of a cell that are compared with each other."""
        return competing(self.cell(container, op, layer, workers))

    def contenders(self, layer: str, ops: Iterable[str]) -> list[Contender]:
        """The contenders of a layer that have rows of some operations, without the wire, in display order."""
        ops = list(ops)
        return unique(contender_of(row) for row in self.rows if row.op in ops and _in(row, layer))

    def changes(self) -> list[Change]:
        """Cells in which the container set-up changes the fastest library, the largest ratio first.

        Both libraries must have samples in both set-ups, the wrong choice must be slower by `CLEAR` in each, and the
        samples of the two must not overlap in either.
        """
        found = []
        keys = unique((row.layer, row.op, workers_of(row)) for row in self.rows if row.system != WIRE)
        for layer, op, workers in keys:
            cells = {name: measured(self.competing(name, op, layer, workers)) for name in self.containers}
            for one, other in itertools.combinations((name for name, rows in cells.items() if rows), 2):
                here, there = best(cells[one]), best(cells[other])
                assert here is not None
                assert there is not None
                if here.system == there.system:
                    continue
                one_there = _find(cells[other], here.system)
                other_there = _find(cells[one], there.system)
                if one_there is None or other_there is None:
                    continue
                change = Change(here, there, one_there, other_there)
                apart = max(here.samples) < min(other_there.samples) and max(there.samples) < min(one_there.samples)
                if apart and change.ratio >= CLEAR:
                    found.append(change)
        return sorted(found, key=lambda change: -change.ratio)


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


def contender_of(row: Row) -> Contender:
    """The contender of a row."""
    return Contender(row.system, row.variant)


def workers_of(row: Row) -> int:
    """The number of workers of a row."""
    return matrix.workers_of(row.op, row.hosts)


def measured(rows: Iterable[Row]) -> list[Row]:
    """The rows with samples."""
    return [row for row in rows if row.samples]


def competing(rows: Sequence[Row]) -> list[Row]:
    """The rows of a cell that do the same work: a system with its own memory counts by that variant only.

    Without it, inputs and results stay in shared memory, so that nothing is copied.
    """
    copying = {row.system for row in rows if row.variant == OWN}
    return [row for row in rows if row.system not in copying or row.variant == OWN]


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest row; None if none has samples."""
    return min(measured(rows), key=median, default=None)


def worst(rows: Iterable[Row]) -> Row | None:
    """The slowest row; None if none has samples."""
    return max(measured(rows), key=median, default=None)


def deviation(row: Row) -> float:
    """Half of the distance between the quartiles of the samples, relative to the median."""
    if len(row.samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(row.samples, n=4, method="inclusive")
    return (high - low) / 2 / median(row)


def _in(row: Row, layer: str) -> bool:
    return row.layer == layer and row.system != WIRE


def _find(rows: Iterable[Row], system: str) -> Row | None:
    return next((row for row in rows if row.system == system), None)


def _machine(row: Row) -> str:
    return ", ".join(words.fact(key, value) for key, value in row.machine.items())


def _order(row: Row) -> tuple[object, ...]:
    ops = (*matrix.OPS, *matrix.TRAINING)
    op = ops.index(row.op) if row.op in ops else len(ops)
    container = list(matrix.CONTAINERS).index(row.container)
    own = row.variant not in (DEFAULT, STREAM)
    return op, row.op, workers_of(row), container, row.layer, tables.rank(row.system), row.system, own, row.variant
