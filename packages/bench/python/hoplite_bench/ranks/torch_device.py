"""Where a rank's tensors are, and the copies between a GPU and the memory from which a backend communicates.

A backend without support for GPUs communicates from pinned memory of the host; the copies are the staging. This module
does not know operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

# The variant of an operation whose tensors are on a GPU, and the backend that has no other tensors.
CUDA = "cuda"
NCCL = "nccl"


class Device:
    """The device of a rank's tensors.

    Args:
        cuda: whether tensors are on a GPU.
        direct: whether the backend communicates from the memory of the GPU.
        rank: this rank; ranks are distributed over GPUs.

    Attributes:
        staging_ns: time of copies since `begin`, by the clock of the GPU.
    """

    def __init__(self, *, cuda: bool, direct: bool, rank: int) -> None:
        self.place = torch.device(CUDA, rank % torch.cuda.device_count()) if cuda else torch.device("cpu")
        self.is_staged = cuda and not direct
        self.staging_ns = 0

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        """A tensor of an array's content on the device; in CPU memory, of the array itself."""
        return torch.from_numpy(array).to(self.place)

    def full(self, count: int, value: float) -> torch.Tensor:
        """A new tensor of float32 on the device."""
        return torch.full((count,), value, dtype=torch.float32, device=self.place)

    def shared(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that the backend gets: the tensor itself, or memory of the host for its copy."""
        return torch.empty(tensor.shape, pin_memory=True) if self.is_staged else tensor

    def begin(self) -> None:
        """Starts an operation."""
        self.staging_ns = 0

    def copy(self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        """Copies tensors between the device and the host, unless they are the same."""
        if not self.is_staged:
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        self.staging_ns += round(begin.elapsed_time(end) * 1e6)

    def finish(self) -> None:
        """Waits for the device."""
        if self.place.type == CUDA:
            torch.cuda.synchronize()


def array(tensor: torch.Tensor) -> np.ndarray:
    """The content of a tensor."""
    return np.asarray(tensor.detach().cpu().numpy())
