"""Sizes, rates and times as text, and names as visible text."""

from __future__ import annotations

import datetime as dt


def write_size(count: float) -> str:
    """Writes a number of bytes: 1536 is "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def write_rate(bits_per_second: float) -> str:
    """Writes a rate for people: 500000000 is "500 Mbit/s"."""
    for unit, count in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits_per_second >= count:
            return f"{bits_per_second / count:.4g} {unit}"
    return f"{bits_per_second:.0f} bit/s"


def duration(seconds: float) -> str:
    """Writes a time as hours, minutes and seconds: 75 is "0:01:15"."""
    return str(dt.timedelta(seconds=round(seconds)))


def visible(text: str) -> str:
    """Escapes invisible characters of a text, except line ends."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
