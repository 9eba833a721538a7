"""Systems that comparisons with other studies name, and that can't be installed here: their rows have the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hoplite_bench.systems.base import COLLECTIVES, System, Unavailable, Variant
from hoplite_bench.systems.pytorch import gpus

if TYPE_CHECKING:
    from hoplite_bench.environments import Environments
    from hoplite_bench.systems.base import Launch


class Missing(System):
    """Common parts.

    Attributes:
        reason: why it can't be installed.
    """

    reason: ClassVar[str]

    def prepare(self, environments: Environments) -> None:  # noqa: ARG002 - nothing can be installed
        """Reports why it can't run.

        Raises:
            Unavailable: always.
        """
        raise Unavailable(self.reason)

    def variants(self, op: str) -> list[Variant]:
        """One for each operation, so that each has a row."""
        return [Variant()] if op in COLLECTIVES else []

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002 - it is never prepared
        """Is not reached.

        Raises:
            Unavailable: always.
        """
        raise Unavailable(self.reason)


class CudaMpi(Missing):
    """MPI that communicates from the memory of GPUs."""

    name = "cuda-mpi"
    reason = (
        "the Open MPI and MPICH wheels of PyPI are built without CUDA: build Open MPI with --with-cuda to compare it; "
        "torch-mpi stages tensors of a GPU in CPU memory"
    )

    def prepare(self, environments: Environments) -> None:
        """Reports why it can't run.

        Raises:
            Unavailable: always.
        """
        if not gpus():
            raise Unavailable(
                "CUDA-aware MPI needs NVIDIA GPUs, but this machine has none in /dev: use mpich or openmpi"
            )
        super().prepare(environments)


class Ucc(Missing):
    """Unified Collective Communication."""

    name = "ucc"
    reason = (
        "UCC is neither in Debian 12 nor in PyPI, and PyTorch's wheels are built without it: use mpich, which has "
        "the transports of UCX too"
    )
