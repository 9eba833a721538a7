"""An asynchronous parameter server on Ray: each step takes the first gradients to arrive, and its workers go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import ray

import hoplite.ray

hoplite.ray.register()


@ray.remote
class Worker:
    """Makes gradients, at its own pace."""

    def __init__(self, number: int, workers: int) -> None:
        self.number, self.workers = number, workers

    @ray.method(tensor_transport="hoplite_numpy")
    def gradient(self, weights: Any) -> Any:
        """A gradient that tells whose it is: ones in the worker's part of the weights."""
        gradient = np.zeros_like(weights)
        gradient[self.number :: self.workers] = 1
        return gradient


def train(size: int, workers: int, count: int, steps: int) -> Any:
    """Runs so many steps, each of the first `count` gradients; returns the weights."""
    made = [Worker.remote(number, workers) for number in range(workers)]
    weights = hoplite.ray.put(np.zeros(size, "float32"))
    running = {worker.gradient.remote(weights): worker for worker in made}
    for _ in range(steps):
        refs = list(running)
        total = hoplite.ray.reduce(refs, count=count)
        weights = hoplite.ray.put(ray.get(weights) + ray.get(total))
        for ref in [refs[place] for place in hoplite.ray.inputs(total)]:
            worker = running.pop(ref)
            running[worker.gradient.remote(weights)] = worker
    return ray.get(weights)
