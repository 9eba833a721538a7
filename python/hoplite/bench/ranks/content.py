"""What participants put in and what must come out; knows no system.

All values are whole numbers that float32 holds exactly, so any order of addition gives the same bits. An input is a
pattern along the array plus a constant of its rank and its round: an answer of another round, of the wrong ranks, of
one rank twice, or with blocks out of place differs from the right one.
"""

from __future__ import annotations

import numpy as np

DTYPE = np.dtype(np.float32)
# A prime, so that no block size is a multiple of it and a block in another's place shows.
PERIOD = 1021
# Of the rounds: as many constants follow one another before one comes again.
ROUNDS = 61


def constant(rank: int, seed: int) -> int:
    """What a rank adds to the pattern: no two ranks of at most 16 sum to what other ranks do."""
    return (1 << rank) % 65521 + seed % ROUNDS


def pattern(nbytes: int) -> np.ndarray:
    """The values 0 to PERIOD - 1, again and again, as float32 of `nbytes` bytes."""
    return np.resize(np.arange(PERIOD, dtype=DTYPE), nbytes // DTYPE.itemsize)


def fill(out: np.ndarray, *, rank: int, seed: int) -> None:
    """Writes the input of a rank into a float32 array."""
    np.add(pattern(out.nbytes), DTYPE.type(constant(rank, seed)), out=out)


def wrong(found: np.ndarray, *, ranks: range, seed: int) -> str:
    """Compares an answer with the sum of the inputs of `ranks`; of one rank, with its input.

    Returns:
        What differs first, or nothing if all is right.
    """
    expected = pattern(found.nbytes)
    expected *= len(ranks)
    expected += sum(constant(rank, seed) for rank in ranks)
    if np.array_equal(found, expected):
        return ""
    at = int(np.argmax(found != expected))
    return (
        f"element {at} of {found.size} is {found[at]!s} and not {expected[at]!s}, "
        f"{np.count_nonzero(found != expected)} differ"
    )
