"""The time of one candidate's operation by size: latency plus size over bandwidth, piecewise between measured sizes.

Pure. Times never fall with the size: where noise makes them, neighbors are averaged (isotonic regression), weighted by
their numbers of samples. Beyond the largest measured size, the last piece continues.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hoplite_bench.select.estimates import Estimate


class Curve:
    """A monotone function from bytes to seconds.

    Args:
        points: the estimate of each measured size in bytes; at least one.
    """

    def __init__(self, points: Mapping[int, Estimate]) -> None:
        # Blocks of sizes with one time: seconds, weight, sizes.
        blocks: list[tuple[float, int, list[int]]] = []
        for size in sorted(points):
            blocks.append((points[size].seconds, points[size].count, [size]))
            while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
                (high, many, sizes), (low, few, more) = blocks[-2:]
                blocks[-2:] = [((high * many + low * few) / (many + few), many + few, sizes + more)]
        self._points = [(size, seconds) for seconds, _, sizes in blocks for size in sizes]

    @property
    def pieces(self) -> list[tuple[int, float, float]]:
        """For each piece: its first size, its latency in seconds, and its seconds per byte."""
        _, flat = self._points[0]
        found = [(0, flat, 0.0)]
        for (start, low), (end, high) in itertools.pairwise(self._points):
            slope = (high - low) / (end - start)
            found.append((start, low - slope * start, slope))
        last, seconds = self._points[-1]
        # The last piece continues. One without a slope, or the only one, would make an array of any size take the same
        # time, so the bandwidth of its end applies.
        if found[-1][2] <= 0:
            found.append((last, 0.0, seconds / last))
        return found

    def seconds(self, nbytes: int) -> float:
        """The predicted time for a size in bytes."""
        _, latency, slope = next(piece for piece in reversed(self.pieces) if nbytes >= piece[0])
        return latency + slope * nbytes


def crossover(one: Curve, other: Curve, low: int, high: int) -> int:
    """The size between two sizes from which another curve applies.

    That is where the curves meet. If they do not, because a choice does not follow the faster curve alone, it is the
    geometric mean of the sizes.

    Args:
        one: the curve of the choice at `low`.
        other: the curve of the choice at `high`.
        low: a size in bytes.
        high: a greater one.

    Returns:
        A multiple of 4 above `low`, at most `high`.
    """
    if one.seconds(low) > other.seconds(low) or one.seconds(high) < other.seconds(high):
        return min(high, max(low + 4, math.isqrt(low * high)) // 4 * 4)
    while high - low > 4:
        middle = (low + high) // 8 * 4
        if one.seconds(middle) <= other.seconds(middle):
            low = middle
        else:
            high = middle
    return high
