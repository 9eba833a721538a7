"""One cell of a measurement as one line of JSON: what was measured, with what, where, and the results.

Rows are the only format between bench and report. The module does not depend on how a cell is measured or shown.
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

# The baseline: one plain TCP stream of the same bytes from one host to another.
WIRE = "wire"
STREAM = "stream"
# Fields that a line lacks if they are empty.
OMITTED = ("container", "layer", "transport", "breakdown", "steady")


class BadRow(HopliteError):
    """A line is not a row of a measurement; the message names the line and the error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one system for one operation, one size and one number of hosts.

    A system that could not run has a row too: `samples` is empty, `seconds` is None and `note` is the reason.

    Attributes:
        system: wire, hoplite, hoplite-cpp, mpich, openmpi, gloo, ray, dask, torch-gloo, torch-mpi, torch-hoplite; on
            one host also memcpy.
        variant: variant of the system: "default" is its own choice, others are forced.
        version: version of the system.
        op: rtt, broadcast, gather, reduce, allreduce, allgather, ddp, train-ps, train-allreduce; on one host put, get
            and others.
        hosts: number of participating hosts.
        bytes: exact size of each participant's array.
        arrival_s: seconds between the calls of successive participants; 0 is all at once.
        inputs: arrays that each participant added to a sum; 1 in rows of older versions.
        repeats: requested number of samples.
        samples: seconds of each repeat, in order: from the last participant's call to the end of the last participant.
        seconds: "min", "median" and "max" of the samples.
        wire_ratio: median divided by the wire's median for the same bytes in the same run.
        verified: whether the content of the result was compared in every repeat, and correct.
        cpu_seconds: processor time of one repeat, of all the system's processes on all hosts; the median. It does not
            include network processing by the kernel on behalf of no process (softirq).
        peak_rss_bytes: memory of the system's processes on one host when an operation has ended and its results still
            exist; the maximum over repeats and hosts. A page that several processes share counts once.
        lab: the network: "kind" is lab or hosts, and known facts such as rate, flow cap, latency and racks.
        machine: processor, cores, memory and kernel of the first host; "others" lists differences of other hosts.
        commit: commit of hoplite's checkout; "+" marks uncommitted changes.
        build: build of hoplite's extension: release or debug.
        note: why there are no samples, or a remark for the reader.
        container: set-up of the ranks in `hoplite study`: bare, hpc, single or cross; empty in other measurements.
        layer: shell, or torch for systems of PyTorch, in `hoplite study`; empty in other measurements.
        transport: the transports that moved the data: shared memory, CMA, TCP, loopback TCP; empty if not determined.
        breakdown: seconds of each part of one repeat, of the slowest rank; the median. Empty if the system does not
            report parts.
        steady: only for `hoplite bench steady`: the bound, the fault, and more about a run whose samples are its steps.
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
    container: str = ""
    layer: str = ""
    transport: list[str] = dataclasses.field(default_factory=list)
    breakdown: dict[str, float] = dataclasses.field(default_factory=dict)
    steady: dict[str, Any] | None = None

    @property
    def what(self) -> str:
        """The operation, with the number of inputs per host if there are several."""
        return self.op if self.inputs == 1 else f"{self.op} of {self.inputs} each"

    def key(self) -> tuple[str, str, str, int, int, float, int]:
        """The fields that identify this cell within a run."""
        return self.system, self.variant, self.op, self.hosts, self.bytes, self.arrival_s, self.inputs


def spread(samples: list[float]) -> dict[str, float] | None:
    """The minimum, median and maximum of some seconds, or None if there are none."""
    if not samples:
        return None
    return {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}


def trend(samples: Sequence[float], middle: Callable[[list[float]], float] = statistics.median) -> float | None:
    """The median of the second half divided by that of the first half; above 1, repeats become slower.

    Returns:
        None for fewer than two samples, or if the first half took no time.
    """
    half = len(samples) // 2
    before = middle(list(samples[:half])) if half else 0.0
    return middle(list(samples[half:])) / before if before else None


def to_line(row: Row) -> str:
    """Serializes a row, without the end of the line."""
    fields = dataclasses.asdict(row)
    return json.dumps({name: value for name, value in fields.items() if value or name not in OMITTED})


def from_line(line: str) -> Row:
    """Parses a row.

    Raises:
        BadRow: the line is not a row.
    """
    try:
        fields = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRow(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadRow(f"a {type(fields).__name__} is not a row; a row is a JSON object")
    names = {field.name: str(field.type) for field in dataclasses.fields(Row)}
    if missing := names.keys() - {"inputs", *OMITTED} - fields.keys():
        raise BadRow(f"the row lacks the fields {', '.join(sorted(missing))}")
    if unknown := fields.keys() - names.keys():
        raise BadRow(f"the row has unknown fields: {', '.join(sorted(unknown))}")
    for name, kind in names.items():
        if name in fields and not _fits(fields[name], kind):
            raise BadRow(f"{name} is {fields[name]!r}, not {kind.replace(' | ', ' or ')}")
    row = Row(**fields)
    if row.seconds != spread(row.samples):
        raise BadRow(f"seconds are {row.seconds}, but the row's samples result in {spread(row.samples)}")
    if not row.samples and not row.note:
        raise BadRow("the row has neither samples nor a note with the reason")
    return row


def parse(data: bytes, name: str) -> list[Row]:
    """Parses the content of a file of rows; skips blank lines.

    Args:
        data: content of the file.
        name: name of the file, for the error.

    Raises:
        BadRow: a line is not a row; names the file and line number.
    """
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadRow(f"{name}: not UTF-8 text: {error}") from None
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
        BadRow: a line is not a row; names the file and line number.
    """
    return [row for path in paths for row in parse(path.read_bytes(), str(path))]


def _fits(value: object, kind: str) -> bool:
    """Whether a JSON value has the type of a field, as in its annotation."""
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
        case "list[str]":
            fits = isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "dict[str, float]":
            fits = isinstance(value, dict) and all(_number(one) for one in value.values())
        case "dict[str, Any]":
            fits = isinstance(value, dict)
        case other:
            raise AssertionError(f"a row has a field of kind {other}")
    return fits or (optional and value is None)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
