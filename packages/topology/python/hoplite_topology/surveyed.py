"""Prepares a topology file for a plan: responding hosts, complete times, clusters and link rates."""

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

# Times for a file without any: inside a group, and the factor for each level of groups that a path leaves.
TIME_ASSUMED_US, LEVEL_TIMES = 10.0, 3.0


@dataclass(frozen=True)
class Surveyed:
    """The machines to be ordered.

    Attributes:
        hosts: hosts in the order of the rows.
        rows: round trips in microseconds, without missing ones.
        cluster: cluster of each machine; None if the file has no groups.
        uplinks: uplink rate of each cluster, in bit/s; None where unknown.
        nic: rate of each machine's link in bit/s, if known.
        notes: what was skipped or assumed.
    """

    hosts: list[Host]
    rows: list[list[float]]
    cluster: list[int] | None
    uplinks: list[float | None]
    nic: float | None
    notes: list[str]


def read(path: Path, *, symmetric: str | None = None) -> Surveyed:
    """Reads a topology file for a plan.

    Args:
        path: the file.
        symmetric: how to combine two directions that differ, "max", "min" or "mean"; None rejects them.

    Raises:
        InvalidArgument: it is not a topology file, none of its hosts responded, or directions differ.
    """
    found = layout.read(path)
    notes = []
    if silent := found.silent():
        names = [found.hosts[host].name for host in silent]
        found = found.without(silent)
        notes.append(f"planned without {', '.join(names)}, which did not respond to the probe")
    if not found.hosts:
        raise InvalidArgument(f"no host of {path} has a time to another host: probe again")
    if found.times_us:
        found = replace(found, times_us=_symmetric(path, found, symmetric))
        rows, missing = layout.filled(found.times_us)
        if missing:
            notes.append(f"{missing} pairs have no time; estimating it from paths through other hosts")
    else:
        rows = _assumed(found)
        notes.append("the file has no times; assuming that times inside groups are shorter")
    cluster = found.clusters()
    uplinks = found.uplinks_of(cluster) if cluster is not None else []
    # Launchers that require addresses get them from `at`.
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
                    f"{path} is not symmetric: {names[0]} to {names[1]} is {there:g}, but the reverse is {back:g}; "
                    "set --symmetric to max, mean or min"
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
