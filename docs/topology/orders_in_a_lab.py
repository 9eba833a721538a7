"""Measures stock libraries in ten orders of hosts in a lab of two racks, and compares with what plan's models say.

As root: `python docs/topology/orders_in_a_lab.py orders_in_a_lab.json`. Goes on with the orders that the file lacks,
and prints a table of what is there. `--show` only prints.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

from hoplite import _native
from hoplite.tools.topology.problem import Wanted
from hoplite.tools.topology.study import spearman

RACKS = [4, 4]
RATE = UPLINK = "200mbit"
NBYTES = 4 << 20
ORDERS, CANDIDATES = 10, 2000
REPEATS = 2
# Which model's cost is compared with which variant, by system and variant of the bench.
ALGORITHMS = {
    ("gloo", "ring chunked"): Wanted("ring", "gloo", bytes=NBYTES),
    ("openmpi", "ring"): Wanted("ring", "mpi", bytes=NBYTES),
    ("gloo", "halving-doubling"): Wanted("halving-doubling", "gloo", bytes=NBYTES),
    ("openmpi", "rabenseifner"): Wanted("halving-doubling", "mpi", bytes=NBYTES),
}


def machines() -> _native.Topology:
    """The lab as plan has it: links in bytes a microsecond."""
    rack = [number for number, size in enumerate(RACKS) for _ in range(size)]
    times = [0.0 if a == b else 25.0 + 5.0 * (rack[a] != rack[b]) for a in range(len(rack)) for b in range(len(rack))]
    return _native.Topology(times, len(rack), rack, 200e6 / 8e6, [200e6 / 8e6] * len(RACKS))


def chosen() -> list[list[int]]:
    """Ten orders from the best to the worst, by the cost of a ring and then of halving-doubling."""
    native, chance = machines(), random.Random(0)
    count = sum(RACKS)
    orders = [list(range(count)), *(chance.sample(range(count), count) for _ in range(CANDIDATES))]
    ring, halving = ALGORITHMS["gloo", "ring chunked"], ALGORITHMS["gloo", "halving-doubling"]

    def cost(order: list[int]) -> tuple[float, float]:
        return round(native.cost(ring, "congestion", order)), round(native.cost(halving, "congestion", order))

    # Each pair of costs once, and as far apart as ten can be.
    by_cost: dict[tuple[float, float], list[int]] = {}
    for order in orders:
        by_cost.setdefault(cost(order), order)
    found = [by_cost[key] for key in sorted(by_cost)]
    for order in orders:
        if len(found) >= ORDERS:
            break
        if order not in found:
            found.append(order)
    found.sort(key=cost)
    return [found[round(place * (len(found) - 1) / (ORDERS - 1))] for place in range(ORDERS)]


def measure(order: list[int]) -> dict[str, Any]:
    """Medians of each variant with hosts in this order, in seconds."""
    from hoplite.tools.bench import hosts, plan, session
    from hoplite.tools.bench.results import Results
    from hoplite.tools.lab import Lab

    with Lab(racks=RACKS, rate=RATE, uplink=UPLINK) as lab:
        network = hosts.of_lab(lab)
        ranked = [dataclasses.replace(network.hosts[machine], number=rank) for rank, machine in enumerate(order)]
        settings = session.Settings(["gloo", "openmpi"], [plan.Cell("allreduce", NBYTES)], REPEATS)
        rows = session.measure(dataclasses.replace(network, hosts=ranked), settings, Results(None))
    return {
        "order": order,
        "seconds": {f"{row.system} {row.variant}": row.seconds["median"] for row in rows if row.seconds},
        "load": Path("/proc/loadavg").read_text().split()[0],
    }


def show(measured: list[dict[str, Any]]) -> None:
    """A table of what was measured, best against worst, and how well the models order it."""
    native = machines()
    for (system, variant), wanted in ALGORITHMS.items():
        name = f"{system} {variant}"
        there = [one for one in measured if name in one["seconds"]]
        seconds = [one["seconds"][name] for one in there]
        costs = [native.cost(wanted, "congestion", one["order"]) for one in there]
        if len(there) < 2:
            continue
        best, worst = costs.index(min(costs)), costs.index(max(costs))
        print(  # noqa: T201
            f"| {name} | {seconds[best]:.2f} s | {seconds[worst]:.2f} s | {seconds[worst] / seconds[best]:.2f} | "
            f"{costs[worst] / costs[best]:.2f} | {spearman(costs, seconds):.2f} |"
        )


def main() -> None:
    """Measures what is missing, and shows all."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file", type=Path)
    options.add_argument("--show", action="store_true")
    options.add_argument("--orders", type=int, default=ORDERS, help="At most so many more.")
    given = options.parse_args()
    measured = json.loads(given.file.read_text()) if given.file.exists() else []
    known = [one["order"] for one in measured]
    missing = [] if given.show else [order for order in chosen() if order not in known][: given.orders]
    for order in missing:
        measured.append(measure(order))
        given.file.write_text(json.dumps(measured, indent=1) + "\n")
    show(measured)


if __name__ == "__main__":
    main()
