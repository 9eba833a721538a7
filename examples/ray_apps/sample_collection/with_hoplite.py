"""Reinforcement learning with samples on Ray, as in IMPALA: workers run a policy and return rollouts.

Each step learns from the first rollouts to arrive, and sends their workers the next policy.
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
    """Runs a policy."""

    def __init__(self, job: work.Job, _number: int) -> None:
        self.job = job

    def sample(self, policy: Any) -> Any:
        """Runs a policy; returns the rollout."""
        work.compute(self.job, policy)
        return work.rollout(self.job, policy)


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Trains a policy; yields it after each step."""
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
    """Verifies the values that `run` has yielded."""
    if not (steps[-1] == job.count * job.steps).all():
        raise ValueError(f"after {job.steps} steps of {job.count} rollouts, the policy is {steps[-1]}")
