"""Reinforcement learning with gradients on Ray, as in A3C: workers run a policy and return its gradient.

Each step sums the first gradients to arrive, gets the rewards of their workers, and sends them the next policy.
"""

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
    """Runs a policy and counts its rewards."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.own = work.gradient(job, number)
        self.earned = 0

    @ray.method(tensor_transport="hoplite_numpy")
    def gradient(self, policy: Any) -> Any:
        """Runs a policy; returns its gradient."""
        work.compute(self.job, policy)
        self.earned += 1
        return self.own

    def rewards(self) -> int:
        """Returns the rewards since the previous call."""
        earned, self.earned = self.earned, 0
        return earned


def run(workers: list[Any], job: work.Job) -> Iterator[Any]:
    """Trains a policy; yields it after each step, with the rewards of that step."""
    policy = work.zeros(job)
    ref = hoplite.ray.put(policy)
    running = {worker.gradient.remote(ref): worker for worker in workers}
    for _ in range(job.steps):
        refs = list(running)
        total = hoplite.ray.reduce(refs, count=job.count)
        policy += ray.get(total)
        free = [running.pop(refs[place]) for place in hoplite.ray.inputs(total) + hoplite.ray.lost(total)]
        rewards = ray.get([worker.rewards.remote() for worker in free])
        ref = hoplite.ray.put(policy)
        running |= {worker.gradient.remote(ref): worker for worker in free}
        yield policy, sum(rewards)


def check(job: work.Job, steps: list[Any]) -> None:
    """Verifies the values that `run` has yielded."""
    work.check_model(job, steps[-1][0])
    if any(rewards < job.count for _, rewards in steps):
        raise ValueError(f"the rewards of the steps are {[rewards for _, rewards in steps]}")
