"""Reinforcement learning by gradients on Ray, as A3C does it: workers play with a policy and send its gradient.

Each step takes the first gradients to arrive, hears what their workers have earned, and gives these the next policy.
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
    """Plays, and keeps count of its rewards."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.own = work.gradient(job, number)
        self.earned = 0

    @ray.method(tensor_transport="hoplite_numpy")
    def gradient(self, policy: Any) -> Any:
        """Plays by a policy; returns the gradient."""
        work.compute(self.job, policy)
        self.earned += 1
        return self.own

    def rewards(self) -> int:
        """What was earned since this was asked before."""
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
    """Checks what `run` has yielded."""
    work.check_model(job, steps[-1][0])
    if any(rewards < job.count for _, rewards in steps):
        raise ValueError(f"the rewards of the steps are {[rewards for _, rewards in steps]}")
