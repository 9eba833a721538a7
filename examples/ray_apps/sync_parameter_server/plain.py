"""A synchronous parameter server on Ray: each step sums the gradients of all workers for the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import work

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote
class Worker:
    """Computes gradients."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.own = work.gradient(job, number)

    def gradient(self, model: Any) -> Any:
        """Returns the gradient for a model."""
        work.compute(self.job, model)
        return self.own


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Trains a model; yields it after each step."""
    model = work.zeros(job)
    for _ in range(job.steps):
        ref = ray.put(model)
        gradients = [worker.gradient.remote(ref) for worker in workers]
        for gradient in ray.get(gradients):
            model += gradient
        yield model


def check(job: work.Job, steps: list[Any]) -> None:
    """Verifies the values that `run` has yielded."""
    work.check_model(job, steps[-1], each=job.steps)
