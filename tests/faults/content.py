"""Contents of test objects: every element identifies its object, and every sum identifies its inputs.

This module does not depend on nodes.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

DTYPE = np.dtype(np.int64)

# Elements compared at a time; a block fits a processor's cache.
BLOCK = 1 << 15

# Larger than the number of elements of any object, so that no element of two objects is the same.
STRIDE = 1 << 32


@functools.lru_cache(maxsize=8)
def _places(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=DTYPE)


def fill(into: NDArray[np.int64], seed: int) -> None:
    """Writes the object of a seed: each element is its index plus `seed` times 2^32.

    Args:
        into: int64 [count].
        seed: 0 to 2^20, so that sums of a thousand objects do not overflow.
    """
    np.add(_places(len(into)), seed * STRIDE, out=into)


def wrong(array: NDArray[np.int64], seeds: Sequence[int]) -> str:
    """Describes where an array differs from the sum of the objects of some seeds.

    Args:
        array: int64 [count].
        seeds: seeds of the objects; one seed for an object that is not a sum.

    Returns:
        Index and elements in words; empty if all elements are right.
    """
    places, offset = _places(len(array)), sum(seeds) * STRIDE
    for begin in range(0, len(array), BLOCK):
        block = slice(begin, begin + BLOCK)
        expected = places[block] * len(seeds) + offset
        if not np.array_equal(array[block], expected):
            at = int(np.flatnonzero(array[block] != expected)[0])
            found = int(array[block][at])
            return f"element {begin + at} of {len(array)} is {found:#x}, not {int(expected[at]):#x} of {list(seeds)}"
    return ""
