"""PyTorch's torch.distributed with three backends: its Gloo, MPI through mpi4py, and Hoplite.

All three run `ranks/torch_rank.py` in one environment, because PyTorch takes 5 GB. This module has command lines and
memory estimates. These systems are measured only on request, and they have one more operation: a training step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hoplite_bench.places import python_path
from hoplite_bench.systems.base import DDP, OPS, RANKS, System, Variant
from hoplite_bench.systems.mpi import Mpich

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Launch

ENVIRONMENT = "torch"
REQUIREMENTS = ("torch==2.15.0", *Mpich.requirements)
PROGRAM = RANKS / "torch_rank.py"
# As torchrun sets it.
SETTINGS = {"OMP_NUM_THREADS": "1"}
# Copies of the parameters of a model: themselves, its gradients, those of the round, DDP's buckets, and the backend's.
DDP_COPIES = 6


class Torch(System):
    """Common parts of the backends whose ranks the bench starts itself.

    Attributes:
        backend: name of the backend in PyTorch.
        port: port of the TCPStore on the first host.
    """

    backend: ClassVar[str]
    port: ClassVar[int]

    def __init__(self) -> None:
        self.python: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Creates the environment.

        Raises:
            Unavailable: the wheels can't be installed.
        """
        self.python = environments.python(ENVIRONMENT, REQUIREMENTS)

    def variants(self, op: str) -> list[Variant]:
        """One variant: torch.distributed does not choose algorithms."""
        return [Variant()] if op in (*OPS, DDP) else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a rank on each host."""
        assert self.python is not None, "start was called before prepare"
        for host in launch.hosts:
            options = [*meeting(launch, self.backend, self.port), *launch.rank_options(host)]
            variables = {"GLOO_SOCKET_IFNAME": host.interface} if host.interface else {}
            launch.spawn(host, [self.python, PROGRAM, *options], env={**SETTINGS, **variables, **self.settings(launch)})

    def settings(self, launch: Launch) -> Mapping[str, str]:  # noqa: ARG002 - for a backend without any
        """Environment variables of the backend."""
        return {}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, results, and one array per host for the backend's own copies."""
        if op == DDP:
            return DDP_COPIES * hosts * nbytes
        return super().memory(op, hosts, nbytes) + hosts * nbytes


class TorchGloo(Torch):
    """The backend that PyTorch uses for tensors in CPU memory."""

    name = "torch-gloo"
    backend = "gloo"
    port = 17431


class TorchHoplite(Torch):
    """Hoplite's backend, from the same Hoplite as that of the bench."""

    name = "torch-hoplite"
    backend = "hoplite"
    port = 17432

    def settings(self, launch: Launch) -> Mapping[str, str]:
        """The path of Hoplite, and the settings of the node of each rank."""
        return {
            "PYTHONPATH": python_path(),
            "HOPLITE_CAPACITY": str(launch.memory_bytes),
            # The ranks start their own nodes. An empty variable is the default, whatever the bench's shell has.
            "HOPLITE_ADDRESS": "",
            # As Gloo and MPI, which do not encrypt either.
            "HOPLITE_NO_ENCRYPTION": "1",
            "HOPLITE_RACK": "",
        }


class TorchMpi(Mpich):
    """MPICH through a backend of the bench, with MPICH's own choice of algorithms; its launcher starts the ranks."""

    name = "torch-mpi"
    environment_name = ENVIRONMENT
    requirements = REQUIREMENTS
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def variants(self, op: str) -> list[Variant]:
        """MPICH's own choice."""
        return [Variant()] if op in (*OPS, DDP) else []

    def program(self, launch: Launch) -> list[str | Path]:
        """The rank of PyTorch."""
        return [PROGRAM, *meeting(launch, "mpi4py", 17433)]

    def environment(self, launch: Launch, group: str) -> dict[str, str]:
        """The settings of MPICH and of PyTorch."""
        return {**super().environment(launch, group), **SETTINGS}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """As for MPI, and the array from which a gather is copied into tensors."""
        if op == DDP:
            return DDP_COPIES * hosts * nbytes
        return super().memory(op, hosts, nbytes) + (hosts * nbytes if op == "gather" else 0)


def meeting(launch: Launch, backend: str, port: int) -> list[str]:
    """The options with which ranks find each other."""
    return ["--backend", backend, "--store", f"{launch.hosts[0].address}:{launch.port(port)}"]
