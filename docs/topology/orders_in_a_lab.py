"""Measures stock libraries in ten orders of hosts in a lab of two racks, and compares the times with the cost models.

As root: `python docs/topology/orders_in_a_lab.py orders_in_a_lab.json`. Measures the orders that the file lacks, and
prints a table. `--show` only prints. In two negative controls the order should not matter: recursive doubling, whose
rounds all carry the same amount, and uplinks with the rate of all hosts of a rack together.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hoplite_bench.systems import System
from hoplite_bench.systems.gloo import BCUBE_BASE, Gloo
from hoplite_bench.systems.mpi import Mpich, OpenMpi
from hoplite_topology import _native
from hoplite_topology.problem import Wanted
from hoplite_topology.study import spearman

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.systems import Variant

RACKS = [4, 4]
RATE = NARROW = "200mbit"
# The rate of all hosts of a rack together.
WIDE = "800mbit"
BITS = {NARROW: 200e6, WIDE: 800e6}
# At 4 MiB, Open MPI's ring takes a third longer than the links allow, even if no uplink is shared.
NBYTES = 16 << 20
ORDERS, CANDIDATES = 10, 2000
REPEATS = 2
# The algorithm of each variant in the cost models, by system and variant of the benchmark.
ALGORITHMS = {
    ("gloo", "ring chunked"): Wanted("ring", "gloo", bytes=NBYTES),
    ("openmpi", "ring"): Wanted("ring", "mpi", bytes=NBYTES),
    ("mpich", "ring"): Wanted("ring", "mpi", bytes=NBYTES),
    ("gloo", "halving-doubling"): Wanted("halving-doubling", "gloo", bytes=NBYTES),
    ("openmpi", "rabenseifner"): Wanted("halving-doubling", "mpi", bytes=NBYTES),
    ("mpich", "reduce_scatter_allgather"): Wanted("halving-doubling", "mpi", bytes=NBYTES),
    ("gloo", "bcube"): Wanted("bcube", "gloo", base=BCUBE_BASE, bytes=NBYTES),
}
RING = ("gloo", "ring chunked")
DOUBLING = [("openmpi", "recursive_doubling"), ("mpich", "recursive_doubling")]


class Studied(System):
    """A system of the benchmark, restricted to some of its variants.

    Args:
        names: pairs of a system and a variant.
    """

    def __init__(self, names: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.names = names

    def variants(self, op: str) -> list[Variant]:
        """Returns the variants in `names`."""
        return [one for one in super().variants(op) if (self.name, one.name) in self.names]  # type: ignore[safe-super]


class StudiedGloo(Studied, Gloo):
    """Gloo, as in the benchmark."""


class StudiedOpenMpi(Studied, OpenMpi):
    """Open MPI with recursive doubling. The benchmark omits it, because it sends several times as much as others."""

    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "allreduce": {**OpenMpi.forced["allreduce"], "doubling": "recursive_doubling"}
    }
    tuned: ClassVar[dict[str, dict[str, str]]] = {
        **OpenMpi.tuned,
        "doubling": {"allreduce_algorithm": "recursive_doubling"},
    }


class StudiedMpich(Studied, Mpich):
    """MPICH with the algorithms that the cost models cover."""

    controls: ClassVar[dict[str, dict[str, str]]] = {
        name: {"ALLREDUCE_INTRA_ALGORITHM": name} for name in ("ring", "reduce_scatter_allgather", "recursive_doubling")
    }
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {"allreduce": {name: name for name in controls}}


def machines(uplink: str = NARROW) -> _native.Topology:
    """Returns the lab in the form of the planner: rates in bytes per microsecond."""
    rack = [number for number, size in enumerate(RACKS) for _ in range(size)]
    times = [0.0 if a == b else 25.0 + 5.0 * (rack[a] != rack[b]) for a in range(len(rack)) for b in range(len(rack))]
    return _native.Topology(times, len(rack), rack, BITS[RATE] / 8e6, [BITS[uplink] / 8e6] * len(RACKS))


def chosen() -> list[list[int]]:
    """Returns ten orders: the best and worst of each algorithm, and others evenly spread between them."""
    native, chance = machines(), random.Random(0)
    count = sum(RACKS)
    orders = [list(range(count)), *(chance.sample(range(count), count) for _ in range(CANDIDATES))]
    kinds = [ALGORITHMS["gloo", name] for name in ("ring chunked", "halving-doubling", "bcube")]

    # One order for each triple of costs, rounded to milliseconds: differences in round trips do not matter.
    by_cost: dict[tuple[float, ...], list[int]] = {}
    for order in orders:
        by_cost.setdefault(tuple(round(native.cost(kind, "congestion", order), -3) for kind in kinds), order)
    costs = sorted(by_cost)
    picked = {pick(costs, key=lambda cost: cost[place]) for place in range(len(kinds)) for pick in (min, max)}
    others = [cost for cost in costs if cost not in picked]
    wanted = ORDERS - len(picked)
    picked |= {others[round(place * (len(others) - 1) / (wanted - 1))] for place in range(wanted)}
    return [by_cost[cost] for cost in sorted(picked)]


def due() -> list[tuple[str, list[int], list[tuple[str, str]]]]:
    """Returns the measurements to make: the rate of uplinks, the order, and the systems with variants."""
    orders = chosen()
    found = [(NARROW, order, list(ALGORITHMS)) for order in orders]
    # Sorted racks, and racks in alternation: in both, one round of recursive doubling crosses the uplinks.
    ends = [pick(orders, key=lambda order: cost(RING, NARROW, order)) for pick in (min, max)]
    found += [(NARROW, order, DOUBLING) for order in ends]
    return found + [(WIDE, order, list(ALGORITHMS)) for order in ends]


def measure(uplink: str, order: list[int], names: list[tuple[str, str]]) -> dict[str, Any]:
    """Measures the median time in seconds of each variant, with hosts in this order.

    Raises:
        SystemExit: if a variant fails, or its sums are wrong.
    """
    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Agents, of_lab
    from hoplite_bench.lab import Lab
    from hoplite_bench.plan import Cell
    from hoplite_bench.run import Runner

    with Lab(racks=RACKS, rate=RATE, uplink=uplink) as lab:
        network = of_lab(lab)
        ranked = [dataclasses.replace(network.hosts[machine], number=rank) for rank, machine in enumerate(order)]
        network = dataclasses.replace(network, hosts=ranked)
        with Agents(network) as agents:
            known: list[Studied] = [StudiedGloo(names), StudiedOpenMpi(names), StudiedMpich(names)]
            measured = [system for system in known if system.name in dict(names)]
            for system in measured:
                system.adapt(ranked, None, plain=False)
            runner = Runner(
                network, agents, measured, repeats=REPEATS, environments=Environments(), notify=lambda _words: None
            )
            runner.prepare()
            try:
                rows = list(runner.measure(Cell("allreduce", NBYTES)))
            finally:
                runner.close()
    if failed := [f"{row.system} {row.variant}: {row.note}" for row in rows if not row.verified]:
        raise SystemExit("\n".join(failed))
    return {
        "uplink": uplink,
        "order": order,
        "bytes": NBYTES,
        "seconds": {f"{row.system} {row.variant}": row.seconds["median"] for row in rows if row.seconds},
        "load": Path("/proc/loadavg").read_text().split()[0],
    }


def doubling(order: list[int]) -> float:
    """Returns the cost of recursive doubling in microseconds: all bytes go to the rank that differs in one bit."""
    rack = [number for number, size in enumerate(RACKS) for _ in range(size)]
    total, distance = 0.0, 1
    while distance < len(order):
        pairs = [(rack[order[rank]], rack[order[rank ^ distance]]) for rank in range(len(order))]
        leaving = max(sum(here == one != there for here, there in pairs) for one in range(len(RACKS)))
        total += NBYTES * 8e6 * max(1 / BITS[RATE], leaving / BITS[NARROW])
        distance *= 2
    return total


def cost(name: tuple[str, str], uplink: str, order: list[int]) -> float:
    """Returns the cost of a variant in the congestion model, in microseconds."""
    if name in DOUBLING:
        return doubling(order)
    return machines(uplink).cost(ALGORITHMS[name], "congestion", order)


def show(measured: list[dict[str, Any]]) -> None:
    """Prints a table: the best and worst order of each variant, and the correlation with the model; controls last."""
    for name in ALGORITHMS:
        line(measured, name, NARROW)
    for name in DOUBLING:
        line(measured, name, NARROW, control="control")
    for name in ALGORITHMS:
        line(measured, name, WIDE, control="control, 1:1")


def line(measured: list[dict[str, Any]], name: tuple[str, str], uplink: str, control: str = "") -> None:
    """Prints one row of the table. Controls compare the best and worst order of a ring at 4:1."""
    label = " ".join(name)
    there = [one for one in measured if one["uplink"] == uplink and label in one["seconds"]]
    if len(there) < 2:
        return
    seconds = [one["seconds"][label] for one in there]
    costs = [cost(name, uplink, one["order"]) for one in there]
    ranked = [cost(RING, NARROW, one["order"]) for one in there] if control else costs
    best, worst = ranked.index(min(ranked)), ranked.index(max(ranked))
    print(  # noqa: T201
        f"| {f'{control}: ' if control else ''}{label} | {seconds[best]:.2f} s | {seconds[worst]:.2f} s | "
        f"{seconds[worst] / seconds[best]:.2f} | {costs[worst] / costs[best]:.2f} | "
        f"{'' if control else f'{spearman(costs, seconds):.2f}'} |"
    )


def main() -> None:
    """Measures the missing orders, and prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--show", action="store_true")
    options.add_argument("--orders", type=int, default=1000, help="Measure at most this many more orders.")
    given = options.parse_args()
    measured = json.loads(given.file.read_text()) if given.file.exists() else []

    def is_there(uplink: str, order: list[int], names: list[tuple[str, str]]) -> bool:
        labels = {" ".join(name) for name in names}
        alike = [one["seconds"] for one in measured if (one["uplink"], one["order"]) == (uplink, order)]
        return any(labels <= seconds.keys() for seconds in alike)

    missing = [] if given.show else [one for one in due() if not is_there(*one)][: given.orders]
    for one in missing:
        measured.append(measure(*one))
        given.file.write_text(json.dumps(measured, indent=1) + "\n")
    show(measured)


if __name__ == "__main__":
    main()
