"""Parses round-trip times: n lines of n numbers in microseconds, separated by commas, without a header."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# A matrix of this size needs half a gigabyte of memory.
MACHINES_MAX = 8192
# Longer round trips are rejected as implausible: 1000 s.
RTT_US_MAX = 1e9
SYMMETRIES: dict[str, Callable[[float, float], float]] = {
    "max": max,
    "min": min,
    "mean": lambda there, back: (there + back) / 2,
}
# Directions whose relative difference is smaller count as equal.
SAME = 1e-6


def read_matrix(path: Path, *, symmetric: str | None = None) -> list[list[float]]:
    """Parses a file of round-trip times.

    Entries on the diagonal are ignored, and may be empty.

    Args:
        path: the file.
        symmetric: how to combine the two directions, "max", "min" or "mean"; None rejects different times.

    Returns:
        A row of times in microseconds for each machine.

    Raises:
        InvalidArgument: the file is not a matrix, or an entry is missing, negative or not a time.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    lines = text.rstrip().splitlines()
    if not text.strip():
        raise InvalidArgument(f"{path} is empty: write one line per machine")
    if len(lines) > MACHINES_MAX:
        raise InvalidArgument(f"{path} has {len(lines)} lines: list at most {MACHINES_MAX} machines")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.split(",")
        if len(cells) != len(lines):
            raise InvalidArgument(
                f"line {number} of {path} has {_count(len(cells), 'number')}, but the file has "
                f"{_count(len(lines), 'line')}: "
                "write n lines of n numbers separated by commas, without a header"
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
        raise InvalidArgument(f"{where} is empty: probe that pair again")
    try:
        time = float(cell)
    except ValueError:
        raise InvalidArgument(
            f"{where} is {cell!r}, not a number of microseconds: write numbers only, without a header"
        ) from None
    if math.isnan(time):
        raise InvalidArgument(f"{where} is {cell}: probe that pair again")
    if not 0 <= time <= RTT_US_MAX:
        raise InvalidArgument(f"{where} is {cell}: set 0 to {RTT_US_MAX:.0f} microseconds")
    return time


def _make_symmetric(rows: list[list[float]], path: Path, symmetric: str | None) -> None:
    for row, times in enumerate(rows):
        for column in range(row):
            there, back = times[column], rows[column][row]
            if symmetric is not None:
                times[column] = rows[column][row] = SYMMETRIES[symmetric](there, back)
            elif abs(there - back) > SAME * max(there, back):
                raise InvalidArgument(
                    f"{path} is not symmetric: line {row + 1}, column {column + 1} is {there:g}, but line "
                    f"{column + 1}, column {row + 1} is {back:g}; set --symmetric to max, mean or min"
                )
            else:
                rows[column][row] = there
