"""Hoplite as a program uses it that says nothing: a node embedded in each worker, default settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite.bench.systems.base import OPS, RANKS, System, Variant, this_python

if TYPE_CHECKING:
    from hoplite.bench.environments import Environments
    from hoplite.bench.systems.base import Launch

PORT = 17421


class Hoplite(System):
    """One node a host, in the process that calls."""

    name = "hoplite"

    def prepare(self, environments: Environments) -> None:
        """Runs with what the bench itself runs with."""

    def variants(self, op: str) -> list[Variant]:
        """Its own choice, for all operations."""
        return [Variant()] if op in OPS else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one
        """Starts a worker on each host, all of which join the first."""
        for host in launch.hosts:
            launch.spawn(
                host,
                [
                    *this_python(),
                    RANKS / "hoplite_rank.py",
                    *launch.rank_options(host),
                    *("--listen", f"{host.address}:{PORT}"),
                    *("--join", f"{launch.hosts[0].address}:{PORT}"),
                    *("--capacity", str(launch.memory_bytes)),
                    *("--socket", str(launch.folder / f"{host.number}.sock")),
                ],
            )

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Every array lies once in a store, results and copies too; while it is put, also in the program's memory."""
        arrays = {"rtt": 4, "broadcast": hosts, "gather": 2 * hosts, "reduce": 2 * hosts, "allreduce": 2 * hosts}
        return arrays[op] * nbytes
