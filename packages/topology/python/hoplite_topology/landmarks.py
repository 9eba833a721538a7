"""Selects pairs to probe if there are many hosts, and estimates the times of the others.

Some hosts, the landmarks, probe all others. Hosts with the same nearest landmark then probe each other. If the known
times show groups, three pairs of hosts represent each pair of groups. Finally, the hosts of each resulting group probe
each other. Identifies hosts by number; independent of agents and echoes.
"""

from __future__ import annotations

import itertools
import random
import statistics
from typing import TYPE_CHECKING

from hoplite_topology import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hoplite_topology.samples import Times
    from hoplite_topology.tournament import Pair

# Number of pairs that represent two groups: their median is not an outlier.
REPRESENTATIVES = 3
# Unknown times count as this multiple of the longest time, so that they form no groups.
UNKNOWN_TIMES = 10.0
TIME_US_LEAST = 1e-3


class Landmarks:
    """Selects pairs to probe, in stages.

    Args:
        hosts: participating hosts.
        count: number of landmarks.
        seed: random seed of their selection.
    """

    def __init__(self, hosts: Sequence[int], count: int, seed: int) -> None:
        self.hosts = list(hosts)
        self._chance = random.Random(seed)
        self.chosen = sorted(self._chance.sample(self.hosts, min(count, len(self.hosts))))
        self.groups: list[list[int]] = [self.hosts]

    def stages(self, times: Callable[[], Times]) -> Iterator[list[Pair]]:
        """Yields the pairs to probe in each stage.

        Args:
            times: returns the known times in microseconds at the beginning of a stage; hosts without times are skipped.
        """
        yield sorted({_pair(a, b) for a in self.chosen for b in self.hosts if a != b})
        self.groups = self._by_landmark(times())
        yield _inside(self.groups)
        # Unknown times can't join groups, so these groups are parts of the previous ones.
        known = times()
        self.groups = self._by_gaps(known, known)
        yield self._between(known)
        # Parts of a group that are nearest to several landmarks are joined by the estimated times between them.
        known = times()
        self.groups = self._by_gaps(self._with_estimates(known), known)
        yield _inside(self.groups)

    def estimates(self, times: Times) -> dict[Pair, float]:
        """Estimates the time of each pair without one from the known times between the groups of its hosts."""
        found: dict[Pair, float] = {}
        for one, other in itertools.combinations_with_replacement(self.groups, 2):
            pairs = _pairs(one, other)
            known = [time for a, b in pairs if (time := times[a][b]) is not None]
            if known and len(known) < len(pairs):
                median = round(statistics.median(known), 3)
                found.update((pair, median) for pair in pairs if times[pair[0]][pair[1]] is None)
        return found

    def _by_landmark(self, times: Times) -> list[list[int]]:
        """Groups hosts by their nearest landmark."""
        groups: dict[int, list[int]] = {}
        for host in self.hosts:
            near = [(time, mark) for mark in self.chosen if (time := times[host][mark]) is not None]
            if near:
                groups.setdefault(min(near)[1], []).append(host)
        return list(groups.values())

    def _with_estimates(self, times: Times) -> Times:
        rows = [list(row) for row in times]
        for (a, b), time in self.estimates(times).items():
            rows[a][b] = rows[b][a] = time
        return rows

    def _by_gaps(self, rows: Times, times: Times) -> list[list[int]]:
        """The smallest groups that gaps show, or else the present groups; a host without any time is in none."""
        hosts = [
            host for host in self.hosts if any(times[host][other] is not None for other in self.hosts if other != host)
        ]
        longest = max((time for a in hosts for time in rows[a] if time is not None), default=1.0)
        far = UNKNOWN_TIMES * max(longest, TIME_US_LEAST)

        def taken(a: int, b: int) -> float:
            time = rows[a][b]
            return 0.0 if a == b else far if time is None else max(time, TIME_US_LEAST)

        flat = [taken(a, b) for a in hosts for b in hosts]
        native = _native.Topology(flat, len(hosts), [0] * len(hosts), float("inf"), [float("inf")])
        level = next(iter(native.clusters_by_gaps()), None)
        if level is None:
            return self.groups
        groups: dict[int, list[int]] = {}
        for host, group in zip(hosts, level, strict=True):
            groups.setdefault(group, []).append(host)
        return list(groups.values())

    def _between(self, times: Times) -> list[Pair]:
        """Selects pairs to represent two groups, where fewer are known."""
        found: list[Pair] = []
        for one, other in itertools.combinations(self.groups, 2):
            known = sum(times[a][b] is not None for a in one for b in other)
            wanted = min(REPRESENTATIVES, len(one) * len(other)) - known
            if wanted > 0:
                open_pairs = [pair for pair in _pairs(one, other) if times[pair[0]][pair[1]] is None]
                found += self._chance.sample(open_pairs, min(wanted, len(open_pairs)))
        return sorted(found)


def _pair(a: int, b: int) -> Pair:
    return (min(a, b), max(a, b))


def _pairs(one: list[int], other: list[int]) -> list[Pair]:
    if one is other:
        return list(itertools.combinations(sorted(one), 2))
    return [_pair(a, b) for a in one for b in other]


def _inside(groups: list[list[int]]) -> list[Pair]:
    return sorted(pair for group in groups for pair in itertools.combinations(sorted(group), 2))
