"""One rank of MPI through mpi4py, with the MPI of its environment; independent of launchers and algorithms.

It is what a user of NumPy writes: the upper-case methods, whose buffers are the arrays themselves. A variant is a
setting of the process, so it changes nothing here.
"""

from __future__ import annotations

import re

import numpy as np
from mpi4py import MPI

from content import DTYPE, fill, wrong_at
from rank import Rank, Task, arguments, serve


class MpiRank(Rank):
    """One process of MPI_COMM_WORLD."""

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        self.sent: np.ndarray | None = None
        self.received: np.ndarray | None = None

    def prepare(self, task: Task) -> str:
        """Creates this rank's input, and touches the memory for received data."""
        root = task.rank == 0
        count = task.nbytes // DTYPE.itemsize
        self.sent = self.received = None
        if root or task.op not in ("rtt", "broadcast"):
            self.sent = np.empty(count, DTYPE)
            fill(self.sent, rank=task.rank, seed=task.seed)
        if task.op == "allreduce":
            # In place, which avoids a copy.
            self.received = self.sent
        elif task.op == "allgather" or (task.op == "gather" and root):
            self.received = np.full((task.ranks, count), -1, DTYPE)
        elif {"rtt": task.rank < 2, "broadcast": not root, "reduce": root}.get(task.op):
            self.received = np.full(count, -1, DTYPE)
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Makes the measured call."""
        match task.op:
            case "rtt" if task.rank == 0:
                self.world.Send(self.sent, dest=1)
                self.world.Recv(self.received, source=1)
            case "rtt" if task.rank == 1:
                self.world.Recv(self.received, source=0)
                self.world.Send(self.received, dest=0)
            case "broadcast":
                self.world.Bcast(self.sent if task.rank == 0 else self.received)
            case "gather":
                self.world.Gather(self.sent, self.received)
            case "allgather":
                self.world.Allgather(self.sent, self.received)
            case "reduce":
                self.world.Reduce(self.sent, self.received, op=MPI.SUM)
            case "allreduce":
                self.world.Allreduce(MPI.IN_PLACE, self.received, op=MPI.SUM)
        return None

    def parts(self, took_ns: int) -> dict[str, int]:
        """The call, with the copies that the library makes inside."""
        return {"collective": took_ns}

    def check(self, task: Task) -> str:
        """Compares the received data, then releases it."""
        came = [] if self.received is None else list(self.received) if "gather" in task.op else [self.received]
        differs = wrong_at(came, op=task.op, nbytes=task.nbytes, rank=task.rank, ranks=task.ranks, seed=task.seed)
        self.sent = self.received = None
        return differs


def version() -> str:
    """The library's name and version, "Open MPI 5.0.11" or "MPICH 5.0.2"."""
    said = MPI.Get_library_version()
    found = re.search(r"(Open MPI|MPICH)\D*(\d[\w.]*)", said)
    return f"{found[1]} {found[2]}" if found else said.splitlines()[0]


def main() -> None:
    """Takes part until the bench disconnects."""
    options = arguments().parse_args()
    rank = MpiRank()
    assert rank.world.size == options.ranks, f"MPI has {rank.world.size} ranks instead of {options.ranks}"
    serve(rank, control=options.control, number=rank.world.rank, ranks=options.ranks, version=version())


if __name__ == "__main__":
    main()
