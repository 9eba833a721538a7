"""Ranks in a container set-up of this machine, to run systems with their own transports on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench.containers import opened
from hoplite_bench.environments import Environments
from hoplite_bench.hosts import Agents
from hoplite_bench.plan import Cell
from hoplite_bench.run import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.plan import Contender
    from hoplite_bench.row import Row
    from hoplite_bench.systems import System


def measured(
    *systems: System,
    container: str = "bare",
    ranks: int = 3,
    ops: Sequence[str],
    sizes: Sequence[int] = (4096, 2**20),
    variants: Sequence[str] = (),
) -> list[Row]:
    """The rows of operations between ranks of a container set-up; of all variants, or of some."""

    def wanted(one: Contender) -> bool:
        return not variants or one.variant in variants

    with opened(container, ranks) as network, Agents(network) as agents:
        for system in systems:
            system.adapt(network.hosts, network.topology, plain=False, transports=network.transports)
        environments = Environments()
        runner = Runner(
            network, agents, systems, repeats=1, environments=environments, notify=lambda _: None, wanted=wanted
        )
        runner.prepare()
        try:
            return [row for op in ops for nbytes in sizes for row in runner.measure(Cell(op, nbytes))]
        finally:
            runner.close()
