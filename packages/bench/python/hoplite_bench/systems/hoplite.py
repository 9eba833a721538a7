"""Hoplite with default settings: a node embedded in each worker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hoplite_bench.systems.base import OPS, RANKS, System, Variant, this_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Host, Launch

# Names of variants, and of their groups.
RACKS = "racks configured"
PLAIN = "not encrypted"

# The nodes of all groups run side by side. The first group uses this port, the next groups the ports after it.
PORT = 17421
GROUPS = ["default", RACKS, PLAIN]


class Hoplite(System):
    """One node per host, embedded in the worker."""

    name = "hoplite"
    several_inputs = True

    def __init__(self) -> None:
        self._topology: Mapping[str, Any] | None = None
        self._has_plain = False

    def adapt(
        self,
        hosts: Sequence[Host],  # noqa: ARG002 - all variants run on any hosts
        topology: Mapping[str, Any] | None,
        *,
        plain: bool,
    ) -> None:
        """Enables more variants: one with configured racks and pods, and one without encryption."""
        self._topology = topology
        self._has_plain = plain

    def prepare(self, environments: Environments) -> None:
        """Does nothing: it runs in the environment of the bench."""

    def variants(self, op: str) -> list[Variant]:
        """The default for all operations, and variants with settings that make a difference."""
        told = [RACKS] if self._topology and op not in ("rtt", "gather") else []
        if self._has_plain:
            told.append(PLAIN)
        return [Variant(), *(Variant(name, name) for name in told)] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:
        """Starts a worker on each host; all join the first."""
        port = PORT + GROUPS.index(group)
        variables = settings(group)
        if group == RACKS:
            # Racks are known only for hosts of a lab, which share one file system.
            file = launch.folder / "topology.json"
            file.write_text(json.dumps(self._topology))
            variables["HOPLITE_TOPOLOGY"] = str(file)
        for host in launch.hosts:
            launch.spawn(
                host,
                [
                    *this_python(),
                    RANKS / "hoplite_rank.py",
                    *launch.rank_options(host),
                    *("--listen", f"{host.address}:{port}"),
                    *("--join", f"{launch.hosts[0].address}:{port}"),
                    *("--capacity", str(launch.memory_bytes)),
                    *("--socket", str(launch.folder / f"{host.number}.sock")),
                ],
                env=variables,
            )

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Each array exists once in a store, including results and copies; for rtt also in the program's memory."""
        arrays = {"rtt": 5, "broadcast": hosts, "gather": 2 * hosts - 1, "reduce": hosts + 1, "allreduce": 2 * hosts}
        return arrays[op] * nbytes


def settings(group: str = "default") -> dict[str, str]:
    """The settings of a node, as environment variables."""
    # An empty variable overrides one of the bench's shell with the default.
    return {
        "HOPLITE_NO_ENCRYPTION": "true" if group == PLAIN else "",
        "HOPLITE_RACK": "",
    }
