"""PyTorch's torch.distributed with four backends: its Gloo and NCCL, MPI through mpi4py, and Hoplite.

All run `ranks/torch_rank.py` with the bench's own interpreter if that has PyTorch, or else in one environment, because
PyTorch takes 5 GB. This module has command lines and memory estimates. These systems are measured only on request, and
they have more operations: training steps. On a machine with a GPU, they have one more variant, with tensors there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hoplite_bench.places import python_path
from hoplite_bench.systems.base import (
    ALLGATHER,
    COLLECTIVES,
    DDP,
    RANKS,
    TRAIN_ALLREDUCE,
    TRAIN_PS,
    System,
    Unavailable,
    Variant,
)
from hoplite_bench.systems.mpi import Mpich

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Launch

ENVIRONMENT = "torch"
REQUIREMENTS = ("torch==2.15.0", *Mpich.requirements)
PROGRAM = RANKS / "torch_rank.py"
# As torchrun sets it.
SETTINGS = {"OMP_NUM_THREADS": "1"}
# Copies of the parameters of a model: themselves, its gradients, those of the round, DDP's buckets, and the backend's.
DDP_COPIES = 6
# Copies of the parameters in another step: themselves, gradients and two vectors, and those of the network; one for the
# backend, and those that rank 0 gathers.
STEP_COPIES = 7
STEPS = (DDP, TRAIN_PS, TRAIN_ALLREDUCE)
# Operations with tensors on a GPU: all but DDP, whose gradients are in CPU memory.
CUDA = "cuda"
ON_GPU = (*COLLECTIVES, TRAIN_PS, TRAIN_ALLREDUCE)
DEVICES = Path("/dev")
# The first version in which ranks can share a GPU.
NCCL_SHARES = (2, 30, 3)
NCCL_VERSION_S = 60.0


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
        """Finds PyTorch, or creates the environment.

        Raises:
            Unavailable: the wheels can't be installed.
        """
        self.python = interpreter("torch", "numpy") or environments.python(ENVIRONMENT, REQUIREMENTS)

    def variants(self, op: str) -> list[Variant]:
        """One variant for each kind of memory: torch.distributed does not choose algorithms."""
        return variants(op)

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it has one group
        """Starts a rank on each host."""
        assert self.python is not None, "start was called before prepare"
        meet = meeting(launch, self.backend, self.port)
        for host in launch.hosts:
            options = [*meet, *launch.rank_options(host)]
            variables = {"GLOO_SOCKET_IFNAME": host.interface} if host.interface else {}
            launch.spawn(host, [self.python, PROGRAM, *options], env={**SETTINGS, **variables, **self.settings(launch)})

    def settings(self, launch: Launch) -> Mapping[str, str]:  # noqa: ARG002 - for a backend without any
        """Environment variables of the backend."""
        return {}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Inputs, results, and one array per host for the backend's own copies."""
        if op in STEPS:
            return memory_of_step(op, hosts, nbytes)
        return super().memory(op, hosts, nbytes) + (hosts * hosts if op == ALLGATHER else hosts) * nbytes


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


class TorchNccl(Torch):
    """The backend that PyTorch uses for tensors on GPUs; they stay there."""

    name = "torch-nccl"
    backend = "nccl"
    port = 17434

    def __init__(self) -> None:
        super().__init__()
        self._version = (0, 0, 0)

    def prepare(self, environments: Environments) -> None:
        """Finds PyTorch, or creates the environment.

        Raises:
            Unavailable: there is no GPU here, PyTorch has no NCCL, or it can't be installed.
        """
        if not gpus():
            raise Unavailable(
                "NCCL needs NVIDIA GPUs, but this machine has none in /dev: use torch-gloo for CPU memory"
            )
        super().prepare(environments)
        assert self.python is not None
        code = "import torch; assert torch.cuda.is_available(); print(*torch.cuda.nccl.version())"
        try:
            found = subprocess.run(
                [self.python, "-c", code], check=True, capture_output=True, text=True, timeout=NCCL_VERSION_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(
                f"PyTorch at {self.python} can't use the GPU: {error}; install a build with CUDA"
            ) from None
        major, minor, patch = map(int, found.stdout.split())
        self._version = (major, minor, patch)

    def variants(self, op: str) -> list[Variant]:
        """NCCL's own choice."""
        return [Variant()] if op in ON_GPU else []

    def start(self, launch: Launch, group: str) -> None:
        """Starts a rank on each host.

        Raises:
            Unavailable: there are more ranks than GPUs, and NCCL can't share them.
        """
        if len(launch.hosts) > gpus() and self._version < NCCL_SHARES:
            raise Unavailable(
                f"{len(launch.hosts)} ranks need as many GPUs, but there are {gpus()}; NCCL "
                f"{'.'.join(map(str, NCCL_SHARES))} and later share a GPU between ranks, and this is "
                f"{'.'.join(map(str, self._version))}: update PyTorch"
            )
        super().start(launch, group)

    def settings(self, launch: Launch) -> Mapping[str, str]:
        """Permission to share a GPU, if there are too few."""
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if len(launch.hosts) > gpus() else {}


class TorchMpi(Mpich):
    """MPICH through a backend of the bench, with MPICH's own choice of algorithms; its launcher starts the ranks."""

    name = "torch-mpi"
    environment_name = ENVIRONMENT
    requirements = REQUIREMENTS
    forced: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    def prepare(self, environments: Environments) -> None:
        """Finds PyTorch with mpi4py and MPICH, or creates the environment.

        Raises:
            Unavailable: the wheels can't be installed, or have no launcher.
        """
        python = interpreter("torch", "numpy", "mpi4py")
        if python is not None and (python.parent / self.launcher).exists():
            self.python = python
        else:
            super().prepare(environments)

    def variants(self, op: str) -> list[Variant]:
        """MPICH's own choice, for each kind of memory."""
        return variants(op)

    def program(self, launch: Launch) -> list[str | Path]:
        """The rank of PyTorch."""
        return [PROGRAM, *meeting(launch, "mpi4py", 17433)]

    def environment(self, launch: Launch, group: str) -> dict[str, str]:
        """The settings of MPICH and of PyTorch."""
        return {**super().environment(launch, group), **SETTINGS}

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """As for MPI, and the array from which a gather is copied into tensors."""
        if op in STEPS:
            return memory_of_step(op, hosts, nbytes)
        copies = {"gather": hosts, ALLGATHER: hosts * hosts}.get(op, 0)
        return super().memory(op, hosts, nbytes) + copies * nbytes


def meeting(launch: Launch, backend: str, port: int) -> list[str]:
    """The options with which ranks find each other."""
    return ["--backend", backend, "--store", f"{launch.hosts[0].address}:{launch.port(port)}"]


def variants(op: str) -> list[Variant]:
    """The variants of a backend that works on CPU memory: with tensors there, and on a GPU if there is one."""
    found = [Variant()] if op in (*COLLECTIVES, *STEPS) else []
    return [*found, Variant(CUDA)] if op in ON_GPU and gpus() else found


def gpus() -> int:
    """The number of NVIDIA GPUs that processes of this machine can open."""
    return sum(1 for path in DEVICES.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit())


def interpreter(*modules: str) -> Path | None:
    """The interpreter of this process if it has these modules; does not import them."""
    has_all = all(importlib.util.find_spec(module) is not None for module in modules)
    return Path(sys.executable) if has_all else None


def memory_of_step(op: str, hosts: int, nbytes: int) -> int:
    """The memory of a training step on all hosts together."""
    copies = DDP_COPIES if op == DDP else STEP_COPIES + (op == TRAIN_PS)
    return copies * hosts * nbytes
