"""A worker process of the demo: gets the newest weights and puts a gradient, until the training is done."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

import hoplite
from hoplite.tools import demo
from hoplite.tools.demo import network

# Images in a batch: few, so that transferring a gradient takes longer than computing it.
BATCH = 32

# Longer than any step takes. It ends a worker whose trainer is gone.
PATIENCE_S = 30.0


def work(hp: hoplite.Client, worker: int, pause: float, leave_after: int | None) -> None:
    """Puts gradients until the trainer is done.

    Args:
        hp: client of this worker's node.
        worker: number of this worker.
        pause: seconds to sleep per gradient, to simulate a slow machine.
        leave_after: number of the step whose weights end this worker; None runs it to the end.
    """
    images = hp.get(demo.IMAGES, timeout=PATIENCE_S)
    labels = hp.get(demo.LABELS, timeout=PATIENCE_S)
    random = np.random.default_rng(worker)
    step = -1
    number = 0
    while True:
        newest = hp.latest("policy/", after=step, timeout=PATIENCE_S)
        step = newest.number
        try:
            plan = json.loads(bytes(hp.get(demo.plan(step), timeout=PATIENCE_S)))
            if plan["done"] or (leave_after is not None and step >= leave_after):
                return
            if plan["taken"][worker] < number:
                # The previous gradient has not been used yet: a second one would only become more stale.
                continue
            weights = hp.get(newest, timeout=PATIENCE_S)
        except hoplite.ObjectDeleted:
            # Two steps have passed, so that the trainer deleted these weights: get newer ones.
            continue
        batch = random.integers(0, len(images), BATCH)
        gradient = network.gradient(weights, images[batch], labels[batch])
        time.sleep(pause)
        hp.put(gradient, name=demo.gradient(worker, number), timeout=PATIENCE_S)
        number += 1


def main() -> None:
    """Runs a worker with the command line of this process."""
    parser = argparse.ArgumentParser(prog="python -m hoplite.tools.demo.worker")
    parser.add_argument("--socket", required=True)
    parser.add_argument("--worker", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--leave-after", type=int)
    options = parser.parse_args()
    with hoplite.connect(f"unix:{options.socket}") as hp:
        work(hp, options.worker, options.pause, options.leave_after)


if __name__ == "__main__":
    main()
