"""The comparisons of a report, before they are formatted: groups rows into cases and compares systems.

Takes rows and returns selections; refuses rows that would make a report misleading. Does not depend on Markdown or
figures.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import string
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench import words
from hoplite_bench.row import STREAM, WIRE, trend
from hoplite_bench.systems.base import OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hoplite_bench.row import Row

HOPLITE = "hoplite"
# Hoplite in another language, and as the backend of another system: not alternatives to it.
HOPLITE_CPP = "hoplite-cpp"
TORCH_HOPLITE = "torch-hoplite"
MEMCPY = "memcpy"
# Baselines to compare with, which are not alternatives to Hoplite.
YARDSTICKS = (WIRE, MEMCPY)
# Systems whose participants and order are fixed before they start; the others discover them at run time.
STATIC = ("mpich", "openmpi", "gloo", "torch-gloo", "torch-mpi")
SYSTEMS = (WIRE, MEMCPY, HOPLITE, HOPLITE_CPP, *STATIC, TORCH_HOPLITE, "ray", "dask")
# Order of the operations of one host.
ALONE = ("memcpy", "put", "get", "get_repeated", "create_seal", "put_get", "reduce", "write_location", "look_up")
# Below this size, a stream ends before the link is saturated: delays determine the time, so a limit means nothing.
LIMIT_BYTES = 2**20
# A cell is flagged if it has at least this many repeats, and the second half is slower by this ratio.
DRIFT_REPEATS = 20
DRIFT_RATIO = 1.1
# If two medians differ by no more than this ratio, neither counts as faster.
LEVEL = 0.01
# Maximum number of rows that an error lists.
NAMED_AT_MOST = 10


class Unreportable(HopliteError):
    """The rows are not suitable for a report; the message names the faulty ones."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Network and machine whose rows are comparable with each other.

    Attributes:
        kind: kind of the network, as in the rows.
        network: its kind, rate and racks in words; "one host" for operations without a network.
        machine: "machine B" and so on; empty for the machine with most rows.
    """

    kind: str
    network: str
    machine: str

    def __str__(self) -> str:
        return f"{self.network}, {self.machine}" if self.machine else self.network

    @property
    def short(self) -> str:
        """The network without its kind, if more is known about it: "1 Gbit/s"."""
        return str(self).partition(", ")[2] or str(self)


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation, size, number of hosts and arrival interval, in one place."""

    place: Place
    op: str
    hosts: int
    bytes: int
    arrival_s: float

    def __str__(self) -> str:
        arrival = f", calls {words.seconds(self.arrival_s)} apart" if self.arrival_s else ""
        return f"{self.op}, {words.count(self.hosts, 'host')}, {words.size(self.bytes)}{arrival}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Hoplite and the fastest other system in one case."""

    case: Case
    hoplite: Row
    peer: Row

    @property
    def ratio(self) -> float:
        """Hoplite's median divided by the other's; above 1, Hoplite is slower."""
        return median(self.hoplite) / median(self.peer)

    @property
    def is_level(self) -> bool:
        """Whether the two are equally fast: within 1 %, as the ratio is printed."""
        return round(abs(round(self.ratio, 2) - 1), 2) <= LEVEL

    @property
    def overlap(self) -> bool:
        """Whether the slowest sample of the faster system is no faster than the fastest sample of the slower one."""
        faster, slower = sorted((self.hoplite, self.peer), key=median)
        return max(faster.samples) >= min(slower.samples)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """All rows of a report, by case, in display order; runs of `bench steady` are in no case."""

    rows: Sequence[Row]
    cases: dict[Case, list[Row]]
    # Each run of `bench steady`, with its place.
    steady: list[tuple[Place, Row]]
    # Description of each machine by its name; places omit the name of the first one.
    machines: dict[str, str]

    def select(self, wanted: Callable[[Case], bool]) -> dict[Case, list[Row]]:
        """The cases that satisfy a predicate."""
        return {case: rows for case, rows in self.cases.items() if wanted(case)}

    @property
    def places(self) -> list[Place]:
        """The places of cases with more than one host."""
        return unique(case.place for case in self.cases if case.hosts > 1)


def collect(rows: Sequence[Row]) -> Measurement:
    """Groups rows by case.

    Raises:
        Unreportable: there are no rows, or some are of a study, from a debug build, not verified, or duplicates.
    """
    if not rows:
        raise Unreportable("there are no rows to report")
    refuse((row for row in rows if row.container), "of a study: pass them to hoplite study report")
    refuse((row for row in rows if row.build != "release"), "not from a release build")
    refuse((row for row in rows if row.samples and not row.verified), "not verified, so the results may be wrong")
    machines = _machines(rows)
    named = {told: name for name, told in list(machines.items())[1:]}
    found: dict[tuple[Case, str, str], Row] = {}
    twice = []
    steady = []
    for row in rows:
        place = _place(row, named.get(_machine(row), ""))
        if row.steady is not None:
            # A run may be repeated, for instance after a change.
            steady.append((place, row))
            continue
        case = Case(place, row.what, row.hosts, row.bytes, row.arrival_s)
        if (case, row.system, row.variant) in found:
            twice.append(row)
        found[case, row.system, row.variant] = row
    refuse(twice, "duplicates; delete the rows of one run")
    cases: dict[Case, list[Row]] = {}
    for (case, _, _), row in sorted(found.items(), key=lambda item: (_order(item[0][0]), rank(item[0][1]))):
        cases.setdefault(case, []).append(row)
    return Measurement(rows, cases, steady, machines)


def best(rows: Iterable[Row], system: str) -> Row | None:
    """Returns the row that represents a system: for Hoplite the default, for the wire the stream, else the fastest.

    Returns:
        A row without samples if no row of the system has any; None if the system has no rows.
    """
    own = [row for row in rows if row.system == system]
    chosen = {HOPLITE: "default", WIRE: STREAM}.get(system)
    own = [row for row in own if row.variant == chosen] or own
    return min(own, key=lambda row: (not row.samples, median(row)), default=None)


def fastest(rows: Sequence[Row], among: Iterable[str]) -> Row | None:
    """The row of the fastest of some systems; None if none of them has samples."""
    measured = [row for system in among if (row := best(rows, system)) is not None and row.samples]
    return min(measured, key=median, default=None)


def peers(rows: Iterable[Row]) -> list[str]:
    """The alternatives to Hoplite among the systems."""
    return [system for system in systems(rows) if system not in (*YARDSTICKS, HOPLITE, HOPLITE_CPP, TORCH_HOPLITE)]


def systems(rows: Iterable[Row]) -> list[str]:
    """The systems of some rows, in display order."""
    return sorted({row.system for row in rows}, key=lambda system: (rank(system), system))


def compare(cases: dict[Case, list[Row]]) -> tuple[list[Comparison], dict[Case, str]]:
    """Compares Hoplite with the fastest other system in each case.

    Returns:
        The comparisons, and the reason for each case without one.
    """
    compared, not_compared = [], {}
    for case, rows in cases.items():
        if all(row.system in YARDSTICKS for row in rows):
            continue
        hoplite = best(rows, HOPLITE)
        peer = fastest(rows, peers(rows))
        if hoplite is None:
            not_compared[case] = "no row for Hoplite"
        elif not hoplite.samples:
            not_compared[case] = f"Hoplite: {words.why(hoplite)}"
        elif peer is None:
            not_compared[case] = "no other system has a figure"
        else:
            compared.append(Comparison(case, hoplite, peer))
    return compared, not_compared


def winner(rows: Sequence[Row]) -> Row | None:
    """The row of the fastest system, including Hoplite."""
    return fastest(rows, [HOPLITE, *peers(rows)])


def telling(cases: dict[Case, list[Row]]) -> Case:
    """The largest of the cases with the most systems."""
    return max(cases, key=lambda case: (len({row.system for row in cases[case]}), case.bytes))


def limit(op: str, hosts: int) -> float | None:
    """The lower bound of an operation in multiples of the wire's time, if links carry one stream per direction.

    Returns:
        None if the bound is unknown.
    """
    limits = {
        "rtt": 2.0,
        "broadcast": 1.0,
        "gather": hosts - 1.0,
        "reduce": 1.0,
        "allreduce": 2 * (hosts - 1) / hosts,
        "allgather": hosts - 1.0,
        "ddp": 2 * (hosts - 1) / hosts,
    }
    return limits.get(op)


def least(case: Case) -> float | None:
    """The lower bound of a case in multiples of the wire's time; None if unknown, or if delays dominate."""
    return limit(case.op, case.hosts) if case.bytes >= LIMIT_BYTES else None


def wire_seconds(rows: Iterable[Row]) -> float | None:
    """The wire's time for the bytes of a case: its median, or derived from the ratio of a row; None if unknown."""
    rows = list(rows)
    wire = best(rows, WIRE)
    if wire is not None and wire.samples:
        return median(wire)
    return next((median(row) / row.wire_ratio for row in rows if row.samples and row.wire_ratio), None)


def median(row: Row) -> float:
    """The median in seconds; infinite without samples."""
    return float("inf") if row.seconds is None else row.seconds["median"]


def drift(row: Row) -> str:
    """Returns a warning if repeats become slower: with enough of them, the second half is slower than the first."""
    change = trend(row.samples) if len(row.samples) >= DRIFT_REPEATS else None
    if change is None or change <= DRIFT_RATIO:
        return ""
    return f"the second half of {len(row.samples)} repeats is {change - 1:.0%} slower than the first half"


def rank(system: str) -> int:
    """The position of a system in display order; unknown systems come last."""
    return SYSTEMS.index(system) if system in SYSTEMS else len(SYSTEMS)


def unique(values: Iterable[Any]) -> list[Any]:
    """The distinct values, in order of first occurrence."""
    return list(dict.fromkeys(values))


def _machine(row: Row) -> str:
    """Describes a row's machine in words."""
    return ", ".join(words.fact(key, value) for key, value in row.machine.items())


def _machines(rows: Sequence[Row]) -> dict[str, str]:
    """The descriptions of all machines by short name, the one with most rows first."""
    counts = collections.Counter(_machine(row) for row in rows)
    order = sorted(counts, key=lambda told: (-counts[told], told))
    return {f"machine {_letters(at)}": told for at, told in enumerate(order)}


def _letters(number: int) -> str:
    """A to Z, then AA and so on."""
    head = _letters(number // 26 - 1) if number >= 26 else ""
    return head + string.ascii_uppercase[number % 26]


def _place(row: Row, machine: str) -> Place:
    """The place of a row: the facts of its lab that do not depend on the number of hosts, and the given machine."""
    if row.hosts == 1:
        return Place("", "one host", machine)
    kind = str(row.lab.get("kind", "hosts"))
    parts = [kind]
    # 0 for real hosts whose rate was not given.
    if row.lab.get("rate"):
        parts.append(words.rate(row.lab["rate"]))
    if row.lab.get("flow_cap"):
        parts.append(f"at most {words.rate(row.lab['flow_cap'])} per connection")
    racks = row.lab.get("racks")
    if isinstance(racks, list) and len(racks) > 1:
        parts.append(f"racks of {' + '.join(map(str, racks))}")
        if row.lab.get("uplink"):
            parts.append(f"joined at {words.rate(row.lab['uplink'])}")
    pods = row.lab.get("pods")
    if isinstance(pods, list):
        parts.append(f"in pods of {' + '.join(map(str, pods))}")
        if row.lab.get("pod_uplink"):
            parts.append(f"joined at {words.rate(row.lab['pod_uplink'])}")
    return Place(kind, ", ".join(parts), machine)


def _order(case: Case) -> tuple[Any, ...]:
    known = ALONE if case.hosts == 1 else OPS
    place = known.index(case.op) if case.op in known else len(known)
    return case.hosts == 1, place, case.op, case.hosts, str(case.place), case.bytes, case.arrival_s


def refuse(rows: Iterable[Row], what: str) -> None:
    """Raises if there are any rows, and names the first few."""
    named = [
        f"{row.system} ({row.variant}) {row.op}, {words.count(row.hosts, 'host')}, {words.size(row.bytes)}"
        for row in rows
    ]
    if named:
        more = [f"{len(named) - NAMED_AT_MOST} more"] if len(named) > NAMED_AT_MOST else []
        shown = "; ".join(itertools.chain(named[:NAMED_AT_MOST], more))
        raise Unreportable(f"{words.count(len(named), 'row')} can't be reported ({what}): {shown}")
