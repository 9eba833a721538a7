"""Parsing of sizes in bytes, such as "8GiB" or "500 MB". K, M, G and T alone are KiB, MiB, GiB and TiB."""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex

from hoplite._arguments import a_type
from hoplite.errors import InvalidArgument
from hoplite.ref import NUMBER_MAX

# A smaller store fits few useful objects: probably the unit is missing.
CAPACITY_MIN = 1 << 20
# The address space of a process. A larger store can't exist: probably the unit is wrong.
CAPACITY_MAX = 128 << 40

UNITS = {"": 1, "B": 1}
for _power, _prefix in enumerate("KMGT", start=1):
    # As in dd: a prefix alone is binary.
    UNITS[_prefix] = 1024**_power
    UNITS[f"{_prefix}B"] = 1000**_power
    UNITS[f"{_prefix}iB"] = 1024**_power


def check_size(what: str, size: int | str) -> int:
    """Parses a number of bytes.

    Args:
        what: name of the argument, for the error.
        size: a number, or text such as "8GiB", "8G" (the same) or "500 MB".

    Raises:
        InvalidArgument: the size is not valid, or not between 1 byte and 8 EiB.
    """
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
        if match is None or match[2] not in UNITS:
            raise InvalidArgument(
                f'{what} {size!r} is not a size: write "8GiB", "8G" (the same), "500MB" or a number of bytes'
            )
        number = int(float(match[1]) * UNITS[match[2]])
    elif isinstance(size, bool) or not isinstance(size, SupportsIndex):
        raise InvalidArgument(f"{what} must be a number of bytes or a string, not {a_type(size)}")
    else:
        number = operator.index(size)
    if not 0 < number <= NUMBER_MAX:
        raise InvalidArgument(f"{what} is {number} bytes: set more than 0 and less than 8 EiB")
    return number


def check_capacity(capacity: int | str | None) -> int | None:
    """Parses the capacity of a store, 1 MiB to 128 TiB; None stays None.

    Raises:
        InvalidArgument: the capacity is not a size, too small, or more than a process can map.
    """
    if capacity is None:
        return None
    number = check_size("capacity", capacity)
    if number < CAPACITY_MIN:
        meant = f' (did you mean "{number}GiB"?)' if number < UNITS["KiB"] else ""
        raise InvalidArgument(f"capacity {number} B is too small{meant}: set at least {CAPACITY_MIN} (1 MiB)")
    if number > CAPACITY_MAX:
        raise InvalidArgument(
            f"capacity {number} B is more than a process can map: set at most {CAPACITY_MAX} (128 TiB)"
        )
    return number
