"""Reads round-trip times from a file: n lines of n numbers with commas between, in microseconds, without a header."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# What the square of the count takes in memory: half a gigabyte.
MACHINES_MAX = 8192
# Above this a round trip isn't believed: 1000 s.
RTT_US_MAX = 1e9
SYMMETRIES: dict[str, Callable[[float, float], float]] = {
    "max": max,
    "min": min,
    "mean": lambda there, back: (there + back) / 2,
}
# Directions that differ by less than this part are one number that was written twice.
SAME = 1e-6


def read_matrix(path: Path, *, symmetric: str | None = None) -> list[list[float]]:
    """Reads round-trip times.

    What stands on the diagonal says nothing, and may be empty.

    Args:
        path: of the file.
        symmetric: what is taken of the two directions, "max", "min" or "mean"; None refuses times that differ.

    Returns:
        A row for each machine, in microseconds.

    Raises:
        InvalidArgument: the file is no matrix, or an entry is missing, negative, or no time.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    lines = text.rstrip().splitlines()
    if not text.strip():
        raise InvalidArgument(f"{path} is empty; a matrix has a line for each machine")
    if len(lines) > MACHINES_MAX:
        raise InvalidArgument(f"{path} has {len(lines)} lines; at most {MACHINES_MAX} machines can be ordered")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.split(",")
        if len(cells) != len(lines):
            raise InvalidArgument(
                f"line {number} of {path} has {_count(len(cells), 'number')}, but the file has "
                f"{_count(len(lines), 'line')}: "
                "a matrix of n machines is n lines of n numbers with commas between, without a header"
            )
        rows.append(
            [
                0.0 if column == number else _time(cell, f"line {number}, column {column} of {path}")
                for column, cell in enumerate(cells, 1)
            ]
        )
    _make_symmetric(rows, path, symmetric)
    return rows


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _time(cell: str, where: str) -> float:
    cell = cell.strip()
    if not cell:
        raise InvalidArgument(f"{where} is empty: that pair has to be probed again")
    try:
        time = float(cell)
    except ValueError:
        raise InvalidArgument(f"{where} is {cell!r}, not a number of microseconds; there is no header") from None
    if math.isnan(time):
        raise InvalidArgument(f"{where} is {cell}: that pair has to be probed again")
    if not 0 <= time <= RTT_US_MAX:
        raise InvalidArgument(f"{where} is {cell}; a round trip takes 0 to {RTT_US_MAX:.0f} microseconds")
    return time


def _make_symmetric(rows: list[list[float]], path: Path, symmetric: str | None) -> None:
    for row, times in enumerate(rows):
        for column in range(row):
            there, back = times[column], rows[column][row]
            if symmetric is not None:
                times[column] = rows[column][row] = SYMMETRIES[symmetric](there, back)
            elif abs(there - back) > SAME * max(there, back):
                raise InvalidArgument(
                    f"{path} is not symmetric: line {row + 1}, column {column + 1} is {there:g}, and line "
                    f"{column + 1}, column {row + 1} is {back:g}; say which to take: --symmetric max, mean or min"
                )
            else:
                rows[column][row] = there
