"""One large object on Ray, read on every node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import work

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote
class Worker:
    """Reads arrays."""

    def __init__(self, job: work.Job, _number: int) -> None:
        self.job = job

    def read(self, array: Any) -> float:
        """Verifies an array; returns its first number."""
        work.compute(self.job, array)
        return float(array[0])


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Puts an array that all workers read; yields the numbers that they return."""
    array = work.zeros(job)
    for _ in range(job.steps):
        array += 1
        ref = ray.put(array)
        yield ray.get([worker.read.remote(ref) for worker in workers])


def check(job: work.Job, steps: list[Any]) -> None:
    """Verifies the values that `run` has yielded."""
    for number, read in enumerate(steps, 1):
        if read != [number] * job.workers:
            raise ValueError(f"the workers returned {read} for an array of {number}")
