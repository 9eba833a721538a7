"""How do workers that start at any time get the same weights? Each gets them by name, and relays them to later ones."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from hoplite import testing

WORKERS = 4

with testing.cluster(1 + WORKERS) as nodes:
    trainer, *workers = (node.client() for node in nodes)

    def work(number: int) -> float:
        """Starts later than the worker before it. The first starts before the weights exist."""
        time.sleep(0.01 * number)
        return float(workers[number].get("weights/1", timeout=30)[-1])

    with ThreadPoolExecutor(WORKERS) as pool:
        results = pool.map(work, range(WORKERS))
        trainer.put(np.full(4_000_000, 7.0), name="weights/1")
        print(list(results))  # [7.0, 7.0, 7.0, 7.0]

    # Every worker has a copy of 30 MiB. The trainer sent one or a few of the four, workers sent the others.
    print("copies:", len(trainer.locations("weights/1")))  # copies: 5
    sent = trainer.status()["counters"]["bytes_direct"] >> 20
    print(f"the trainer sent {sent} MiB")  # the trainer sent ... MiB
