"""What a running cluster shows of its network, and whether another order of ranks would be faster by it.

Nodes say in their status where members stand, and by TCP_INFO how long a round trip takes and how fast bytes have
arrived. Knows what nodes say; asks none of them.
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

# A plan that is better by less is not worth a restart of a program.
GAIN_MIN = 0.10
SEARCH_S = 0.5


@dataclass(frozen=True)
class Picture:
    """What nodes say of themselves and their members.

    Attributes:
        addresses: of the members, in the order of ranks.
        places: of each, the labels of its groups, outermost first; empty where none is known.
        carries: how many transfers at the full rate of a host the link of a group carries at once, by its label; groups
            of which that is not known are missing.
        survey: "found", "even", "waiting" or "none", as the first node says.
        times_us: shortest round trips, in microseconds; None of pairs of which no node that was asked knows one.
        nic: the highest rate at which bytes have arrived, in bit/s; None if none is known.
    """

    addresses: list[str]
    places: list[tuple[str, ...]]
    carries: dict[str, int]
    survey: str
    times_us: list[list[float | None]]
    nic: float | None

    @property
    def pairs_known(self) -> int:
        """Of how many pairs a time is known."""
        pairs = itertools.combinations(range(len(self.addresses)), 2)
        return sum(1 for a, b in pairs if self.times_us[a][b] is not None)


@dataclass(frozen=True)
class Look:
    """A picture, and what would be planned by it.

    Attributes:
        picture: what is known.
        cost: of the order as it is, in microseconds; None if too little is known.
        planned: of the best order that was found.
        order: that order, as numbers in the picture.
        notes: what was assumed, in words.
    """

    picture: Picture
    cost: float | None
    planned: float | None
    order: list[int]
    notes: list[str]

    @property
    def gain(self) -> float | None:
        """The part of the cost that the planned order saves."""
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
        """All of it, for programs."""
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
    """Puts together what some nodes of a cluster say.

    Args:
        statuses: what `Client.status` has returned, of at least one node.
        order: addresses of members as ranks have them, with or without ports; None takes the members by address.

    Raises:
        InvalidArgument: the nodes are of two clusters, or the order is not one of the members.
    """
    first = statuses[0]
    ids = {member["id"] for member in first["members"]}
    for status in statuses:
        if status["id"] not in ids:
            raise InvalidArgument(f"node {status['address']} is no member of the cluster of node {first['address']}")
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
                # Both ends know the same way, and the kernel's shortest time is the one with the least noise.
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
    """Plans by a picture, and compares with the order as it is."""
    if len(seen.addresses) < 2:
        return Look(seen, None, None, [], ["a cluster of one node has no order"])
    if seen.pairs_known == 0:
        return Look(seen, None, None, [], ["no round trip is known yet"])
    rows, missing = layout.filled(seen.times_us)
    notes = []
    if missing:
        notes.append(
            f"{missing} pairs have no time: ask more nodes by --socket; as far as by another node between them"
        )
    hosts = [Placed(address, (), place) for address, place in zip(seen.addresses, seen.places, strict=True)]
    uplinks = {label: count * seen.nic for label, count in seen.carries.items()} if seen.nic else {}
    known = layout.Layout(hosts, seen.times_us, uplinks, seen.nic)
    cluster = known.clusters()
    options = Options(seconds=SEARCH_S)
    if cluster is not None:
        # Nodes that share a link are far from others by what it carries, whatever a round trip takes.
        model = "congestion" if seen.nic else None
        options = replace(options, cluster=cluster, uplinks=known.uplinks_of(cluster), nic=seen.nic, model=model)
    planned = planning.plan(rows, wanted, options)
    return Look(seen, planned.cost_given, planned.cost, planned.order, notes + planned.notes)


def _ordered(order: Sequence[str], members: list[str]) -> list[str]:
    """The members as an order has them."""
    found: list[str] = []
    for name in order:
        same = [address for address in members if name in (address, address.rpartition(":")[0].strip("[]"))]
        if len(same) != 1:
            said = "no member has" if not same else "several members have"
            raise InvalidArgument(f"{said} the address {name!r}; members are {', '.join(sorted(members))}")
        if same[0] in found:
            raise InvalidArgument(f"the address {name!r} is there twice")
        found += same
    if missing := sorted(set(members) - set(found)):
        raise InvalidArgument(f"the order lacks {', '.join(missing)}")
    return found
