"""The figures of a steady run from the times of its steps: bound, tenths, recovery. Pure."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Middle = Callable[[list[float]], float]

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


def tenths(samples: Sequence[float], steps: int, middle: Middle = statistics.median) -> list[float]:
    """The middle of each tenth of a run.

    Args:
        samples: of the steps that were done.
        steps: that the run has, if it is not cut short.
        middle: of several steps.
    """
    reached = [begin for begin in edges(steps) if begin < len(samples)]
    return [middle(list(samples[begin:end])) for begin, end in itertools.pairwise([*reached, len(samples)])]


def recovery(ends: Sequence[float], healed: float, undisturbed: float) -> int | None:
    """How many steps a run takes to recover from a fault.

    Args:
        ends: when the run began and when each step ended.
        healed: when the fault ended.
        undisturbed: the median of a step before the fault.

    Returns:
        Steps that began after the fault ended, until a step and the median of the five from it on, or of those that are
        left, are within 1.15 of the undisturbed one; None if that does not happen before the run ends.
    """
    limit = RECOVERED_RATIO * undisturbed
    after = [end - begin for begin, end in itertools.pairwise(ends) if begin >= healed]
    for step in range(len(after)):
        if max(after[step], statistics.median(after[step : step + RECOVERED_STEPS])) <= limit:
            return step
    return None
