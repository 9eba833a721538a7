"""Hoplite with default settings: a node embedded in a worker of each host, to which workers at its address attach."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hoplite_bench.systems.base import ALLGATHER, COLLECTIVES, RANKS, System, Variant, share_address, this_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Host, Launch

# Names of variants, and of their groups.
RACKS = "racks configured"
PLAIN = "not encrypted"
# Inputs and results in each worker's own memory, as with other libraries; for networks with their own transports.
OWN = "own memory"

# The nodes of all groups run side by side. The first group uses this port, the next groups the ports after it.
PORT = 17421
GROUPS = ["default", RACKS, PLAIN, OWN]


class Hoplite(System):
    """One node for each address of a host, embedded in the first worker there.

    Attributes:
        port: TCP port of the nodes of the first group; the next groups use the ports after it.
    """

    name = "hoplite"
    several_inputs = True
    port = PORT

    def __init__(self) -> None:
        self._topology: Mapping[str, Any] | None = None
        self._has_plain = False
        self._on_one_machine = False
        self._copies = False

    def adapt(
        self,
        hosts: Sequence[Host],
        topology: Mapping[str, Any] | None,
        *,
        plain: bool,
        transports: str = "tcp",
    ) -> None:
        """Enables more variants: with configured racks and pods, without encryption, and in the workers' own memory."""
        self._on_one_machine = share_address(hosts)
        self._topology = topology
        self._has_plain = plain
        self._copies = transports == "own"

    def prepare(self, environments: Environments) -> None:
        """Does nothing: it runs in the environment of the bench."""

    def variants(self, op: str) -> list[Variant]:
        """The default for all operations, and variants with settings that make a difference."""
        told = [RACKS] if self._topology and op not in ("rtt", "gather") else []
        if self._has_plain:
            told.append(PLAIN)
        if self._copies:
            told.append(OWN)
        return [Variant(), *(Variant(name, name) for name in told)] if op in COLLECTIVES else []

    def start(self, launch: Launch, group: str) -> None:
        """Starts a worker for each host; all nodes join the first."""
        port = self.port + GROUPS.index(group)
        homes: dict[str, Host] = {}
        for host in launch.hosts:
            homes.setdefault(host.address, host)
        variables = settings(group)
        if group == RACKS:
            # Racks are known only for hosts of a lab, which share one file system.
            file = launch.folder / "topology.json"
            file.write_text(json.dumps(self._topology))
            variables["HOPLITE_TOPOLOGY"] = str(file)
        for host in launch.hosts:
            home = homes[host.address]
            options = ["--socket", str(launch.folder / f"{home.number}.sock"), "--nodes", str(len(homes))]
            if host is home:
                options += ["--capacity", str(launch.memory_bytes)]
                if len(homes) > 1:
                    options += ["--listen", f"{host.address}:{port}"]
                    options += ["--join", f"{launch.hosts[0].address}:{port}"]
            if group == OWN:
                options.append("--own-memory")
            elif launch.transports == "own":
                options.append("--seal-at-call")
            launch.spawn(host, [*self.command(), *launch.rank_options(host), *options], env=variables)

    def command(self) -> Sequence[str | Path]:
        """The program of a worker."""
        return [*this_python(), RANKS / "hoplite_rank.py"]

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Each array exists once in a store, including results and copies; for rtt also in the program's memory.

        On one machine there is one store. Inputs and results in workers' own memory are in addition.
        """
        if self._on_one_machine:
            stored = {"rtt": 2, "broadcast": 1, "reduce": hosts + 1, "allreduce": hosts + 1}.get(op, hosts)
        else:
            stored = {
                "rtt": 4,
                "broadcast": hosts,
                "gather": 2 * hosts - 1,
                "reduce": hosts + 1,
                "allreduce": 2 * hosts,
                ALLGATHER: hosts * hosts,
            }[op]
        own = super().memory(op, hosts, nbytes) if self._copies else (op == "rtt") * nbytes
        return own + stored * nbytes


def settings(group: str = "default") -> dict[str, str]:
    """The settings of a node, as environment variables."""
    # An empty variable overrides one of the bench's shell with the default.
    return {
        "HOPLITE_NO_ENCRYPTION": "true" if group == PLAIN else "",
        "HOPLITE_RACK": "",
    }
