"""How a report writes numbers and names: three digits, a unit that fits, systems as they call themselves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoplite_bench.row import Row

NAMES = {
    "wire": "wire",
    "memcpy": "memcpy",
    "hoplite": "Hoplite",
    "mpich": "MPICH",
    "openmpi": "Open MPI",
    "gloo": "Gloo",
    "ray": "Ray",
    "dask": "Dask",
}


def name(system: str) -> str:
    """A system's name."""
    return NAMES.get(system, system)


def title(op: str) -> str:
    """An operation as a title."""
    return "Round trip" if op == "rtt" else op.replace("_", " ").capitalize()


def number(value: float) -> str:
    """Writes three digits, or all that stand before the point: 0.0123, 1.50, 12.3, 1234."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def seconds(value: float) -> str:
    """Writes a time: 0.0123 is "12.3 ms"."""
    if value == 0:
        return "0 s"
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        # What would round to 1000 goes to the next unit.
        if value * factor < 999.5:
            return f"{number(value * factor)} {unit}"
    return f"{number(value)} s"


def size(count: int) -> str:
    """Writes a number of bytes without loss: 1048576 is "1 MiB", 1000 is "1000 B"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def memory(count: int) -> str:
    """Writes about how many bytes: 1234567890 is "1.15 GiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= 0.9995 * factor:
            return f"{number(count / factor)} {unit}"
    return f"{count} B"


def rate(value: Any) -> str:  # noqa: ANN401 - what a row says of its lab is JSON
    """Writes the rate of a link, given as tc takes it ("500mbit") or in bits per second."""
    if isinstance(value, str):
        told = re.fullmatch(r"([\d.]+)\s*([kmgt]?)bit(?:/s)?", value.lower())
        return f"{told[1]} {told[2].upper().replace('K', 'k')}bit/s" if told else value
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} bit/s"


def count(amount: int, thing: str) -> str:
    """Writes how many: "1 host", "8 hosts"."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"


def fact(key: str, value: Any) -> str:  # noqa: ANN401
    """Writes one thing that a row says of its lab or its machine; the end of the key may be a unit: "rtt_s"."""
    plain = key.replace("_", " ")
    words, _, unit = plain.rpartition(" ")
    measured = isinstance(value, int | float) and not isinstance(value, bool)
    if key in ("rate", "uplink") or (key.endswith("rate") and measured):
        return f"{plain} {rate(value)}"
    if measured and unit == "s":
        return f"{words} {seconds(value)}"
    if measured and unit in ("us", "ms", "ns"):
        return f"{words} {seconds(value / {'ms': 1e3, 'us': 1e6, 'ns': 1e9}[unit])}"
    if measured and unit == "bytes":
        return f"{words} {memory(int(value))}"
    if measured and unit == "gib":
        return f"{words} {value:g} GiB"
    if isinstance(value, dict):
        return f"{plain} ({', '.join(fact(key, value) for key, value in value.items())})"
    if isinstance(value, list):
        return f"{plain} {', '.join(map(str, value))}"
    if isinstance(value, float):
        return f"{plain} {number(value)}"
    return f"{plain} {value}"


# How a group says that one of its processes was killed; rows of before name the code alone.
_KILLED = re.compile(r"a process ended with code -9, saying 'nothing'|a process was killed \(signal 9\)")


def ended(code: int, last: str) -> str:
    """How a process ended: its exit code, or the signal that killed it, with the last line that it said, if any."""
    how = f"was killed (signal {-code})" if code < 0 else f"ended with code {code}"
    return f"a process {how}" + (f", saying {last!r}" if last else "")


def no_figure(row: Row) -> str:
    """What stands in the cell of a row without samples: the reason in a word or two, if it is a common one."""
    if row.note.startswith("does not fit"):
        return "does not fit"
    if _KILLED.search(row.note):
        return "killed"
    return "no answer" if row.note.startswith("no answer within") else "no figure"


def why(row: Row) -> str:
    """Why a row has no figure, in full."""
    if not _KILLED.search(row.note):
        return row.note
    told = _KILLED.sub("a process was killed (signal 9)", row.note)
    memory_gib = row.machine.get("memory_gib")
    if row.lab.get("kind") == "lab" and memory_gib:
        return (
            f"{told}, as Linux does when memory runs out: {count(row.hosts, 'host')} with arrays of {size(row.bytes)} "
            f"share {memory_gib:g} GiB here"
        )
    return f"{told}, as Linux does when memory runs out"
