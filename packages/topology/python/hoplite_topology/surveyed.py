"""What a plan takes of a topology file: hosts that answer, whole times, clusters and the rates of links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_topology import layout
from hoplite_topology.hosts import Host
from hoplite_topology.matrix import SAME, SYMMETRIES

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_topology.layout import Layout

# Times of a file that has none: inside a group, and for each level of groups that a way leaves so many times that.
TIME_ASSUMED_US, LEVEL_TIMES = 10.0, 3.0


@dataclass(frozen=True)
class Surveyed:
    """Machines to be ordered.

    Attributes:
        hosts: in the order of the rows.
        rows: round trips in microseconds, none missing.
        cluster: of each machine; None if the file knows no groups.
        uplinks: of each cluster, in bit/s; None where it isn't known.
        nic: of each machine's link, in bit/s, if it is known.
        notes: what was left out or assumed, in words.
    """

    hosts: list[Host]
    rows: list[list[float]]
    cluster: list[int] | None
    uplinks: list[float | None]
    nic: float | None
    notes: list[str]


def read(path: Path, *, symmetric: str | None = None) -> Surveyed:
    """Reads a file for a plan.

    Args:
        path: of the file.
        symmetric: what is taken of two directions that differ, "max", "min" or "mean"; None refuses them.

    Raises:
        InvalidArgument: it is no such file, no host of it answers, or directions differ.
    """
    found = layout.read(path)
    notes = []
    if silent := found.silent():
        names = [found.hosts[host].name for host in silent]
        found = found.without(silent)
        notes.append(f"planned without {', '.join(names)}, which did not answer the probe")
    if not found.hosts:
        raise InvalidArgument(f"no host of {path} has a time to another one: probe again")
    if found.times_us:
        found = replace(found, times_us=_symmetric(path, found, symmetric))
        rows, missing = layout.filled(found.times_us)
        if missing:
            notes.append(f"{missing} pairs have no time, and are taken for as far as by another host between them")
    else:
        rows = _assumed(found)
        notes.append("the file has no times: those of hosts in one group are taken for shorter")
    cluster = found.clusters()
    uplinks = found.uplinks_of(cluster) if cluster is not None else []
    # Launchers that take addresses alone get them from a host's name.
    hosts = [Host(host.name, host.slots, host.addresses[0] if host.addresses else "") for host in found.hosts]
    return Surveyed(hosts, rows, cluster, uplinks, found.nic, notes)


def _symmetric(path: Path, found: Layout, symmetric: str | None) -> list[list[float | None]]:
    rows = [list(row) for row in found.times_us]
    for a, row in enumerate(rows):
        for b in range(a):
            there, back = row[b], rows[b][a]
            if there is None or back is None:
                continue
            if symmetric is not None:
                row[b] = rows[b][a] = SYMMETRIES[symmetric](there, back)
            elif abs(there - back) > SAME * max(there, back):
                names = found.hosts[a].name, found.hosts[b].name
                raise InvalidArgument(
                    f"{path} is not symmetric: {names[0]} to {names[1]} is {there:g}, and back {back:g}; "
                    "say which to take: --symmetric max, mean or min"
                )
    return rows


def _assumed(found: Layout) -> list[list[float]]:
    def time(a: int, b: int) -> float:
        one, other = found.hosts[a].groups, found.hosts[b].groups
        depth = max(len(one), len(other))
        shared = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), depth)
        shared = min(shared, len(one), len(other))
        return 0.0 if a == b else float(TIME_ASSUMED_US * LEVEL_TIMES ** (depth - shared))

    count = len(found.hosts)
    return [[time(a, b) for b in range(count)] for a in range(count)]
