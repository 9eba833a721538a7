"""The inputs of participants and the expected results; independent of the systems.

All values are integers that float32 represents exactly, so any order of addition produces the same bits. An input is a
pattern along the array plus a constant of its rank and its round. A result of another round, of the wrong ranks, with
one rank twice, or with misplaced blocks therefore differs from the expected one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPE = np.dtype(np.float32)
# A prime number: it divides no block size, so a misplaced block is detected.
PERIOD = 1021
# Number of elements to write and compare at once, a multiple of the period: 4 MiB. Verifying a large array thus needs
# no second one of its size, which would halve the sizes that fit into a machine.
PIECE = PERIOD << 10
# Number of different constants of successive rounds.
ROUNDS = 61


def constant(rank: int, seed: int) -> int:
    """The number that a rank adds to the pattern; of 16 ranks, no two sets have the same sum."""
    return (1 << rank) % 65521 + seed % ROUNDS


def summed(size: int, ranks: range, seed: int) -> np.ndarray:
    """The first elements (at most one piece) of the sum of the inputs of some ranks; all pieces are equal."""
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
    """Compares a result with the sum of the inputs of `ranks`, of `nbytes` each; of one rank, with its input.

    Returns:
        The first difference; empty if there is none.
    """
    if (found.dtype, found.shape) != (DTYPE, (nbytes // DTYPE.itemsize,)):
        return f"an array of {found.dtype} {found.shape} instead of {DTYPE} {(nbytes // DTYPE.itemsize,)}"
    piece = summed(found.size, ranks, seed)
    for start in range(0, found.size, PIECE):
        part = found[start : start + PIECE]
        expected = piece[: part.size]
        if not np.array_equal(part, expected):
            at = int(np.argmax(part != expected))
            return f"element {start + at} of {found.size} is {part[at]!s} instead of {expected[at]!s}"
    return ""


def wrong_at(
    came: Sequence[np.ndarray], *, op: str, nbytes: int, rank: int, ranks: int, seed: int, inputs: int = 1
) -> str:
    """Compares all arrays that a rank received, including its own result, with the expected ones.

    Further inputs of a rank count as inputs of additional ranks, numbered after all existing ones.

    Returns:
        The first error; empty if there is none.
    """
    everybody = range(ranks)
    expected: list[range] = []
    if op == "allreduce" or (op == "reduce" and rank == 0):
        expected = [range(ranks * inputs)]
    elif op == "allgather" or (op == "gather" and rank == 0):
        expected = [range(one, one + 1) for one in everybody]
    elif (op == "broadcast" and rank > 0) or (op == "rtt" and rank < 2):
        expected = [range(1)]
    if len(came) != len(expected):
        return f"{len(came)} arrays arrived instead of {len(expected)}"
    said = (wrong(array, nbytes=nbytes, ranks=of, seed=seed) for array, of in zip(came, expected, strict=True))
    return next(filter(None, said), "")
