"""Reinforcement learning by samples on Ray, as IMPALA does it: workers play with a policy and send what they saw.

Each step learns from the first rollouts to arrive, and gives their workers the next policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import hoplite.ray
import work

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote
class Worker:
    """Plays."""

    def __init__(self, job: work.Job, _number: int) -> None:
        self.job = job

    def sample(self, policy: Any) -> Any:
        """Plays by a policy; returns the rollout."""
        work.compute(self.job, policy)
        return work.rollout(self.job, policy)


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Trains a policy, which it yields after each step."""
    policy = work.zeros(job)
    ref = hoplite.ray.put(policy)
    running = {worker.sample.remote(ref): worker for worker in workers}
    for _ in range(job.steps):
        done, _ = ray.wait(list(running), num_returns=job.count)
        work.learn(policy, ray.get(done))
        ref = hoplite.ray.put(policy)
        for each in done:
            worker = running.pop(each)
            running[worker.sample.remote(ref)] = worker
        yield policy


def check(job: work.Job, steps: list[Any]) -> None:
    """Checks what `run` has yielded."""
    if not (steps[-1] == job.count * job.steps).all():
        raise ValueError(f"{job.steps} steps of {job.count} rollouts have left {steps[-1]}")
