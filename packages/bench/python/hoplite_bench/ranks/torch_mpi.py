"""A backend of torch.distributed over mpi4py, because the wheels of PyTorch have none for MPI.

It has the operations that the bench and DistributedDataParallel use. DistributedDataParallel calls from the thread that
runs the backward pass, which is the caller's on a CPU, so MPI needs no support for threads. Each call blocks until its
part is done, and returns finished work. It uses MPI_COMM_WORLD, whose ranks must be those of the process group; there
are no sub-groups.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch._C._distributed_c10d import Backend, _create_work_from_future

# PyTorch reserves the name "mpi".
NAME = "mpi4py"
OPERATIONS = {
    dist.ReduceOp.SUM: MPI.SUM,
    dist.ReduceOp.PRODUCT: MPI.PROD,
    dist.ReduceOp.MIN: MPI.MIN,
    dist.ReduceOp.MAX: MPI.MAX,
}


class MpiBackend(Backend):  # type: ignore[misc]
    """Upper-case methods of mpi4py, whose buffers are the tensors themselves. Options have ranks of the group."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.world = MPI.COMM_WORLD
        if (rank, size) != (self.world.rank, self.world.size):
            raise ValueError(f"rank {rank} of {size} is rank {self.world.rank} of {self.world.size} in MPI")

    def getBackendName(self) -> str:  # noqa: N802 - as PyTorch names it
        """The name of the backend."""
        return NAME

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:  # noqa: ANN401
        """Sends the root's tensor to all ranks."""
        self.world.Bcast(memory(tensors[0]), root=options.rootRank)
        return done(tensors)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:  # noqa: ANN401
        """Reduces a tensor in place, on all ranks."""
        self.world.Allreduce(MPI.IN_PLACE, memory(tensors[0]), op=operation(options))
        return done(tensors)

    def reduce(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:  # noqa: ANN401
        """Reduces a tensor in place, on the root."""
        own = memory(tensors[0])
        sent, received = (MPI.IN_PLACE, own) if self.rank() == options.rootRank else (own, None)
        self.world.Reduce(sent, received, op=operation(options), root=options.rootRank)
        return done(tensors)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any) -> dist.Work:  # noqa: ANN401
        """Collects a tensor of each rank at the root."""
        own = memory(inputs[0])
        is_root = self.rank() == options.rootRank
        received = np.empty((self.size(), *own.shape), own.dtype) if is_root else None
        self.world.Gather(own, received, root=options.rootRank)
        if received is not None:
            copy(received, outputs[0])
        return done(outputs[0] if is_root else [])

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any) -> dist.Work:  # noqa: ANN401, ARG002
        """Collects a tensor of each rank at all ranks."""
        own = memory(inputs[0])
        received = np.empty((self.size(), *own.shape), own.dtype)
        self.world.Allgather(own, received)
        copy(received, outputs[0])
        return done(outputs[0])

    def barrier(self, options: Any = None) -> dist.Work:  # noqa: ANN401, ARG002
        """Waits for all ranks."""
        self.world.Barrier()
        return done([])

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> dist.Work:
        """Sends a tensor to one rank."""
        self.world.Send(memory(tensors[0]), dest=rank, tag=tag)
        return done(tensors)

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> dist.Work:
        """Receives a tensor from one rank."""
        self.world.Recv(memory(tensors[0]), source=rank, tag=tag)
        return done(tensors)


def memory(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor, which must be contiguous."""
    return tensor.detach().numpy()  # type: ignore[no-any-return]


def copy(received: np.ndarray, outputs: list[torch.Tensor]) -> None:
    """Copies what each rank sent into one tensor each."""
    for array, output in zip(received, outputs, strict=True):
        memory(output)[...] = array


def operation(options: Any) -> MPI.Op:  # noqa: ANN401
    """The operation of a reduction."""
    found = next((mpi for op, mpi in OPERATIONS.items() if options.reduceOp == op), None)
    if found is None:
        raise ValueError(f"this backend has no operation {options.reduceOp}: use sum, product, min or max")
    return found


def done(tensors: list[torch.Tensor]) -> dist.Work:
    """Work that is finished."""
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def rank_and_size() -> tuple[int, int]:
    """The rank of this process and the number of ranks, as the launcher set them."""
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def library() -> str:
    """The name and version of the library, "MPICH 5.0.2"."""
    text = MPI.Get_library_version()
    found = re.search(r"(Open MPI|MPICH)\D*(\d[\w.]*)", text)
    return f"{found[1]} {found[2]}" if found else text.splitlines()[0]


dist.Backend.register_backend(NAME, lambda _store, rank, size, _timeout: MpiBackend(rank, size), devices="cpu")
