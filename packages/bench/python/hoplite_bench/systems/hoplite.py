"""Hoplite as a program uses it that says nothing: a node embedded in each worker, default settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hoplite_bench.systems.base import OPS, RANKS, System, Variant, this_python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Host, Launch

# Variants, and the groups of the same names.
RACKS = "racks told"
PLAIN = "not encrypted"

# The nodes of all groups run side by side, each group's on a port of its own from here on.
PORT = 17421
GROUPS = ["default", RACKS, PLAIN]


class Hoplite(System):
    """One node a host, in the process that calls."""

    name = "hoplite"
    several_inputs = True

    def __init__(self) -> None:
        self._topology: Mapping[str, Any] | None = None
        self._has_plain = False

    def adapt(
        self,
        hosts: Sequence[Host],  # noqa: ARG002 - all variants run on any
        topology: Mapping[str, Any] | None,
        *,
        plain: bool,
    ) -> None:
        """More variants: one that is told of the racks and pods, and one without encryption."""
        self._topology = topology
        self._has_plain = plain

    def prepare(self, environments: Environments) -> None:
        """Runs with what the bench itself runs with."""

    def variants(self, op: str) -> list[Variant]:
        """Its own choice for all operations; what may be said to it where that makes a difference."""
        told = [RACKS] if self._topology and op not in ("rtt", "gather") else []
        if self._has_plain:
            told.append(PLAIN)
        return [Variant(), *(Variant(name, name) for name in told)] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:
        """Starts a worker on each host, all of which join the first."""
        port = PORT + GROUPS.index(group)
        settings = _settings(group)
        if group == RACKS:
            # Only of a lab's hosts, which have one file system, the racks are known.
            file = launch.folder / "topology.json"
            file.write_text(json.dumps(self._topology))
            settings["HOPLITE_TOPOLOGY"] = str(file)
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
                env=settings,
            )

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Every array lies once in a store, results and copies too; of a round trip also in the program's memory."""
        arrays = {"rtt": 5, "broadcast": hosts, "gather": 2 * hosts - 1, "reduce": hosts + 1, "allreduce": 2 * hosts}
        return arrays[op] * nbytes


def _settings(group: str) -> dict[str, str]:
    """What a node is told, as variables that are its settings."""
    # Whatever the shell of the bench says: an empty variable says nothing.
    return {
        "HOPLITE_NO_ENCRYPTION": "true" if group == PLAIN else "",
        "HOPLITE_RACK": "",
    }
