"""One machine whose processes all share an address, to run systems with their own transports on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite_bench.environments import Environments
from hoplite_bench.hosts import Agents, Network
from hoplite_bench.plan import Cell
from hoplite_bench.run import Runner
from hoplite_bench.systems import Host, System

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row


def measured(system: System, *, ranks: int = 3, ops: Sequence[str], sizes: Sequence[int] = (4096, 2**20)) -> list[Row]:
    """The rows of operations between processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        rsh = Path(folder) / "rsh"
        rsh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
        rsh.chmod(0o755)
        hosts = [Host(number, f"rank{number}", "127.0.0.1", "lo") for number in range(ranks)]
        facts = {"kind": "study", "container": "bare"}
        network = Network(hosts, rsh, "", shared_clock=True, cidr="", rate=0, facts=facts, transports="own")
        environments = Environments()
        with Agents(network) as agents:
            system.adapt(hosts, None, plain=False)
            runner = Runner(network, agents, [system], repeats=1, environments=environments, notify=lambda _: None)
            runner.prepare()
            try:
                return [row for op in ops for nbytes in sizes for row in runner.measure(Cell(op, nbytes))]
            finally:
                runner.close()
