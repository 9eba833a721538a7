"""Ensemble serving on Ray: each request's batch goes to all models, and the first predictions vote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import work

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote
class Worker:
    """Serves one model."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.number = number

    def classify(self, images: Any) -> Any:
        """Returns the model's label of each image."""
        return work.classify(self.job, self.number, images)


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Processes requests one after the other; yields the labels of each."""
    for number in range(job.steps):
        ref = ray.put(work.batch(job, number))
        asked = [worker.classify.remote(ref) for worker in workers]
        first, _ = ray.wait(asked, num_returns=job.count)
        yield work.vote(ray.get(first))


def check(job: work.Job, steps: list[Any]) -> None:
    """Verifies the values that `run` has yielded."""
    for number in range(job.steps):
        work.check_labels(number, steps[number])
