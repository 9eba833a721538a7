"""One cell of a measurement as one JSON line: what was measured, with what, where, and what came out.

The only thing that the bench writes and the report reads. Knows neither how a cell is measured nor how it is shown.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

# The yardstick: one plain TCP stream of the same bytes from one host to another.
WIRE = "wire"
STREAM = "stream"


class BadRow(HopliteError):
    """A line is no row of a measurement; names the line and what is wrong with it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What one system did for one operation, one size and one number of hosts.

    A system that could not run is a row too: `samples` is empty, `seconds` is None and `note` says why.

    Attributes:
        system: wire, hoplite, mpich, openmpi, gloo, ray, dask; of one host also memcpy.
        variant: how the system did it: "default" is its own choice, others are forced.
        version: of the system.
        op: rtt, broadcast, gather, reduce, allreduce; of one host put, get and others.
        hosts: how many took part.
        bytes: of each participant's array, exactly.
        arrival_s: seconds between the calls of one participant and the next; 0 is all at once.
        inputs: arrays of each participant that went into a sum; rows from before there were several have 1.
        repeats: how many samples were asked for.
        samples: seconds of each repeat, in the order taken: from the last participant's call to the end of the last
            to finish.
        seconds: "min", "median" and "max" of the samples.
        wire_ratio: median over the median of the wire of the same bytes in the same run.
        verified: whether the content of the result was compared, in every repeat, and right.
        cpu_seconds: processor time of one repeat, of all the system's processes on all hosts; the median. The kernel's
            work for the network that it does on behalf of no process (softirq) is not in it.
        peak_rss_bytes: memory that the system's processes hold on one host when an operation has ended and its results
            are still there, the most of all repeats and hosts; a page that several processes share counts once.
        lab: the network: "kind" is lab or hosts, and what is known of rate, latency, racks.
        machine: processor, cores, memory, kernel, of the first host; "others" is in what other hosts differ.
        commit: of hoplite's checkout; "+" marks uncommitted changes.
        build: of hoplite's extension: release or debug.
        note: why there is no figure, or what a reader must know about it.
        steady: of `hoplite bench steady` alone: the bound, the fault, and more about a run whose samples are its steps.
    """

    system: str
    variant: str
    version: str
    op: str
    hosts: int
    bytes: int
    arrival_s: float
    repeats: int
    seconds: dict[str, float] | None
    samples: list[float]
    wire_ratio: float | None
    verified: bool
    cpu_seconds: float | None
    peak_rss_bytes: int | None
    lab: dict[str, Any]
    machine: dict[str, Any]
    commit: str
    build: str
    note: str
    inputs: int = 1
    steady: dict[str, Any] | None = None

    @property
    def what(self) -> str:
        """The operation, with the number of inputs a host if there are several."""
        return self.op if self.inputs == 1 else f"{self.op} of {self.inputs} each"

    def key(self) -> tuple[str, str, str, int, int, float, int]:
        """What tells this cell from others of a run."""
        return self.system, self.variant, self.op, self.hosts, self.bytes, self.arrival_s, self.inputs


def spread(samples: list[float]) -> dict[str, float] | None:
    """The least, middle and greatest of some seconds, or None if there are none."""
    if not samples:
        return None
    return {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}


def trend(samples: Sequence[float], middle: Callable[[list[float]], float] = statistics.median) -> float | None:
    """The middle of the second half of some seconds over that of the first; above 1 each repeat takes longer.

    Returns:
        None of fewer than two, or if the first half took no time.
    """
    half = len(samples) // 2
    before = middle(list(samples[:half])) if half else 0.0
    return middle(list(samples[half:])) / before if before else None


def to_line(row: Row) -> str:
    """Writes a row, without the end of the line."""
    fields = dataclasses.asdict(row)
    if row.steady is None:
        del fields["steady"]
    return json.dumps(fields)


def from_line(line: str) -> Row:
    """Reads a row.

    Raises:
        BadRow: it is none.
    """
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRow(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRow(f"a {type(fields).__name__} is no row; a row is a JSON object")
    names = {field.name: str(field.type) for field in dataclasses.fields(Row)}
    if missing := names.keys() - {"inputs", "steady"} - fields.keys():
        raise BadRow(f"has no {', '.join(sorted(missing))}")
    if unknown := fields.keys() - names.keys():
        raise BadRow(f"has {', '.join(sorted(unknown))}, which no row has")
    for name, kind in names.items():
        if name in fields and not _fits(fields[name], kind):
            raise BadRow(f"{name} is {fields[name]!r}, not {kind.replace(' | ', ' or ')}")
    row = Row(**fields)
    if row.seconds != spread(row.samples):
        raise BadRow(f"seconds are {row.seconds}, but the samples say {spread(row.samples)}")
    if not row.samples and not row.note:
        raise BadRow("has no samples and no note that says why")
    return row


def parse(data: bytes, name: str) -> list[Row]:
    """Reads what is in a file of rows; blank lines are skipped.

    Args:
        data: what is in it.
        name: of the file, for the error.

    Raises:
        BadRow: a line is no row; named by file and number.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadRow(f"{name}: rows are UTF-8 text: {error}") from None
    rows = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(from_line(line))
            except BadRow as error:
                raise BadRow(f"{name}:{number}: {error}") from None
    return rows


def read(paths: Iterable[Path]) -> list[Row]:
    """Reads files of rows.

    Raises:
        BadRow: a line is no row; named by file and number.
    """
    return [row for path in paths for row in parse(path.read_bytes(), str(path))]


def _fits(value: object, kind: str) -> bool:
    """Whether a JSON value is of a field's kind, as its annotation says."""
    optional = kind.endswith(" | None")
    match kind.removesuffix(" | None"):
        case "str":
            fits = isinstance(value, str)
        case "bool":
            fits = isinstance(value, bool)
        case "int":
            fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        case "float":
            fits = _number(value)
        case "list[float]":
            fits = isinstance(value, list) and all(_number(one) for one in value)
        case "dict[str, float]":
            fits = isinstance(value, dict) and all(_number(one) for one in value.values())
        case "dict[str, Any]":
            fits = isinstance(value, dict)
        case other:
            raise AssertionError(f"a row has a field of kind {other}")
    return fits or (optional and value is None)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
