"""An asynchronous parameter server on Ray: each step takes the first gradients to arrive, and its workers go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray


@ray.remote
class Worker:
    """Makes gradients, at its own pace."""

    def __init__(self, number: int, workers: int) -> None:
        self.number, self.workers = number, workers

    def gradient(self, weights: Any) -> Any:
        """A gradient that tells whose it is: ones in the worker's part of the weights."""
        gradient = np.zeros_like(weights)
        gradient[self.number :: self.workers] = 1
        return gradient


def train(size: int, workers: int, count: int, steps: int) -> Any:
    """Runs so many steps, each of the first `count` gradients; returns the weights."""
    made = [Worker.remote(number, workers) for number in range(workers)]
    weights = ray.put(np.zeros(size, "float32"))
    running = {worker.gradient.remote(weights): worker for worker in made}
    for _ in range(steps):
        ready, _ = ray.wait(list(running), num_returns=count)
        total = np.sum(ray.get(ready), axis=0)
        weights = ray.put(ray.get(weights) + total)
        for ref in ready:
            worker = running.pop(ref)
            running[worker.gradient.remote(weights)] = worker
    return ray.get(weights)
