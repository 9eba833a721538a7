"""The network of a running cluster, as reported by its nodes, and whether another order of ranks would be faster.

The status of a node contains the groups of the members, and round trips and receive rates from TCP_INFO. This module
takes statuses, and sends no requests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument
from hoplite.topology import Placed
from hoplite_topology import layout, planning
from hoplite_topology.problem import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_topology.problem import Wanted

# A smaller gain does not justify restarting a program.
GAIN_MIN = 0.10
SEARCH_S = 0.5


@dataclass(frozen=True)
class Picture:
    """The reports of nodes on themselves and their members.

    Attributes:
        addresses: addresses of the members, in the order of ranks.
        places: labels of each member's groups, outermost first; empty if none is known.
        carries: number of transfers at the full rate of a host that a group's link carries at once, by label; unknown
            ones are missing.
        survey: "found", "even", "waiting" or "none", as reported by the first node.
        times_us: shortest round trips in microseconds; None for pairs without a report.
        nic: highest receive rate in bit/s; None if unknown.
    """

    addresses: list[str]
    places: list[tuple[str, ...]]
    carries: dict[str, int]
    survey: str
    times_us: list[list[float | None]]
    nic: float | None

    @property
    def pairs_known(self) -> int:
        """The number of pairs with a known time."""
        pairs = itertools.combinations(range(len(self.addresses)), 2)
        return sum(1 for a, b in pairs if self.times_us[a][b] is not None)


@dataclass(frozen=True)
class Look:
    """The state of a network, and the plan for it.

    Attributes:
        picture: the reports.
        cost: cost of the present order in microseconds; None if too little is known.
        planned: cost of the best order found.
        order: that order, as numbers of members.
        notes: assumptions, for people.
    """

    picture: Picture
    cost: float | None
    planned: float | None
    order: list[int]
    notes: list[str]

    @property
    def gain(self) -> float | None:
        """The share of the cost that the planned order saves."""
        if self.cost is None or self.planned is None:
            return None
        return 1 - self.planned / self.cost if self.cost > 0 else 0.0

    @property
    def proposal(self) -> list[str] | None:
        """The addresses in the planned order, if it saves more than GAIN_MIN."""
        if self.gain is None or self.gain <= GAIN_MIN:
            return None
        return [self.picture.addresses[number] for number in self.order]

    def as_json(self) -> dict[str, Any]:
        """Returns all fields for programs."""
        return {
            "order": self.picture.addresses,
            "places": [list(place) for place in self.picture.places],
            "carries": self.picture.carries,
            "survey": self.picture.survey,
            "times_us": self.picture.times_us,
            "nic": self.picture.nic,
            "cost": self.cost,
            "cost_planned": self.planned,
            "gain": self.gain,
            "proposal": self.proposal,
            "notes": self.notes,
        }


def picture(statuses: Sequence[Mapping[str, Any]], order: Sequence[str] | None = None) -> Picture:
    """Merges the statuses of some nodes of a cluster.

    Args:
        statuses: results of `Client.status` of at least one node.
        order: addresses of members in the order of ranks, with or without ports; None sorts members by address.

    Raises:
        InvalidArgument: the nodes are of two clusters, or the order does not match the members.
    """
    first = statuses[0]
    ids = {member["id"] for member in first["members"]}
    for status in statuses:
        if status["id"] not in ids:
            raise InvalidArgument(
                f"node {status['address']} is not a member of the cluster of node {first['address']}: "
                "pass sockets of one cluster"
            )
    members = {member["address"]: member for member in first["members"] if member["address"]}
    addresses = sorted(members) if order is None else _ordered(order, list(members))
    at = {members[address]["id"]: number for number, address in enumerate(addresses)}
    times: list[list[float | None]] = [[None] * len(addresses) for _ in addresses]
    rates = []
    for status in statuses:
        a = at.get(status["id"])
        for member in status["members"]:
            b = at.get(member["id"])
            if a is None or b is None or a == b:
                continue
            if member["bytes_per_second"]:
                rates.append(8.0 * member["bytes_per_second"])
            if member["rtt_us"]:
                # Both ends measure the same path; the shorter time has less noise.
                known = times[a][b]
                times[a][b] = times[b][a] = min(member["rtt_us"], member["rtt_us"] if known is None else known)
    for number in range(len(addresses)):
        times[number][number] = 0.0
    places = [tuple(members[address]["place"] or ()) for address in addresses]
    carries: dict[str, int] = {}
    for member in members.values():
        for label, count in zip(member["place"] or (), member["carries"] or (), strict=True):
            if count is not None:
                carries[label] = min(count, carries.get(label, count))
    return Picture(addresses, places, carries, first["survey"], times, max(rates, default=None))


def look(seen: Picture, wanted: Wanted) -> Look:
    """Plans an order for a network, and compares it with the present one."""
    if len(seen.addresses) < 2:
        return Look(seen, None, None, [], ["a cluster of one node needs no order"])
    if seen.pairs_known == 0:
        return Look(seen, None, None, [], ["no round trip is known yet"])
    rows, missing = layout.filled(seen.times_us)
    notes = []
    if missing:
        notes.append(
            f"{missing} pairs have no time, so it is estimated from paths through others: add nodes with --socket"
        )
    hosts = [Placed(address, (), place) for address, place in zip(seen.addresses, seen.places, strict=True)]
    uplinks = {label: count * seen.nic for label, count in seen.carries.items()} if seen.nic else {}
    known = layout.Layout(hosts, seen.times_us, uplinks, seen.nic)
    cluster = known.clusters()
    options = Options(seconds=SEARCH_S)
    if cluster is not None:
        # Nodes that share a link are separated from others by its rate, whatever the round trip is.
        model = "congestion" if seen.nic else None
        options = replace(options, cluster=cluster, uplinks=known.uplinks_of(cluster), nic=seen.nic, model=model)
    planned = planning.plan(rows, wanted, options)
    return Look(seen, planned.cost_given, planned.cost, planned.order, notes + planned.notes)


def _ordered(order: Sequence[str], members: list[str]) -> list[str]:
    """Converts an order to addresses of members."""
    found: list[str] = []
    for name in order:
        same = [address for address in members if name in (address, address.rpartition(":")[0].strip("[]"))]
        if len(same) != 1:
            said = "no member has" if not same else "several members have"
            raise InvalidArgument(f"{said} the address {name!r}: use one of {', '.join(sorted(members))}")
        if same[0] in found:
            raise InvalidArgument(f"the address {name!r} is a duplicate: remove one")
        found += same
    if missing := sorted(set(members) - set(found)):
        raise InvalidArgument(f"the order lacks {', '.join(missing)}: add every member")
    return found
