"""A worker process of the demo: takes the newest weights, puts a gradient, until told that training is done."""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

import hoplite
from hoplite.tools import demo
from hoplite.tools.demo import network

# Images in a batch. Small, so that moving a gradient and not computing it is most of the work.
BATCH = 32

# Longer than any step takes: a worker whose trainer is gone should not stay.
PATIENCE_S = 30.0


def work(hp: hoplite.Client, worker: int, pause: float, leave_after: int | None) -> None:
    """Puts gradients until the trainer is done.

    Args:
        hp: the client of this host's node.
        worker: this worker's number.
        pause: seconds to sleep over each gradient; a slow machine.
        leave_after: leave once weights of this step are out; None stays to the end.
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
                # The last one still waits for its turn: another would only be staler.
                continue
            weights = hp.get(newest, timeout=PATIENCE_S)
        except hoplite.ObjectDeleted:
            # Two steps passed meanwhile; there are newer weights.
            continue
        batch = random.integers(0, len(images), BATCH)
        gradient = network.gradient(weights, images[batch], labels[batch])
        time.sleep(pause)
        hp.put(gradient, name=demo.gradient(worker, number), timeout=PATIENCE_S)
        number += 1


def main() -> None:
    """Runs one worker with the arguments of this process."""
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
