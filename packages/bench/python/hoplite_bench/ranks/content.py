"""What participants put in and what must come out; knows no system.

All values are whole numbers that float32 holds exactly, so any order of addition gives the same bits. An input is a
pattern along the array plus a constant of its rank and its round: an answer of another round, of the wrong ranks, of
one rank twice, or with blocks out of place differs from the right one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPE = np.dtype(np.float32)
# A prime, so that no block size is a multiple of it and a block in another's place shows.
PERIOD = 1021
# Elements that are written and compared at once, a multiple of the period: 4 MiB, so that to verify a large array takes
# no other of its size, which would halve what fits into a machine.
PIECE = PERIOD << 10
# Of the rounds: as many constants follow one another before one comes again.
ROUNDS = 61


def constant(rank: int, seed: int) -> int:
    """What a rank adds to the pattern: each another, and of 16 no two sets of ranks have the same sum."""
    return (1 << rank) % 65521 + seed % ROUNDS


def summed(size: int, ranks: range, seed: int) -> np.ndarray:
    """The first elements, a piece at most, of the sum of the inputs of some ranks; each piece is the same."""
    piece = np.resize(np.arange(PERIOD, dtype=DTYPE), min(size, PIECE))
    piece *= len(ranks)
    piece += sum(constant(rank, seed) for rank in ranks)
    return piece


def fill(out: np.ndarray, *, rank: int, seed: int) -> None:
    """Writes the input of a rank into a float32 array."""
    piece = summed(out.size, range(rank, rank + 1), seed)
    for at in range(0, out.size, PIECE):
        part = out[at : at + PIECE]
        part[:] = piece[: part.size]


def wrong(found: np.ndarray, *, nbytes: int, ranks: range, seed: int) -> str:
    """Compares an answer with the sum of the inputs of `ranks`, of `nbytes` each; of one rank, with its input.

    Returns:
        What differs first, or nothing if all is right.
    """
    if (found.dtype, found.shape) != (DTYPE, (nbytes // DTYPE.itemsize,)):
        return f"an array of {found.dtype} {found.shape} and not of {DTYPE} {(nbytes // DTYPE.itemsize,)}"
    piece = summed(found.size, ranks, seed)
    for start in range(0, found.size, PIECE):
        part = found[start : start + PIECE]
        expected = piece[: part.size]
        if not np.array_equal(part, expected):
            at = int(np.argmax(part != expected))
            return f"element {start + at} of {found.size} is {part[at]!s} and not {expected[at]!s}"
    return ""


def wrong_at(
    came: Sequence[np.ndarray], *, op: str, nbytes: int, rank: int, ranks: int, seed: int, inputs: int = 1
) -> str:
    """Compares all arrays that came to a rank, its own result among them, with what should have come.

    The second input of a rank is as if of a rank of its own, with a number behind those of all first ones.

    Returns:
        What is wrong first, or nothing if all is right.
    """
    everybody = range(ranks)
    expected: list[range] = []
    if op == "allreduce" or (op == "reduce" and rank == 0):
        expected = [range(ranks * inputs)]
    elif op == "gather" and rank == 0:
        expected = [range(one, one + 1) for one in everybody]
    elif (op == "broadcast" and rank > 0) or (op == "rtt" and rank < 2):
        expected = [range(1)]
    if len(came) != len(expected):
        return f"{len(came)} arrays came and not {len(expected)}"
    said = (wrong(array, nbytes=nbytes, ranks=of, seed=seed) for array, of in zip(came, expected, strict=True))
    return next(filter(None, said), "")
