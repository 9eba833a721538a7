"""Computes bound, tenths and recovery of a steady run from the times of its steps. Pure."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Middle = Callable[[list[float]], float]

# Share of a link's rate that TCP payload reaches, in frames of 1500 bytes.
TCP_SHARE = 0.956
# Number of steps at both ends of a run that are compared with the whole run.
FIRST = 20
LAST = 100
# A run has recovered from a fault once the median of this many steps is within this ratio of the undisturbed step.
RECOVERED_STEPS = 5
RECOVERED_RATIO = 1.15


def wire_seconds(nbytes: int, rate: int) -> float:
    """The time of one TCP stream for an object, in seconds.

    Args:
        nbytes: size of the object.
        rate: rate of the link, in bit/s of Ethernet frames.
    """
    return nbytes * 8 / (rate * TCP_SHARE)


def steps_of(ends: Sequence[float]) -> list[float]:
    """Seconds of each step, from the times at which the run began and each step ended."""
    return [end - begin for begin, end in itertools.pairwise(ends)]


def edges(count: int, parts: int = 10) -> list[int]:
    """The start of each part of a run, and its end; if there are fewer steps than parts, each step is a part."""
    parts = min(parts, count)
    return [count * part // parts for part in range(parts + 1)] if parts else [0]


def tenths(samples: Sequence[float], steps: int, middle: Middle = statistics.median) -> list[float]:
    """The typical step of each tenth of a run.

    Args:
        samples: seconds of the finished steps.
        steps: planned number of steps of the run.
        middle: computes the typical one of several steps.
    """
    reached = [begin for begin in edges(steps) if begin < len(samples)]
    return [middle(list(samples[begin:end])) for begin, end in itertools.pairwise([*reached, len(samples)])]


def recovery(ends: Sequence[float], healed: float, undisturbed: float) -> int | None:
    """The number of steps until a run has recovered from a fault.

    Args:
        ends: times at which the run began and each step ended.
        healed: time at which the fault ended.
        undisturbed: the median of a step before the fault.

    Returns:
        Steps that began after the fault ended, until a step and the median of the next five (or of those left) are both
        within 1.15 of the undisturbed step. None if that does not happen before the run ends.
    """
    limit = RECOVERED_RATIO * undisturbed
    after = [end - begin for begin, end in itertools.pairwise(ends) if begin >= healed]
    for step in range(len(after)):
        if max(after[step], statistics.median(after[step : step + RECOVERED_STEPS])) <= limit:
            return step
    return None
