"""Simulates many orders of a made-up data centre: how widely their times are spread, and where a planned one is.

What the paper's first figure shows of a cloud, shown of a simulation, and said so.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite import _native
from hoplite.tools.topology import planning
from hoplite.tools.topology.problem import Options

if TYPE_CHECKING:
    from hoplite.tools.topology.problem import Wanted

NIC = 12.5e9
UPLINK = 25e9


@dataclass(frozen=True)
class Setting:
    """A data centre and how many orders of its machines; rates in bit/s.

    Attributes:
        machines: how many.
        orders: how many random orders.
        seed: which data centre, which orders.
        nic: of each machine's link.
        uplinks: how many each rack has.
        uplink: of each of them.
        background: other tenants take up to this part of each uplink.
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
    """Times of orders, in microseconds.

    Attributes:
        wanted: what was run.
        setting: where.
        random: of the random orders, in which they came.
        planned: of the orders that plan found, by their model.
        correlation: Spearman's of cost and time over all orders, by model.
    """

    wanted: Wanted
    setting: Setting
    random: list[float]
    planned: dict[str, float]
    correlation: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "simulated": True,
            "algorithm": self.wanted.algorithm,
            "bytes": self.wanted.bytes,
            **vars(self.setting),
            "random_us": [round(time, 1) for time in self.random],
            "planned_us": {name: round(time, 1) for name, time in self.planned.items()},
            "correlation": {name: round(value, 3) for name, value in self.correlation.items()},
        }

    def lines(self) -> list[str]:
        """What it says to people."""
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
                f"  planned by the {name} model: {us:.0f} ms; the mean is {mean / us:.1f} times that, the slowest "
                f"{times[-1] / us:.1f} times; costs and times of the random orders correlate by "
                f"{self.correlation[name]:.2f}"
            )
        return lines


def study(wanted: Wanted, setting: Setting) -> Studied:
    """Simulates random orders and planned ones.

    Raises:
        InvalidArgument: the algorithm has no schedule for so many machines.
    """
    times, racks = _native.make_data_centre(setting.machines, setting.seed)
    count = setting.machines
    cluster = _numbered(racks)
    sum_uplink = setting.uplinks * setting.uplink / 8e6 * (1 - setting.background / 2)
    native = _native.Topology(times, count, cluster, setting.nic / 8e6, [sum_uplink] * (max(cluster) + 1))
    rows = [times[row * count : (row + 1) * count] for row in range(count)]
    chance = random.Random(setting.seed)
    orders = [chance.sample(range(count), count) for _ in range(setting.orders)]
    links = (setting.uplinks, setting.uplink / 8e6, setting.background)
    simulated = native.simulate(wanted, links, setting.seed, orders)
    planned, correlation = {}, {}
    for model in ("paper", "congestion"):
        options = Options(model=model, seed=setting.seed, nic=setting.nic, uplink=setting.uplinks * setting.uplink)
        found = planning.plan(rows, wanted, options)
        planned[model] = native.simulate(wanted, links, setting.seed, [found.order])[0]
        costs = [native.cost(wanted, model, order) for order in orders]
        correlation[model] = spearman(costs, simulated)
    return Studied(wanted, setting, simulated, planned, correlation)


def spearman(one: list[float], other: list[float]) -> float:
    """How well the order of two lists agrees, from -1 to 1; 0 if all of a list are alike."""
    ranked = [_ranked(one), _ranked(other)]
    if any(len(set(ranks)) < 2 for ranks in ranked):
        return 0.0
    return statistics.correlation(*ranked)


def _ranked(values: list[float]) -> list[float]:
    """The rank of each value; equal ones share the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.mean(places[value]) for value in values]


def _numbered(labels: list[int]) -> list[int]:
    known: dict[int, int] = {}
    return [known.setdefault(label, len(known)) for label in labels]
