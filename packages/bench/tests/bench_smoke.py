"""A small lab in which a system of the bench runs every operation, with one freeze in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench_pair import prepared
from hoplite_bench.group import Group
from hoplite_bench.hosts import Agents, of_lab
from hoplite_bench.lab import Lab
from hoplite_bench.systems import OPS

if TYPE_CHECKING:
    from hoplite_bench.systems import System

STEP_TIMEOUT_S = 30.0
MEMORY_BYTES = 256 * 2**20
# One size that systems send within messages, and one that they do not.
SIZES = (4096, 2**20)


def smoke(system: System) -> None:
    """Runs every variant of every operation between two hosts of a lab; skips if the system can't be installed."""
    prepared(system)
    with Lab(hosts=2, rate="1gbit") as lab, Agents(network := of_lab(lab)) as agents:
        group = Group(system, "default", network, agents, MEMORY_BYTES)
        group.start()
        try:
            rounds = [(op, size, one.name) for op in OPS for size in SIZES for one in system.variants(op)]
            for seed, (op, size, variant) in enumerate(rounds):
                # Half of them one after the other.
                late = 0.01 * (seed % 2)
                took = group.round(
                    op, size, variant=variant, seed=seed, arrival_s=late, timeout_s=STEP_TIMEOUT_S, weigh=False
                )
                assert 0 < took.seconds < STEP_TIMEOUT_S, (op, size, variant, took)
                if seed == 0:
                    group.freeze()
                    group.thaw()
            assert group.version.split(".")[0].isdigit(), group.version
        finally:
            group.stop()
