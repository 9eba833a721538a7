"""A training step of ResNet-18 whose communication is written out: with rank 0 as parameter server, or with allreduce.

Each rank computes a real forward and backward pass. Communication then uses known gradients of the same size, so that
the result can be compared exactly. A barrier ends each phase, so that waiting for a slower rank does not count as
communication. The module does not depend on the backend.
"""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from content import DTYPE, fill, wrong
from resnet import NBYTES
from torch_device import array
from torch_network import Network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch_device import Device

# Of one allreduce, as in DistributedDataParallel.
BUCKET_BYTES = 25 << 20
PS, ALLREDUCE = "train-ps", "train-allreduce"


@functools.cache
def network_on(place: torch.device) -> Network:
    """The network of this process on a device; each measurement's small first step has none."""
    return Network(place)


class Step:
    """The vectors of a step: the gradients of a rank, and the parameters after the step.

    Args:
        nbytes: size of all parameters; with less than ResNet-18, nothing is computed.
        rank: this rank; rank 0 is the parameter server and trains too.
        ranks: number of ranks.
        device: where the vectors are.
    """

    def __init__(self, nbytes: int, rank: int, ranks: int, device: Device) -> None:
        self.nbytes = nbytes
        self.rank = rank
        self.ranks = ranks
        self.device = device
        self.network = network_on(device.place) if nbytes == NBYTES else None
        count = nbytes // DTYPE.itemsize
        self.gradients, self.parameters = device.full(count, 0), device.full(count, 0)
        self.shared_gradients, self.shared_parameters = device.shared(self.gradients), device.shared(self.parameters)
        self.gathered: list[torch.Tensor] = []
        self.took_ns: dict[str, int] = {}

    def fits(self, nbytes: int, device: Device) -> bool:
        """Whether the step has this size and its vectors are on this device."""
        return (self.nbytes, self.device.place) == (nbytes, device.place)

    def fill(self, op: str, seed: int) -> None:
        """Sets the gradients to integers, as many times as there are ranks, so that their mean is exact."""
        gradients = np.empty(self.gradients.numel(), DTYPE)
        fill(gradients, rank=self.rank, seed=seed)
        self.gradients.copy_(torch.from_numpy(gradients * self.ranks))
        self.parameters.fill_(-1)
        serves = op == PS and self.rank == 0
        self.gathered = [torch.full_like(self.shared_gradients, -1) for _ in range(self.ranks if serves else 0)]

    def run(self, op: str) -> None:
        """Runs the step; `took_ns` has the time of each phase afterwards."""
        self.took_ns = {}
        self.device.begin()
        with self._phase("train"):
            if self.network is not None:
                self.network.train()
            self.device.finish()
        if op == PS:
            self._serve()
        else:
            self._reduce()
        self.device.finish()
        if self.device.is_staged:
            self.took_ns["staging"] = self.device.staging_ns

    def _serve(self) -> None:
        """Gathers gradients at rank 0, and broadcasts the parameters."""
        with self._phase("gather"):
            self.device.copy([self.gradients], [self.shared_gradients])
            dist.gather(self.shared_gradients, self.gathered or None, dst=0)
        with self._phase("average"):
            if self.rank == 0:
                total = self.gathered[0]
                for other in self.gathered[1:]:
                    total += other
                torch.div(total, self.ranks, out=self.shared_parameters)
            self.device.finish()
        self.took_ns["gather"] += self.took_ns["average"]
        with self._phase("broadcast"):
            dist.broadcast(self.shared_parameters, src=0)
            self.device.copy([self.shared_parameters], [self.parameters])

    def _reduce(self) -> None:
        """Adds the gradients of all ranks, bucket by bucket."""
        with self._phase("collective"):
            self.device.copy([self.gradients], [self.shared_gradients])
            buckets = self.shared_gradients.split(BUCKET_BYTES // DTYPE.itemsize)
            for work in [dist.all_reduce(bucket, async_op=True) for bucket in buckets]:
                work.wait()
            self.device.copy([self.shared_gradients], [self.gradients])
        with self._phase("average"):
            torch.div(self.gradients, self.ranks, out=self.parameters)
            self.device.finish()

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Measures a phase until all ranks have ended it."""
        start = time.monotonic_ns()
        yield
        dist.barrier()
        self.took_ns[name] = time.monotonic_ns() - start

    def check(self, seed: int) -> str:
        """Compares the parameters with the mean of all gradients; returns the first error."""
        self.gathered = []
        return wrong(array(self.parameters), nbytes=self.nbytes, ranks=range(self.ranks), seed=seed)
