"""What a report says, before it is written: which rows belong together, which count, which system is faster than which.

Rows in, choices out; refuses what would make a report dishonest. Knows neither Markdown nor pictures.
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
MEMCPY = "memcpy"
# What others are compared with, and what no user would choose instead of Hoplite.
YARDSTICKS = (WIRE, MEMCPY)
# Who takes part and in which order is known before anything starts; the others find out while they run.
STATIC = ("mpich", "openmpi", "gloo")
SYSTEMS = (WIRE, MEMCPY, HOPLITE, *STATIC, "ray", "dask")
# The order of what one host does.
ALONE = ("memcpy", "put", "get", "create_seal", "put_get", "reduce", "write_location", "look_up")
# Below, a stream ends before the link is full: delays decide how long an operation takes, and bytes say nothing of it.
LIMIT_BYTES = 2**20
# From so many repeats on, the second half of which is so much slower than the first, a cell is flagged.
DRIFT_REPEATS = 20
DRIFT_RATIO = 1.1
# Of two medians that differ by no more than this part none is called faster.
LEVEL = 0.01
# A list of a thousand rows does not help to find what is wrong.
NAMED_AT_MOST = 10


class Unreportable(HopliteError):
    """The rows can't be reported; the message names those that are wrong."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where rows may be compared with each other: one network on one machine.

    Attributes:
        kind: of the network, as in the rows.
        network: its kind, rate and racks in words; "one host" for what needs none.
        machine: "machine B" and so on, if it is not the one where most was measured; else empty.
    """

    kind: str
    network: str
    machine: str

    def __str__(self) -> str:
        return f"{self.network}, {self.machine}" if self.machine else self.network

    @property
    def short(self) -> str:
        """The network without its kind, if something else is known of it: "1 Gbit/s"."""
        return str(self).partition(", ")[2] or str(self)


@dataclasses.dataclass(frozen=True)
class Case:
    """What every system was asked to do, in the same place."""

    place: Place
    op: str
    hosts: int
    bytes: int
    arrival_s: float

    def __str__(self) -> str:
        arrival = f", one call each {words.seconds(self.arrival_s)}" if self.arrival_s else ""
        return f"{self.op}, {words.count(self.hosts, 'host')}, {words.size(self.bytes)}{arrival}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Hoplite beside the fastest other system in one case."""

    case: Case
    hoplite: Row
    peer: Row

    @property
    def ratio(self) -> float:
        """Hoplite's median over the other's; above 1 Hoplite is slower."""
        return median(self.hoplite) / median(self.peer)

    @property
    def is_level(self) -> bool:
        """Whether the two are as fast: within 1 %, as the ratio is written."""
        return round(abs(round(self.ratio, 2) - 1), 2) <= LEVEL

    @property
    def overlap(self) -> bool:
        """Whether the slowest sample of the faster is no faster than the fastest sample of the slower."""
        faster, slower = sorted((self.hoplite, self.peer), key=median)
        return max(faster.samples) >= min(slower.samples)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """All rows of a report, by case, in the order in which they are shown; runs of `bench steady` are none."""

    rows: Sequence[Row]
    cases: dict[Case, list[Row]]
    # Of each run of `bench steady`, where it took place.
    steady: list[tuple[Place, Row]]
    # What each machine is, in words, by its name; the first is the one that no place names.
    machines: dict[str, str]

    def select(self, wanted: Callable[[Case], bool]) -> dict[Case, list[Row]]:
        """The cases that are wanted."""
        return {case: rows for case, rows in self.cases.items() if wanted(case)}

    @property
    def places(self) -> list[Place]:
        """Where more than one host took part."""
        return unique(case.place for case in self.cases if case.hosts > 1)


def collect(rows: Sequence[Row]) -> Measurement:
    """Sorts rows by case.

    Raises:
        Unreportable: there are none; some were measured with a debug build, are not verified or are there twice.
    """
    if not rows:
        raise Unreportable("there are no rows to report")
    _refuse((row for row in rows if row.build != "release"), "not of a release build, which measures nothing")
    _refuse((row for row in rows if row.samples and not row.verified), "not verified, so what was timed may be wrong")
    machines = _machines(rows)
    named = {told: name for name, told in list(machines.items())[1:]}
    found: dict[tuple[Case, str, str], Row] = {}
    twice = []
    steady = []
    for row in rows:
        place = _place(row, named.get(_machine(row), ""))
        if row.steady is not None:
            # The same run may be repeated, for instance after a change.
            steady.append((place, row))
            continue
        case = Case(place, row.what, row.hosts, row.bytes, row.arrival_s)
        if (case, row.system, row.variant) in found:
            twice.append(row)
        found[case, row.system, row.variant] = row
    _refuse(twice, "there twice; leave one out, for figures of two runs can't be compared")
    cases: dict[Case, list[Row]] = {}
    for (case, _, _), row in sorted(found.items(), key=lambda item: (_order(item[0][0]), rank(item[0][1]))):
        cases.setdefault(case, []).append(row)
    return Measurement(rows, cases, steady, machines)


def best(rows: Iterable[Row], system: str) -> Row | None:
    """The row that counts for a system: of Hoplite its own choice, of the wire the stream, of others the fastest.

    Returns:
        A row without samples if none of the system's has any, or None if the system has none at all.
    """
    own = [row for row in rows if row.system == system]
    chosen = {HOPLITE: "default", WIRE: STREAM}.get(system)
    own = [row for row in own if row.variant == chosen] or own
    return min(own, key=lambda row: (not row.samples, median(row)), default=None)


def fastest(rows: Sequence[Row], among: Iterable[str]) -> Row | None:
    """The row of the fastest of some systems, None if none of them has a figure."""
    measured = [row for system in among if (row := best(rows, system)) is not None and row.samples]
    return min(measured, key=median, default=None)


def peers(rows: Iterable[Row]) -> list[str]:
    """The systems that a user might take instead of Hoplite."""
    return [system for system in systems(rows) if system not in (*YARDSTICKS, HOPLITE)]


def systems(rows: Iterable[Row]) -> list[str]:
    """Which systems there are, in the order of a report."""
    return sorted({row.system for row in rows}, key=lambda system: (rank(system), system))


def compare(cases: dict[Case, list[Row]]) -> tuple[list[Comparison], dict[Case, str]]:
    """Hoplite beside the fastest of the others in each case.

    Returns:
        What could be compared, and why the other cases could not.
    """
    compared, not_compared = [], {}
    for case, rows in cases.items():
        if all(row.system in YARDSTICKS for row in rows):
            continue
        hoplite = best(rows, HOPLITE)
        peer = fastest(rows, peers(rows))
        if hoplite is None:
            not_compared[case] = "no row of Hoplite"
        elif not hoplite.samples:
            not_compared[case] = f"Hoplite: {words.why(hoplite)}"
        elif peer is None:
            not_compared[case] = "no other system has a figure"
        else:
            compared.append(Comparison(case, hoplite, peer))
    return compared, not_compared


def winner(rows: Sequence[Row]) -> Row | None:
    """The row of the fastest system, Hoplite too."""
    return fastest(rows, [HOPLITE, *peers(rows)])


def telling(cases: dict[Case, list[Row]]) -> Case:
    """The largest of those cases that were asked of most systems."""
    return max(cases, key=lambda case: (len({row.system for row in cases[case]}), case.bytes))


def limit(op: str, hosts: int) -> float | None:
    """The least time of an operation, in times of the wire, where each link carries one stream in each direction.

    Returns:
        None for an operation whose limit is not known.
    """
    limits = {
        "rtt": 2.0,
        "broadcast": 1.0,
        "gather": hosts - 1.0,
        "reduce": 1.0,
        "allreduce": 2 * (hosts - 1) / hosts,
    }
    return limits.get(op)


def least(case: Case) -> float | None:
    """The limit of a case, in times of the wire; None where it is not bytes that decide, or not known."""
    return limit(case.op, case.hosts) if case.bytes >= LIMIT_BYTES else None


def wire_seconds(rows: Iterable[Row]) -> float | None:
    """What the wire took for the bytes of a case: its median, or what a row's ratio says; None if no row says it."""
    rows = list(rows)
    wire = best(rows, WIRE)
    if wire is not None and wire.samples:
        return median(wire)
    return next((median(row) / row.wire_ratio for row in rows if row.samples and row.wire_ratio), None)


def median(row: Row) -> float:
    """The seconds that count; infinite without any."""
    return float("inf") if row.seconds is None else row.seconds["median"]


def drift(row: Row) -> str:
    """A warning if a row's repeats take ever longer: of enough of them, the second half is slower than the first."""
    change = trend(row.samples) if len(row.samples) >= DRIFT_REPEATS else None
    if change is None or change <= DRIFT_RATIO:
        return ""
    return f"the second half of {len(row.samples)} repeats is {change - 1:.0%} slower than the first"


def rank(system: str) -> int:
    """The place of a system in the order of a report; those that it does not know come last."""
    return SYSTEMS.index(system) if system in SYSTEMS else len(SYSTEMS)


def unique(values: Iterable[Any]) -> list[Any]:
    """Each once, in the order of the first."""
    return list(dict.fromkeys(values))


def _machine(row: Row) -> str:
    """A row's machine in words."""
    return ", ".join(words.fact(key, value) for key, value in row.machine.items())


def _machines(rows: Sequence[Row]) -> dict[str, str]:
    """Each machine in words by a name that is short: the one with most rows is the first."""
    counts = collections.Counter(_machine(row) for row in rows)
    order = sorted(counts, key=lambda told: (-counts[told], told))
    return {f"machine {_letters(at)}": told for at, told in enumerate(order)}


def _letters(number: int) -> str:
    """A to Z, then AA and so on."""
    head = _letters(number // 26 - 1) if number >= 26 else ""
    return head + string.ascii_uppercase[number % 26]


def _place(row: Row, machine: str) -> Place:
    """The part of a row's lab that every number of hosts has in common, on a machine that is called so."""
    if row.hosts == 1:
        return Place("", "one host", machine)
    kind = str(row.lab.get("kind", "hosts"))
    parts = [kind]
    # Of real hosts the user may not have said it: 0.
    if row.lab.get("rate"):
        parts.append(words.rate(row.lab["rate"]))
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


def _refuse(rows: Iterable[Row], what: str) -> None:
    """Raises if there are any, naming the first few."""
    named = [
        f"{row.system} ({row.variant}) {row.op}, {words.count(row.hosts, 'host')}, {words.size(row.bytes)}"
        for row in rows
    ]
    if named:
        more = [f"{len(named) - NAMED_AT_MOST} more"] if len(named) > NAMED_AT_MOST else []
        shown = "; ".join(itertools.chain(named[:NAMED_AT_MOST], more))
        raise Unreportable(f"{words.count(len(named), 'row')} can't be reported, {what}: {shown}")
