"""The topology file: hosts with their groups, times between them, and link rates.

`hoplite topology probe` writes it, and `plan --topology` reads it through `hoplite.topology`, like nodes. People may
write one by hand. Independent of how its figures are measured.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite import topology
from hoplite.errors import InvalidArgument
from hoplite_topology.matrix import MACHINES_MAX, RTT_US_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite.topology import Placed


@dataclass(frozen=True)
class Layout:
    """The content of a topology file.

    Attributes:
        hosts: hosts in the order of the rows.
        times_us: round trips; None where there is none; an empty list if the file has no times.
        uplinks: rate of a group's link to the others per direction, in bit/s; unknown ones are missing.
        nic: rate of each host's link in bit/s; None if unknown.
        more: other keys: quantiles, losses, time and settings of the measurement, quality.
    """

    hosts: list[Placed]
    times_us: list[list[float | None]]
    uplinks: dict[str, float] = field(default_factory=dict)
    nic: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON object of the file."""
        document: dict[str, Any] = {"format": topology.FORMAT, "hosts": []}
        for host in self.hosts:
            told: dict[str, Any] = {"name": host.name, "groups": list(host.groups)}
            if len(host.addresses) == 1:
                told["address"] = host.addresses[0]
            elif host.addresses:
                told["addresses"] = list(host.addresses)
            if host.slots != 1:
                told["slots"] = host.slots
            document["hosts"].append(told)
        if self.uplinks:
            document["uplinks"] = self.uplinks
        if self.nic is not None:
            document["nic"] = self.nic
        if self.times_us:
            document["times_us"] = self.times_us
        return document | self.more

    def silent(self) -> list[int]:
        """The hosts without a time to any other host, if there are others."""
        if not self.times_us or len(self.hosts) < 2:
            return []
        return [
            host
            for host, row in enumerate(self.times_us)
            if all(time is None for other, time in enumerate(row) if other != host)
        ]

    def without(self, left_out: list[int]) -> Layout:
        """Returns a copy without some hosts."""
        kept = [host for host in range(len(self.hosts)) if host not in left_out]
        times = [[self.times_us[a][b] for b in kept] for a in kept] if self.times_us else []
        return Layout([self.hosts[host] for host in kept], times, self.uplinks, self.nic, self.more)

    def clusters(self) -> list[int] | None:
        """The cluster of each host, at the level of groups with the least uplink rate per host; None without groups.

        It is the innermost level if the file has no uplinks. A host that is in no group is its own cluster.
        """
        best: tuple[float, list[int]] | None = None
        for depth in reversed(range(max((len(host.groups) for host in self.hosts), default=0))):
            labels = [host.groups[: depth + 1] if len(host.groups) > depth else (host.name,) for host in self.hosts]
            numbers: dict[tuple[str, ...], int] = {}
            cluster = [numbers.setdefault(label, len(numbers)) for label in labels]
            if len(numbers) < 2:
                continue
            shares = [self.uplinks.get(label[-1], math.inf) / labels.count(label) for label in numbers]
            if best is None or min(shares) < best[0]:
                best = min(shares), cluster
        return None if best is None else best[1]

    def uplinks_of(self, cluster: list[int]) -> list[float | None]:
        """The uplink of each of these clusters, if known."""
        found: list[float | None] = []
        for number in range(max(cluster, default=-1) + 1):
            members = [host for host, of in enumerate(cluster) if of == number]
            shared = [label for label in self.hosts[members[0]].groups
                      if [h for h in range(len(cluster)) if label in self.hosts[h].groups] == members]  # fmt: skip
            found.append(next((self.uplinks[label] for label in shared if label in self.uplinks), None))
        return found


def filled(times_us: list[list[float | None]]) -> tuple[list[list[float]], int]:
    """Fills in missing times with the longer part of the shortest path over one other host.

    Returns:
        The rows, and the number of missing pairs.
    """
    count = len(times_us)
    known = [time for row in times_us for time in row if time is not None]
    longest = max(known, default=0.0)
    rows = [[longest if time is None else time for time in row] for row in times_us]
    missing = 0
    for a in range(count):
        rows[a][a] = 0.0
        for b in range(a):
            if times_us[a][b] is not None and times_us[b][a] is not None:
                continue
            missing += 1
            one = times_us[a][b] if times_us[a][b] is not None else times_us[b][a]
            if one is None:
                ways = [
                    max(there, back)
                    for there, back in zip(times_us[a], times_us[b], strict=True)
                    if there is not None and back is not None
                ]
                # A host's time to itself is 0 and does not help: the remaining part would be the missing time.
                one = min(ways, default=longest)
            rows[a][b] = rows[b][a] = one
    return rows, missing


def write(path: Path, layout: Layout) -> None:
    """Writes the file atomically.

    Raises:
        InvalidArgument: the file is not writable.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(layout.as_json()) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidArgument(f"can't write {path}: {error.strerror}") from None


def read(path: Path) -> Layout:
    """Reads a topology file.

    Raises:
        InvalidArgument: it is not a topology file, has an invalid value, or has more hosts than a plan supports.
    """
    found = topology.read(path)
    if len(found.hosts) > MACHINES_MAX:
        raise InvalidArgument(f"{path} has {len(found.hosts)} hosts: list at most {MACHINES_MAX}")
    times = _times(path, found.more.get("times_us"), len(found.hosts))
    more = {key: value for key, value in found.more.items() if key not in ("times_us", "clusters")}
    return Layout(found.hosts, times, found.uplinks, found.nic, more)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _times(path: Path, told: object, count: int) -> list[list[float | None]]:
    if told is None:
        return []
    if not isinstance(told, list) or len(told) != count or not all(isinstance(row, list) for row in told):
        raise InvalidArgument(f'"times_us" of {path} is not a list of {count} rows: write one row per host')
    rows: list[list[float | None]] = []
    for number, row in enumerate(told):
        if len(row) != count:
            raise InvalidArgument(
                f'row {number} of "times_us" of {path} has {len(row)} times for {count} hosts: write one per host'
            )
        for column, time in enumerate(row):
            if time is not None and not (_is_number(time) and 0 <= time <= RTT_US_MAX):
                raise InvalidArgument(
                    f'"times_us" of {path}, row {number}, column {column}, is {json.dumps(time)}: set 0 to '
                    f"{RTT_US_MAX:.0f} microseconds, or null if there is no time"
                )
        rows.append([None if time is None else float(time) for time in row])
    return rows
