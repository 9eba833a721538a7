"""One rank of torch.distributed, with any backend: what a user of PyTorch writes, on tensors in CPU memory.

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
from rank import Rank, Task, arguments, serve
from torch_ddp import Training

# The module that registers a backend. "mpi4py" is also the launcher's: MPI numbers the ranks.
MODULES = {"hoplite": "hoplite.torch", "mpi4py": "torch_mpi"}
# Of the store and of operations; the bench has its own, shorter one. Groups are frozen while others are measured.
PATIENCE = dt.timedelta(days=1)
SURVEY_S = 60.0


class TorchRank(Rank):
    """One process of the default process group."""

    def __init__(self) -> None:
        self.sent: torch.Tensor | None = None
        self.came: list[torch.Tensor] = []
        self.training: Training | None = None

    def prepare(self, task: Task) -> str:
        """Creates this rank's input, and touches the memory for received data; for a training step, its model."""
        root = task.rank == 0
        self.sent, self.came = None, []
        if task.op == "ddp":
            if self.training is None or self.training.nbytes != task.nbytes:
                # Frees the memory first. All ranks create the model at the same time, as DDP requires.
                self.training = None
                self.training = Training(task.nbytes, task.ranks)
            self.training.fill(rank=task.rank, seed=task.seed)
            return ""
        self.training = None
        count = task.nbytes // DTYPE.itemsize
        if root or task.op not in ("rtt", "broadcast"):
            own = np.empty(count, DTYPE)
            fill(own, rank=task.rank, seed=task.seed)
            self.sent = torch.from_numpy(own)
        arrays = {"rtt": task.rank < 2, "broadcast": not root, "gather": root * task.ranks}.get(task.op, 0)
        self.came = [torch.full((count,), -1.0) for _ in range(arrays)]
        if task.op == "allreduce" or (task.op == "reduce" and root):
            # In place, as torch.distributed defines it.
            self.came = [self.sent]
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Makes the measured call."""
        match task.op:
            case "rtt" if task.rank == 0:
                dist.send(self.sent, dst=1)
                dist.recv(self.came[0], src=1)
            case "rtt" if task.rank == 1:
                dist.recv(self.came[0], src=0)
                dist.send(self.came[0], dst=0)
            case "broadcast":
                dist.broadcast(self.sent if task.rank == 0 else self.came[0], src=0)
            case "gather":
                dist.gather(self.sent, self.came or None, dst=0)
            case "reduce":
                dist.reduce(self.sent, dst=0)
            case "allreduce":
                dist.all_reduce(self.sent)
            case "ddp":
                assert self.training is not None, "run was called before prepare"
                self.training.step()
        return None

    def check(self, task: Task) -> str:
        """Compares the received data, then releases it; a model stays for the next step."""
        came, self.came, self.sent = [tensor.numpy() for tensor in self.came], [], None
        if self.training is not None:
            return self.training.check(task.seed)
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
    parser.add_argument("--backend", required=True, help="name of the backend: gloo, mpi4py or hoplite")
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
    dist.init_process_group(options.backend, store=store, rank=number, world_size=options.ranks, timeout=PATIENCE)
    if options.backend == "hoplite":
        wait_for_survey()
    serve(TorchRank(), control=options.control, number=number, ranks=options.ranks, version=version)
    # The bench has disconnected, and may have killed other ranks: a collective shutdown could wait for them.


if __name__ == "__main__":
    main()
