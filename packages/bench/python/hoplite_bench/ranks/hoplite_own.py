"""A client of Hoplite whose inputs and results are arrays of its own memory, like those of MPI and Gloo.

Each input is put, and each result is copied out of the store, within the measured time. These copies are the staging;
everything else is the collective, including the time in which a rank waits for inputs that others put. Between nodes, a
get copies an object while it arrives, so the copy out of the store belongs to the collective there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from content import DTYPE, fill
from hoplite_rank import AND, NEXT, PATIENCE_S, HopliteRank

if TYPE_CHECKING:
    from collections.abc import Sequence

    import hoplite
    from rank import Task


class OwnMemoryRank(HopliteRank):
    """One client; its objects exist only during a round.

    Attributes:
        inputs: this rank's inputs, each with the reserved ref under which it is put.
        results: memory for the results, touched before the round.
        one_node: whether all ranks are clients of one node.
        staging_ns: time of copies into and out of the store in this round that are not part of a transfer.
    """

    def __init__(self, client: hoplite.Client) -> None:
        super().__init__(client)
        self.inputs: list[tuple[np.ndarray, hoplite.Ref]] = []
        self.results: list[np.ndarray] = []
        self.one_node = len(client.status()["members"]) == 1
        self.staging_ns = 0

    def prepare(self, task: Task) -> str:
        """Creates inputs and memory for results in this process; returns the reserved refs of what it will put."""
        root, pair = task.rank == 0, task.rank < 2
        count = task.nbytes // DTYPE.itemsize
        self.inputs, self.results, self.staging_ns = [], [], 0
        has_input = {"rtt": pair, "broadcast": root}.get(task.op, True)
        for further in range(task.inputs if has_input else 0):
            array = np.empty(count, DTYPE)
            fill(array, rank=task.rank + task.ranks * further, seed=task.seed)
            self.inputs.append((array, self.client.reserve()))
        arrays = {
            "rtt": int(pair),
            "broadcast": int(not root),
            "gather": task.ranks * root,
            "reduce": int(root),
            "allreduce": 1,
            "allgather": task.ranks,
        }
        self.results = [np.full(count, -1, DTYPE) for _ in range(arrays[task.op])]
        refs = [ref for _, ref in self.inputs]
        self.made += refs
        return self._with_result(task, NEXT.join(map(str, refs)))

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Puts the inputs, and copies the results into this process's memory."""
        root = task.rank == 0
        result = tokens[0].partition(AND)[2]
        refs = [ref for token in tokens for ref in token.partition(AND)[0].split(NEXT) if ref]
        if task.op == "rtt" and task.rank == 1:
            self._get(refs[:1])
            self._put(self.results[0], self.inputs[0][1])
            return None
        for array, ref in self.inputs:
            self._put(array, ref)
        match task.op:
            case "rtt" if root:
                self._get(refs[1:2])
            case "broadcast" if not root:
                self._get(refs[:1])
            case "gather" if root:
                self._get(refs)
            case "allgather":
                self._get(refs)
            case "reduce" if root:
                self.made.append(self.client.reduce(refs, op="sum", timeout=PATIENCE_S))
                self._get([self.made[-1]])
            case "allreduce":
                if root:
                    self.made.append(self.client.reduce(refs, op="sum", name=self.reserved, timeout=PATIENCE_S))
                self._get([result])
        return None

    def _put(self, array: np.ndarray, ref: hoplite.Ref) -> None:
        start = time.monotonic_ns()
        self.client.put(array, name=ref, timeout=PATIENCE_S)
        self.staging_ns += time.monotonic_ns() - start

    def _get(self, refs: Sequence[hoplite.Ref | str]) -> None:
        """Copies objects; those of this node only when they are complete, so that the time is that of the copy."""
        if self.one_node:
            self.client.wait(refs, timeout=PATIENCE_S)
        start = time.monotonic_ns()
        self.came += self.client.get(refs, out=self.results, timeout=PATIENCE_S)
        if self.one_node:
            self.staging_ns += time.monotonic_ns() - start

    def parts(self, took_ns: int) -> dict[str, int]:
        """The copies, and the rest of the call, which includes waiting for other ranks."""
        return {"collective": took_ns - self.staging_ns, "staging": self.staging_ns}

    def check(self, task: Task) -> str:
        """Compares all results, then releases the memory and deletes the objects."""
        error = super().check(task)
        self.inputs, self.results = [], []
        return error
