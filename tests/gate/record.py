"""The record of the gate: its file, the comparison of a run with it, and the acceptance of new figures.

A figure may differ from the recorded value by its spread, a share of that value. All but `read` and `write` is pure.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from gate.figures import NODES, Figure, cell_of
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

# Older values kept for each figure.
HISTORY_MAX = 10
# Smallest spread of a ratio: runs of one day differ less than runs of different days.
SPREAD_MIN = 0.04
# Multiples of what was observed: the range of the medians of several runs, and the standard error of the median of one.
RANGES, ERRORS = 2.0, 4.0
# For a normal distribution, that error is 1.25 s / sqrt(n), and the quartiles are 1.35 s apart.
MEDIAN_ERROR = 1.25 / 1.35
# Runs from which on the observed spread replaces the recorded one even if it is smaller.
RUNS_MIN = 3


class BadRecord(HopliteError):
    """The record is missing or malformed; the message ends with what to do."""


class Verdict(enum.Enum):
    """The result of the comparison of one figure."""

    OK = "ok"
    BETTER = "better: accept it"
    WORSE = "WORSE"
    NEW = "NEW: accept it"
    MISSING = "MISSING"

    @property
    def fails(self) -> bool:
        """Whether the gate is red."""
        return self not in (Verdict.OK, Verdict.BETTER)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The record of a figure.

    Attributes:
        value: the median of the accepted runs.
        spread: share of the value by which a run may differ from it.
        unit: unit of the value.
        better: "lower" or "higher".
        runs: number of accepted runs.
        commit: the measured commit.
        date: date of the acceptance, ISO 8601.
        reason: why it was accepted.
        history: earlier values with their spread, commit, date and reason, the newest first.
    """

    value: float
    spread: float
    unit: str
    better: str
    runs: int
    commit: str
    date: str
    reason: str
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("value", "spread"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise ValueError(f"{name} is {number!r}, not a number of at least 0")
        for name in ("unit", "commit", "date", "reason"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r}, not text")
        if self.better not in ("lower", "higher"):
            raise ValueError(f"better is {self.better!r}, not lower or higher")
        if not isinstance(self.history, list):
            raise ValueError(f"history is {self.history!r}, not a list")

    def limits(self) -> tuple[float, float]:
        """The smallest and the largest value within the spread."""
        return self.value / (1 + self.spread), self.value * (1 + self.spread)


class Compared(NamedTuple):
    """A figure of a run next to its record, one of which may be missing."""

    name: str
    now: Figure | None
    recorded: Recorded | None
    verdict: Verdict


def compare(figures: Collection[Figure], record: Mapping[str, Recorded], wanted: Collection[str]) -> list[Compared]:
    """Compares the figures of a run with the record of the wanted cells."""
    found = [Compared(one.name, one, record.get(one.name), _verdict(one, record.get(one.name))) for one in figures]
    missing = [name for name in record if cell_of(name) in wanted and name not in {one.name for one in figures}]
    return found + [Compared(name, None, record[name], Verdict.MISSING) for name in missing]


def _verdict(now: Figure, recorded: Recorded | None) -> Verdict:
    if recorded is None or (recorded.unit, recorded.better) != (now.unit, now.better):
        return Verdict.NEW
    low, high = recorded.limits()
    if low <= now.value <= high:
        return Verdict.OK
    return Verdict.BETTER if (now.value < low) == (now.better == "lower") else Verdict.WORSE


def spread_of(runs: Sequence[Sequence[float]], unit: str) -> float:
    """The spread of a figure, from the values of one or more runs.

    It is the largest of: twice the range of the medians of the runs; four standard errors of the median of the run with
    the largest; and 4 %. A count of nodes has none.
    """
    if unit == NODES:
        return 0.0
    medians = [statistics.median(values) for values in runs]
    observed = [RANGES * (max(medians) - min(medians))]
    for values in runs:
        if len(values) > 1:
            low, _, high = statistics.quantiles(values, n=4)
            observed.append(ERRORS * MEDIAN_ERROR * (high - low) / math.sqrt(len(values)))
    return math.ceil(100 * max(SPREAD_MIN, max(observed) / statistics.median(medians))) / 100


def accept(
    record: Mapping[str, Recorded],
    figures: Collection[Figure],
    runs: Mapping[str, Sequence[Sequence[float]]],
    **why: str,
) -> dict[str, Recorded]:
    """Returns the record with the figures of a run in place of earlier values.

    Recorded figures that a measured cell no longer has are dropped. With fewer than three runs, a spread does not
    become smaller.

    Args:
        record: the record so far.
        figures: the figures of this run.
        runs: the values of each figure in all runs of this commit, including this one.
        why: commit, date and reason.
    """
    measured = {figure.cell for figure in figures}
    accepted = {name: recorded for name, recorded in record.items() if cell_of(name) not in measured}
    for figure in figures:
        values, before = runs[figure.name], record.get(figure.name)
        value, spread = statistics.median(map(statistics.median, values)), spread_of(values, figure.unit)
        history: list[dict[str, Any]] = []
        if before is not None and before.unit == figure.unit:
            spread = spread if len(values) >= RUNS_MIN else max(spread, before.spread)
            left = {name: getattr(before, name) for name in ("value", "spread", "commit", "date", "reason")}
            history = [left, *before.history][:HISTORY_MAX]
        accepted[figure.name] = Recorded(
            round(value, 4), spread, figure.unit, figure.better, len(values), history=history, **why
        )
    return accepted


def read(path: Path) -> dict[str, Recorded]:
    """Reads the file of the record.

    Raises:
        BadRecord: it is missing or malformed; names the figure.
    """
    step = "restore it with git checkout, or resolve the conflict in it"
    try:
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"].items()
    except FileNotFoundError:
        raise BadRecord(f'{path} is missing: restore it with git checkout, or record it with ACCEPT="reason"') from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadRecord(f"{path} is malformed: {type(error).__name__}: {error}; {step}") from None
    record = {}
    for name, fields in figures:
        try:
            record[name] = Recorded(**fields)
        except (TypeError, ValueError) as error:
            raise BadRecord(f"{path} is malformed: figure {name}: {error}; {step}") from None
    return record


def write(path: Path, record: Mapping[str, Recorded]) -> None:
    """Replaces the file of the record."""
    document = {"figures": {name: dataclasses.asdict(recorded) for name, recorded in sorted(record.items())}}
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)
