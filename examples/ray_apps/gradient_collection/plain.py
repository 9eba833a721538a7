"""Reinforcement learning by gradients on Ray, as A3C does it: workers play with a policy and send its gradient.

Each step takes the first gradients to arrive, hears what their workers have earned, and gives these the next policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray

import work

if TYPE_CHECKING:
    from collections.abc import Iterator


@ray.remote
class Worker:
    """Plays, and keeps count of its rewards."""

    def __init__(self, job: work.Job, number: int) -> None:
        self.job = job
        self.own = work.gradient(job, number)
        self.earned = 0

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
    ref = ray.put(policy)
    running = {worker.gradient.remote(ref): worker for worker in workers}
    for _ in range(job.steps):
        done, _ = ray.wait(list(running), num_returns=job.count)
        for gradient in ray.get(done):
            policy += gradient
        free = [running.pop(each) for each in done]
        rewards = ray.get([worker.rewards.remote() for worker in free])
        ref = ray.put(policy)
        running |= {worker.gradient.remote(ref): worker for worker in free}
        yield policy, sum(rewards)


def check(job: work.Job, steps: list[Any]) -> None:
    """Checks what `run` has yielded."""
    work.check_model(job, steps[-1][0])
    if any(rewards < job.count for _, rewards in steps):
        raise ValueError(f"the rewards of the steps are {[rewards for _, rewards in steps]}")
