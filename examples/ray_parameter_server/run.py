"""Runs the parameter server of plain.py and that of with_hoplite.py on Ray, checks both, tells what differs.

python run.py, in the cluster that runs (RAY_ADDRESS) or on this machine alone. The times are those of the machine at
this moment, and no benchmark.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

import hoplite.ray
import plain
import with_hoplite

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


def check(weights: Any, workers: int, count: int, steps: int) -> None:
    """Each gradient is whole and was taken once: the parts of the workers count how often."""
    taken = weights[:workers]
    whole = np.resize(taken, len(weights))
    if not (weights == whole).all() or taken.sum() != count * steps:
        sys.exit(f"the weights are wrong: {weights}")


def timed(train: Callable[..., Any], size: int, workers: int, count: int, steps: int) -> float:
    """Seconds of a run whose result is right."""
    began = time.perf_counter()
    weights = train(size, workers, count, steps)
    took = time.perf_counter() - began
    check(weights, workers, count, steps)
    return took


def changed() -> tuple[int, int]:
    """Lines that are new or different in with_hoplite.py, and all lines of plain.py, without empty ones."""
    before, after = (
        [line for line in (HERE / name).read_text().splitlines() if line] for name in ("plain.py", "with_hoplite.py")
    )
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after)), len(before)


def main() -> None:
    """Runs one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4_000_000, help="number of weights, of 4 bytes each")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--count", type=int, default=2, help="gradients of a step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--init", default="{}", help="arguments of ray.init, as JSON")
    options = parser.parse_args()
    ray.init(**json.loads(options.init))
    settings = options.size, options.workers, options.count, options.steps
    with hoplite.ray.start():
        for name, train in (("plain Ray", plain.train), ("Ray with Hoplite", with_hoplite.train)):
            sys.stdout.write(f"{name}: {timed(train, *settings):.2f} s, the weights are right\n")
    lines, of = changed()
    sys.stdout.write(f"changed lines: {lines} of {of}\n")


if __name__ == "__main__":
    main()
