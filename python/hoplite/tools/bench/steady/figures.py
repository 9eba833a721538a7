"""The figures of a steady run from the times of its steps: tenths, trend, recovery. Pure."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# What TCP carries of a link's rate, in frames of 1500 bytes.
TCP_SHARE = 0.956
# Steps at both ends of a run that are compared with all of it.
FIRST = 20
LAST = 100
# A run has recovered from a fault once the median of so many steps is so near the undisturbed one.
RECOVERED_STEPS = 5
RECOVERED_RATIO = 1.15


def wire_seconds(nbytes: int, rate: int) -> float:
    """How long one TCP stream takes for an object.

    Args:
        nbytes: of the object.
        rate: of the link, in bits per second of Ethernet frames.
    """
    return nbytes * 8 / (rate * TCP_SHARE)


def steps_of(ends: Sequence[float]) -> list[float]:
    """Seconds of each step, from the moments at which the run began and each step ended."""
    return [end - begin for begin, end in itertools.pairwise(ends)]


def edges(count: int, parts: int = 10) -> list[int]:
    """Where the parts of a run begin, and its end: of fewer steps than parts, a part for each step."""
    parts = min(parts, count)
    return [count * part // parts for part in range(parts + 1)] if parts else [0]


def tenths(samples: Sequence[float]) -> list[float]:
    """The median of each tenth of a run."""
    return [statistics.median(samples[begin:end]) for begin, end in itertools.pairwise(edges(len(samples)))]


def trend(samples: Sequence[float]) -> float | None:
    """The median of the second half of a run over that of the first; above 1 the run slows down. None for one step."""
    half = len(samples) // 2
    if not half:
        return None
    return statistics.median(samples[half:]) / statistics.median(samples[:half])


def recovery(ends: Sequence[float], healed: float, undisturbed: float) -> int | None:
    """How many steps a run takes to recover from a fault.

    Args:
        ends: when the run began and when each step ended.
        healed: when the fault ended.
        undisturbed: the median of a step before the fault.

    Returns:
        Steps that began after the fault ended, until the median of the next five is within 1.15 of the undisturbed
        one; None if that does not happen before the run ends.
    """
    after = [end - begin for begin, end in itertools.pairwise(ends) if begin >= healed]
    for step in range(len(after) - RECOVERED_STEPS + 1):
        if statistics.median(after[step : step + RECOVERED_STEPS]) <= RECOVERED_RATIO * undisturbed:
            return step
    return None
