"""Two hosts to run a system of the bench on, and a launch that only records what it would start."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from hoplite_bench.environments import Environments
from hoplite_bench.hosts import Agents, of_lab
from hoplite_bench.lab import Lab
from hoplite_bench.plan import Cell
from hoplite_bench.run import Runner
from hoplite_bench.systems import OPS, Host, Launch, System, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hoplite_bench.row import Row

Kind = TypeVar("Kind", bound=System)


class Written(Launch):
    """Starts nothing; records in `spawned` what it would start."""

    shared_clock = True
    memory_bytes = 2**30

    def __init__(self, folder: Path, *, interface: str = "", network: str = "") -> None:
        self.hosts = [Host(number, f"n{number}", f"10.9.0.{number + 1}", interface) for number in range(3)]
        self.control = "unix:/control"
        self.rsh = folder / "rsh"
        self.folder = folder
        self.network = network
        self.spawned: list[tuple[int, list[str], dict[str, str]]] = []

    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        self.spawned.append((host.number, [str(word) for word in argv], dict(env or {})))


def prepared(system: Kind) -> Kind:
    """The system itself, or a skip with the reason if it can't be installed."""
    try:
        system.prepare(Environments())
    except Unavailable as error:
        # For example, on a machine without a package index; on one with it, as in CI, nothing is skipped here.
        pytest.skip(str(error))
    return system


def measured(system: System, *, hosts: int = 2, ops: Sequence[str] = OPS) -> list[Row]:
    """The rows of operations of a small and a medium size on a lab."""
    said: list[str] = []
    with Lab(hosts=hosts) as lab, Agents(of_lab(lab)) as agents:
        system.adapt(of_lab(lab).hosts, None, plain=False)
        runner = Runner(of_lab(lab), agents, [system], repeats=1, environments=Environments(), notify=said.append)
        runner.prepare()
        try:
            return [row for op in ops for nbytes in (4096, 2**20) for row in runner.measure(Cell(op, nbytes))]
        finally:
            runner.close()
