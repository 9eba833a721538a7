"""Parses rates and times as people write them: "1gbit" and "50us". Does not depend on links."""

from __future__ import annotations

import math
import re

from hoplite.errors import InvalidArgument

RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}

# Minimum: below it, one full packet takes more than 0.1 s. Maximum: the kernel's 32-bit field of bytes per second.
RATE_MIN = 100_000
RATE_MAX = 34_000_000_000


def parse_rate(rate: float | str, name: str = "rate") -> int:
    """Parses a rate.

    Args:
        rate: "1gbit", "500mbit", "2.5 gbit", or a number of bit/s.
        name: name of the argument, for the error.

    Returns:
        The rate in bit/s.

    Raises:
        InvalidArgument: it is not a rate, or not between 100 kbit/s and 34 Gbit/s.
    """
    value = _number(rate, RATE_UNITS)
    if value is None:
        raise InvalidArgument(f'{name} must be a rate such as "1gbit", "500mbit" or 1e9 (bit/s), not {rate!r}')
    if not RATE_MIN <= value <= RATE_MAX:
        raise InvalidArgument(f"{name} must be between 100kbit and 34gbit, not {rate!r}")
    return round(value)


def parse_time(time: float | str, name: str) -> float:
    """Parses a time.

    Args:
        time: "50us", "1ms", or a number of seconds.
        name: name of the argument, for the error.

    Returns:
        Seconds.

    Raises:
        InvalidArgument: it is not a time, or not between 0 and 1 s.
    """
    value = _number(time, TIME_UNITS)
    if value is None or not 0 <= value <= 1:
        raise InvalidArgument(f'{name} must be a time of up to 1 s such as "50us" or "1ms", not {time!r}')
    return value


def _number(value: float | str, units: dict[str, float] | dict[str, int]) -> float | None:
    """Converts a number with a unit to the unit whose factor is 1; None if it is not valid."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower())
        if match is None or match[2] not in units:
            return None
        return float(match[1]) * units[match[2]]
    # A bool is an int to Python, and callers without type checks may pass anything.
    number: object = value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
        return None
    return float(number)
