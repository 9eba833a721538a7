"""The median of a few samples and its confidence interval. Pure.

Samples of one operation on a shared machine scatter by a tenth to a fifth, with outliers above only. Two samples can be
equal by chance, so the width of an interval starts at a prior spread, which counts as much as PRIOR_SAMPLES samples.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Relative standard deviation of a sample before any is known, and its weight in samples.
PRIOR = 0.2
PRIOR_SAMPLES = 2
# Standard errors in the half-width of a 95 % interval.
WIDTH = 2.0
# The standard deviation of a normal distribution, as a multiple of its median absolute deviation.
MAD = 1.4826


@dataclasses.dataclass(frozen=True)
class Estimate:
    """An estimated time.

    Attributes:
        seconds: the median.
        spread: relative half-width of the 95 % confidence interval.
        count: number of samples.
    """

    seconds: float
    spread: float
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval, in seconds."""
        return self.seconds * max(0.0, 1 - self.spread)

    @property
    def high(self) -> float:
        """Upper end of the interval, in seconds."""
        return self.seconds * (1 + self.spread)


def estimate(samples: Sequence[float]) -> Estimate:
    """Estimates a time from samples in seconds, of which there is at least one."""
    middle = statistics.median(samples)
    # The median absolute deviation ignores outliers, whose cause is other load on the machine.
    deviation = MAD * statistics.median(abs(one - middle) for one in samples) / middle if middle else 0.0
    count = len(samples)
    variance = (PRIOR_SAMPLES * PRIOR**2 + (count - 1) * deviation**2) / (PRIOR_SAMPLES + count - 1)
    return Estimate(middle, WIDTH * math.sqrt(variance / count), count)
