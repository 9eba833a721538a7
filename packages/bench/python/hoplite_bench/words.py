"""Formats numbers and names of a report: three digits, a suitable unit, and the official names of systems."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hoplite_bench.row import Row

NAMES = {
    "wire": "wire",
    "memcpy": "memcpy",
    "hoplite": "Hoplite",
    "hoplite-cpp": "Hoplite C++",
    "mpich": "MPICH",
    "openmpi": "Open MPI",
    "gloo": "Gloo",
    "ray": "Ray",
    "dask": "Dask",
    "torch-gloo": "torch Gloo",
    "torch-mpi": "torch MPI",
    "torch-hoplite": "torch Hoplite",
    "torch-nccl": "torch NCCL",
    "nccl": "NCCL",
    "cuda-mpi": "CUDA-aware MPI",
    "ucc": "UCC",
}


def name(system: str) -> str:
    """Returns a system's name."""
    return NAMES.get(system, system)


def title(op: str) -> str:
    """Formats an operation as a title."""
    return {"rtt": "Round trip", "ddp": "DDP step"}.get(op) or op.replace("_", " ").capitalize()


def number(value: float) -> str:
    """Formats a number with three digits, or with all digits before the decimal point: 0.0123, 1.50, 12.3, 1234."""
    return f"{value:#.3g}".rstrip(".") if abs(value) < 999.5 else f"{value:.0f}"


def seconds(value: float) -> str:
    """Formats a time: 0.0123 is "12.3 ms"."""
    if value == 0:
        return "0 s"
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        # A value that would round to 1000 gets the next unit.
        if value * factor < 999.5:
            return f"{number(value * factor)} {unit}"
    return f"{number(value)} s"


def size(count: int) -> str:
    """Formats a number of bytes exactly: 1048576 is "1 MiB", 1000 is "1000 B"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def memory(count: int) -> str:
    """Formats a number of bytes approximately: 1234567890 is "1.15 GiB"."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= 0.9995 * factor:
            return f"{number(count / factor)} {unit}"
    return f"{count} B"


def rate(value: Any) -> str:  # noqa: ANN401 - a value of a row's lab is JSON
    """Formats the rate of a link, given in tc's syntax ("500mbit") or in bit/s."""
    if isinstance(value, str):
        told = re.fullmatch(r"([\d.]+)\s*([kmgt]?)bit(?:/s)?", value.lower())
        return f"{told[1]} {told[2].upper().replace('K', 'k')}bit/s" if told else value
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} bit/s"


def count(amount: int, thing: str) -> str:
    """Formats a count: "1 host", "8 hosts"."""
    return f"{amount} {thing}" if amount == 1 else f"{amount} {thing}s"


def fact(key: str, value: Any) -> str:  # noqa: ANN401
    """Formats one fact of a row's lab or machine; the end of the key may be a unit: "rtt_s"."""
    plain = key.replace("_", " ")
    words, _, unit = plain.rpartition(" ")
    measured = isinstance(value, int | float) and not isinstance(value, bool)
    if key in ("rate", "uplink", "flow_cap") or (key.endswith("rate") and measured):
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


# Notes about a killed process; older rows have only the exit code.
_KILLED = re.compile(r"a process ended with code -9, saying 'nothing'|a process was killed \(signal 9\)")


def ended(code: int, last: str) -> str:
    """Describes how a process ended: its exit status or signal, and the last line of its output, if any."""
    how = f"was killed (signal {-code})" if code < 0 else f"exited with status {code}"
    return f"a process {how}" + (f"; its last line: {last!r}" if last else "")


def no_figure(row: Row) -> str:
    """The text in the cell of a row without samples: the reason in a word or two, if it is a common one."""
    if row.note.startswith("does not fit"):
        return "does not fit"
    if _KILLED.search(row.note):
        return "killed"
    return "no answer" if row.note.startswith("no answer within") else "no figure"


def why(row: Row) -> str:
    """The full reason why a row has no samples."""
    if not _KILLED.search(row.note):
        return row.note
    told = _KILLED.sub("a process was killed (signal 9)", row.note)
    memory_gib = row.machine.get("memory_gib")
    if row.lab.get("kind") == "lab" and memory_gib:
        return (
            f"{told}, as the Linux OOM killer does when memory runs out: {count(row.hosts, 'host')} with arrays of "
            f"{size(row.bytes)} share {memory_gib:g} GiB here"
        )
    return f"{told}, as the Linux OOM killer does when memory runs out"
