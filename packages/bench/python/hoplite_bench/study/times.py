"""The time of a row of a study, what it is of, and which rows do the same work. Pure."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from hoplite_bench import words
from hoplite_bench.markdown import DEFAULT
from hoplite_bench.row import STREAM
from hoplite_bench.study import matrix
from hoplite_bench.systems.base import TRAIN_PS
from hoplite_bench.systems.pytorch import CUDA
from hoplite_bench.tables import HOPLITE, median

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite_bench.row import Row

# With fewer samples, their range is no measure of the spread, so nothing is concluded from them.
SAMPLES_MIN = 5
# Of the intervals of medians.
CONFIDENCE = 0.95
# Systems that communicate from the memory of GPUs only.
GPU_SYSTEMS = ("nccl", "cuda-mpi", "torch-nccl")
# Name of Hoplite's default, whose inputs and results are views of shared memory, in a report.
VIEWS = "views"


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
        if self == VIEWING:
            return f"{words.name(self.system)} ({VIEWS})"
        plain = self.variant in (DEFAULT, STREAM)
        return words.name(self.system) if plain else f"{words.name(self.system)} ({self.variant})"


VIEWING = Contender(HOPLITE, DEFAULT)


@dataclasses.dataclass(frozen=True)
class Time:
    """A median with its confidence interval, in seconds."""

    low: float
    middle: float
    high: float

    def overlaps(self, other: Time) -> bool:
        """Whether the intervals have a common part, so that the difference may be chance."""
        return self.low <= other.high and other.low <= self.high


def contender_of(row: Row) -> Contender:
    """The contender of a row."""
    return Contender(row.system, row.variant)


def workers_of(row: Row) -> int:
    """The number of workers of a row."""
    return matrix.workers_of(row.op, row.hosts)


def measured(rows: Iterable[Row]) -> list[Row]:
    """The rows with samples."""
    return [row for row in rows if row.samples]


def on_gpu(row: Row) -> bool:
    """Whether a row has times on arrays in memory of GPUs."""
    return bool(row.samples) and (row.variant == CUDA or row.system in GPU_SYSTEMS)


def is_enough(row: Row) -> bool:
    """Whether a row has enough samples to conclude something from them."""
    return len(row.samples) >= SAMPLES_MIN


def competing(rows: Sequence[Row]) -> list[Row]:
    """The rows of a cell that do the same work: Hoplite only with inputs and results in ranks' own memory.

    By default, they stay in shared memory, so that nothing is copied. Without rows of own memory, Hoplite is absent.
    """
    return [row for row in rows if contender_of(row) != VIEWING]


def time_of(row: Row) -> Time:
    """The time of a row that has samples."""
    low, high = confidence(row.samples)
    return Time(low, median(row), high)


def confidence(samples: Sequence[float]) -> tuple[float, float]:
    """The confidence interval of a median by order statistics, which assumes no distribution of the samples.

    Returns:
        Two of the samples: with 10, the second and the ninth. With fewer than 6, the range, which is less certain.
    """
    ordered = sorted(samples)
    count = len(ordered)
    skipped, doubt = 0, 2 / 2**count
    # Each sample that is left out at both ends adds the probability that the median is beyond it.
    while doubt + 2 * math.comb(count, skipped + 1) / 2**count <= 1 - CONFIDENCE:
        skipped += 1
        doubt += 2 * math.comb(count, skipped) / 2**count
    return ordered[skipped], ordered[count - 1 - skipped]


def published_time(row: Row) -> Time:
    """The time of a row that has samples, of the work that the published study counts.

    Its totals of training with a parameter server are those of gather and broadcast, without computation. Parts have
    no samples of their own, so the interval is as wide as that of whole steps.
    """
    whole = time_of(row)
    parts = [row.breakdown.get(part) for part in ("gather", "broadcast")]
    if row.op != TRAIN_PS or None in parts:
        return whole
    communication = sum(part for part in parts if part is not None)
    apart = communication - whole.middle
    return Time(max(0.0, whole.low + apart), communication, whole.high + apart)


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
