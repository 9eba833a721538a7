"""One rank of torch.distributed, with any backend: what a user of PyTorch writes, on tensors in CPU memory or on a GPU.

The ranks meet at a TCPStore on the first host. The program depends on no backend, except for the import that registers
one that PyTorch does not have.
"""

from __future__ import annotations

import datetime as dt
import importlib
import time

import numpy as np
import torch
import torch.distributed as dist

from content import DTYPE, fill, wrong_at
from rank import Rank, Task, arguments, serve, timeout_s
from torch_ddp import Training
from torch_device import CUDA, NCCL, Device, array
from torch_train import ALLREDUCE, PS, Step

# The module that registers a backend. "mpi4py" is also the launcher's: MPI numbers the ranks.
MODULES = {"hoplite": "hoplite.torch", "mpi4py": "torch_mpi"}
# Of the store; the bench has its own, shorter one. Groups are frozen while others are measured.
PATIENCE = dt.timedelta(days=1)
# Of operations: the same, unless the bench sets another one.
OPERATIONS_PATIENCE = dt.timedelta(seconds=timeout_s(PATIENCE.total_seconds()))
SURVEY_S = 60.0


class TorchRank(Rank):
    """One process of the default process group.

    Args:
        backend: name of the backend.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.device = Device(cuda=False, direct=False, rank=0)
        # What this rank sends and receives, and the same in the memory from which the backend communicates.
        self.sent: list[torch.Tensor] = []
        self.came: list[torch.Tensor] = []
        self.shared_sent: list[torch.Tensor] = []
        self.shared_came: list[torch.Tensor] = []
        self.training: Training | None = None
        self.step: Step | None = None

    def prepare(self, task: Task) -> str:
        """Creates this rank's input, and touches the memory for received data; for a training step, its model."""
        self.sent, self.came, self.shared_sent, self.shared_came = [], [], [], []
        is_cuda = task.variant == CUDA or self.backend == NCCL
        self.device = Device(cuda=is_cuda, direct=self.backend == NCCL, rank=task.rank)
        if self.training is not None and (task.op, task.nbytes) != ("ddp", self.training.nbytes):
            self.training = None
        if self.step is not None and (task.op not in (PS, ALLREDUCE) or not self.step.fits(task.nbytes, self.device)):
            self.step = None
        if task.op == "ddp":
            # All ranks create the model at the same time, as DDP requires.
            self.training = self.training or Training(task.nbytes, task.ranks)
            self.training.fill(rank=task.rank, seed=task.seed)
        elif task.op in (PS, ALLREDUCE):
            self.step = self.step or Step(task.nbytes, task.rank, task.ranks, self.device)
            self.step.fill(task.op, task.seed)
        else:
            self._prepare_tensors(task)
        return ""

    def _prepare_tensors(self, task: Task) -> None:
        root = task.rank == 0
        count = task.nbytes // DTYPE.itemsize
        if root or task.op not in ("rtt", "broadcast"):
            own = np.empty(count, DTYPE)
            fill(own, rank=task.rank, seed=task.seed)
            self.sent = [self.device.tensor(own)]
        arrays = {
            "rtt": task.rank < 2,
            "broadcast": not root,
            "gather": root * task.ranks,
            "allgather": task.ranks,
        }.get(task.op, 0)
        self.came = [self.device.full(count, -1) for _ in range(arrays)]
        self.shared_sent = [self.device.shared(tensor) for tensor in self.sent]
        self.shared_came = [self.device.shared(tensor) for tensor in self.came]
        if task.op == "allreduce" or (task.op == "reduce" and root):
            # In place, as torch.distributed defines it.
            self.came, self.shared_came = self.sent, self.shared_sent

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Makes the measured call, with the copies that tensors on a GPU need."""
        if self.training is not None:
            self.training.step()
        elif self.step is not None:
            self.step.run(task.op)
        else:
            self.device.begin()
            self.device.copy(self.sent, self.shared_sent)
            self._call(task)
            self.device.copy(self.shared_came, self.came)
            self.device.finish()
        return None

    def _call(self, task: Task) -> None:
        sent, came = self.shared_sent, self.shared_came
        match task.op:
            case "rtt" if task.rank == 0:
                dist.send(sent[0], dst=1)
                dist.recv(came[0], src=1)
            case "rtt" if task.rank == 1:
                dist.recv(came[0], src=0)
                dist.send(came[0], dst=0)
            case "broadcast":
                dist.broadcast((sent or came)[0], src=0)
            case "gather":
                dist.gather(sent[0], came or None, dst=0)
            case "allgather":
                dist.all_gather(came, sent[0])
            case "reduce":
                dist.reduce(sent[0], dst=0)
            case "allreduce":
                dist.all_reduce(sent[0])

    def parts(self, took_ns: int) -> dict[str, int]:
        """The copies between a GPU and the host, and the call; nothing for a backend that copies inside of the call."""
        if self.training is not None:
            return {}
        if self.step is not None:
            return self.step.took_ns
        if self.device.is_staged:
            return {"collective": took_ns - self.device.staging_ns, "staging": self.device.staging_ns}
        return {} if self.backend == "hoplite" else {"collective": took_ns}

    def check(self, task: Task) -> str:
        """Compares the received data, then releases it; a model stays for the next step."""
        came, self.came, self.sent = [array(tensor) for tensor in self.came], [], []
        self.shared_sent, self.shared_came = [], []
        if self.training is not None:
            return self.training.check(task.seed)
        if self.step is not None:
            return self.step.check(task.seed)
        return wrong_at(came, op=task.op, nbytes=task.nbytes, rank=task.rank, ranks=task.ranks, seed=task.seed)


def wait_for_survey() -> None:
    """Waits until Hoplite's nodes have measured which hosts share a link, as the bench's own system does."""
    import hoplite

    deadline = time.monotonic() + SURVEY_S
    while hoplite.client().status()["survey"] == "waiting" and time.monotonic() < deadline:
        time.sleep(0.1)


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = arguments()
    parser.add_argument("--backend", required=True, help="name of the backend: gloo, mpi4py, hoplite or nccl")
    parser.add_argument("--store", required=True, help="address of the TCPStore, which rank 0 opens: host:port")
    options = parser.parse_args()
    module = importlib.import_module(MODULES[options.backend]) if options.backend in MODULES else None
    number, version = options.rank, torch.__version__
    if options.backend == "mpi4py":
        assert module is not None
        number, size = module.rank_and_size()
        assert size == options.ranks, f"MPI has {size} ranks instead of {options.ranks}"
        version += f" with {module.library()}"
    host, _, port = options.store.rpartition(":")
    store = dist.TCPStore(host, int(port), options.ranks, is_master=number == 0, timeout=PATIENCE)
    dist.init_process_group(
        options.backend, store=store, rank=number, world_size=options.ranks, timeout=OPERATIONS_PATIENCE
    )
    if options.backend == "hoplite":
        wait_for_survey()
    serve(TorchRank(options.backend), control=options.control, number=number, ranks=options.ranks, version=version)
    # The bench has disconnected, and may have killed other ranks: a collective shutdown could wait for them.


if __name__ == "__main__":
    main()
