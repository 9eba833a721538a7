"""How do I write a parameter server? Workers put gradients, the server sums the first of them into new weights."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import hoplite

WORKERS, STEPS, TARGET = 4, 20, 3.0
hp = hoplite.init()  # each function can run in a process of its own, on any host


def server() -> float:
    """Averages the first three of four gradients of each step."""
    weights = np.zeros(1000)
    for step in range(STEPS):
        hp.put(weights, name=f"weights/{step}", ttl=60)
        gradients = [f"gradient/{step}/{worker}" for worker in range(WORKERS)]
        mean = hp.reduce(gradients, "mean", count=3, timeout=30, ttl=60)
        weights = weights - 0.2 * hp.get(mean, timeout=30)
    return float(weights[0])


def worker(number: int) -> None:
    """Computes the gradient of a square loss."""
    for step in range(STEPS):
        gradient = hp.reserve(name=f"gradient/{step}/{number}")  # if this process fails, the mean goes on without it
        weights = hp.get(f"weights/{step}", timeout=30)
        hp.put(2 * (weights - TARGET), name=gradient, ttl=60)


with ThreadPoolExecutor(WORKERS + 1) as pool:
    result = pool.submit(server)
    list(pool.map(worker, range(WORKERS)))
    print(f"{result.result():.2f}")  # 3.00
