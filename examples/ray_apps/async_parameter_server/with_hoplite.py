"""An asynchronous parameter server on Ray: each step sums the first gradients to arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import hoplite.ray
import work

if TYPE_CHECKING:
    from collections.abc import Iterator

hoplite.ray.register()


@ray.remote
class Worker:
    """Computes gradients at its own speed."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.own = work.gradient(job, number)

    @ray.method(tensor_transport="hoplite_numpy")
    def gradient(self, model: Any) -> Any:
        """Returns the gradient for a model."""
        work.compute(self.job, model)
        return self.own


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Trains a model; yields it after each step."""
    model = work.zeros(job)
    ref = hoplite.ray.put(model)
    running = {worker.gradient.remote(ref): worker for worker in workers}
    for _ in range(job.steps):
        refs = list(running)
        total = hoplite.ray.reduce(refs, count=job.count)
        model += ray.get(total)
        ref = hoplite.ray.put(model)
        for place in hoplite.ray.inputs(total) + hoplite.ray.lost(total):
            worker = running.pop(refs[place])
            running[worker.gradient.remote(ref)] = worker
        yield model


def check(job: work.Job, steps: list[Any]) -> None:
    """Verifies the values that `run` has yielded."""
    work.check_model(job, steps[-1])
