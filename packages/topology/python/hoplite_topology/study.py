"""Simulates many orders of a generated data center: the distribution of their times, and the times of planned orders.

Reproduces the first figure of the paper, which is from a cloud, with a simulation; outputs state that it is simulated.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hoplite_topology import _native, planning
from hoplite_topology.problem import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_topology.problem import Wanted

NIC = 12.5e9
UPLINK = 25e9
MODELS = ("paper", "congestion")
# On a busy machine a search takes longer; the results must be the same there.
SEARCH_S_MAX = 120.0


@dataclass(frozen=True)
class Setting:
    """A data center, and the number of orders; rates in bit/s.

    Attributes:
        machines: number of machines.
        orders: number of random orders.
        seed: random seed of the data center and the orders.
        nic: rate of each machine's link.
        uplinks: number of uplinks per rack.
        uplink: rate of each uplink.
        background: maximum share of each uplink that other tenants use.
    """

    machines: int = 512
    orders: int = 500
    seed: int = 0
    nic: float = NIC
    uplinks: int = 16
    uplink: float = UPLINK
    background: float = 0.95


@dataclass(frozen=True)
class Studied:
    """Times of orders in microseconds.

    Attributes:
        wanted: the collective.
        setting: the data center.
        random: times of the random orders.
        planned: times of the planned orders, by model.
        correlation: Spearman correlation of cost and time over the random orders, by model.
        spread: cost and time of ten orders between the planned one and the costliest random one, by model.
    """

    wanted: Wanted
    setting: Setting
    random: list[float]
    planned: dict[str, float]
    correlation: dict[str, float]
    spread: dict[str, list[tuple[float, float]]]

    def speedup(self, model: str) -> float:
        """Time of the costliest order divided by that of the planned one."""
        return self.spread[model][-1][1] / self.planned[model]

    def spread_correlation(self, model: str) -> float:
        """Spearman correlation of cost and time over the ten orders."""
        costs, times = zip(*self.spread[model], strict=True)
        return spearman(list(costs), list(times))

    def as_json(self) -> dict[str, Any]:
        """Returns all fields for programs."""
        return {
            "simulated": True,
            "algorithm": self.wanted.algorithm,
            "base": self.wanted.base if self.wanted.algorithm == "bcube" else None,
            "bytes": self.wanted.bytes,
            **vars(self.setting),
            "random_us": [round(time, 1) for time in self.random],
            "planned_us": {name: round(time, 1) for name, time in self.planned.items()},
            "correlation": {name: round(value, 3) for name, value in self.correlation.items()},
            "spread_us": {
                name: [(round(cost, 1), round(time, 1)) for cost, time in pairs] for name, pairs in self.spread.items()
            },
            "spread_correlation": {name: round(self.spread_correlation(name), 3) for name in self.spread},
            "speedup": {name: round(self.speedup(name), 3) for name in self.spread},
        }

    def lines(self) -> list[str]:
        """Formats the results for people."""
        times = sorted(time / 1000 for time in self.random)
        deviation = statistics.stdev(times) if len(times) > 1 else 0.0
        mean = statistics.mean(times)
        spread = f"{times[0]:.0f} to {times[-1]:.0f} ms, mean {mean:.0f}, standard deviation {deviation:.0f}"
        lines = [
            f"simulated: {self.wanted.algorithm} of {self.wanted.bytes / 1e6:g} MB, {self.setting.machines} machines",
            f"  {len(times)} random orders: {spread}",
        ]
        for name, time in self.planned.items():
            us = time / 1000
            lines.append(
                f"  planned with the {name} model: {us:.0f} ms; the random orders take {mean / us:.1f} times as long "
                f"on average, and {times[-1] / us:.1f} times as long at most; correlation of their costs and times: "
                f"{self.correlation[name]:.2f}"
            )
            lines.append(
                f"    ten orders from the planned one to the costliest, which takes {self.speedup(name):.1f} times as "
                f"long; correlation of their costs and times: {self.spread_correlation(name):.2f}"
            )
        return lines


class Centre:
    """A generated data center with random orders of its machines.

    Args:
        wanted: the collective.
        setting: the data center, and the number of orders.
    """

    def __init__(self, wanted: Wanted, setting: Setting) -> None:
        self.wanted, self.setting = wanted, setting
        times, racks = _native.make_data_centre(setting.machines, setting.seed)
        count = setting.machines
        cluster = _numbered(racks)
        sum_uplink = setting.uplinks * setting.uplink / 8e6 * (1 - setting.background / 2)
        self.native = _native.Topology(times, count, cluster, setting.nic / 8e6, [sum_uplink] * (max(cluster) + 1))
        self._rows = [times[row * count : (row + 1) * count] for row in range(count)]
        chance = random.Random(setting.seed)
        self.orders = [chance.sample(range(count), count) for _ in range(setting.orders)]

    def simulate(self, orders: list[list[int]]) -> list[float]:
        """Simulates orders; returns their times in microseconds.

        Raises:
            InvalidArgument: the algorithm does not support this number of machines.
        """
        links = (self.setting.uplinks, self.setting.uplink / 8e6, self.setting.background)
        return self.native.simulate(self.wanted, links, self.setting.seed, orders)

    def cost(self, model: str, order: list[int]) -> float:
        """The cost of an order in a model, in microseconds."""
        return self.native.cost(self.wanted, model, order)

    def spread(self, model: str, seconds: float | None = None) -> list[tuple[float, float]]:
        """Cost and time of ten orders, from the planned one of a model to the costliest random one.

        Args:
            model: cost model; costs and times are in microseconds.
            seconds: approximate duration of the search; None for its default.

        Raises:
            InvalidArgument: the algorithm does not support this number of machines.
        """
        setting = self.setting
        uplink = setting.uplinks * setting.uplink
        options = Options(
            model=model,
            seed=setting.seed,
            seconds=seconds,
            seconds_max=SEARCH_S_MAX,
            nic=setting.nic,
            uplink=uplink,
        )
        found = planning.plan(self._rows, self.wanted, options)
        cost = partial(self.cost, model)
        chosen = _between(found.order, max(self.orders, key=cost), cost)
        return list(zip(map(cost, chosen), self.simulate(chosen), strict=True))


def study(wanted: Wanted, setting: Setting) -> Studied:
    """Simulates random and planned orders.

    Raises:
        InvalidArgument: the algorithm does not support this number of machines.
    """
    centre = Centre(wanted, setting)
    simulated = centre.simulate(centre.orders)
    correlation = {
        model: spearman([centre.cost(model, order) for order in centre.orders], simulated) for model in MODELS
    }
    spread = {model: centre.spread(model) for model in MODELS}
    planned = {model: pairs[0][1] for model, pairs in spread.items()}
    return Studied(wanted, setting, simulated, planned, correlation, spread)


def _between(cheapest: list[int], dearest: list[int], cost: Callable[[list[int]], float]) -> list[list[int]]:
    """Ten orders with evenly distributed costs between two orders, selected as in the paper.

    Swaps transform one order into the other; of the intermediate orders, those nearest to each cost are selected.
    """
    order, place = list(cheapest), {machine: at for at, machine in enumerate(cheapest)}
    way = [(cost(order), list(order))]
    for at, machine in enumerate(dearest):
        if order[at] != machine:
            other = place[machine]
            order[at], order[other] = machine, order[at]
            place[order[other]], place[machine] = other, at
            way.append((cost(order), list(order)))
    least, most = way[0][0], way[-1][0]
    wanted = [least + (most - least) * step / 9 for step in range(10)]
    inner = [min(way, key=lambda it: abs(it[0] - goal))[1] for goal in wanted[1:-1]]
    return [list(cheapest), *inner, list(dearest)]


def spearman(one: list[float], other: list[float]) -> float:
    """Spearman rank correlation of two lists, from -1 to 1; 0 if all values of a list are equal."""
    ranked = [_ranked(one), _ranked(other)]
    if any(len(set(ranks)) < 2 for ranks in ranked):
        return 0.0
    return statistics.correlation(*ranked)


def _ranked(values: list[float]) -> list[float]:
    """The rank of each value; equal values share the mean of their ranks."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.mean(places[value]) for value in values]


def _numbered(labels: list[int]) -> list[int]:
    known: dict[int, int] = {}
    return [known.setdefault(label, len(known)) for label in labels]
