"""Run the applications of this folder on plain Ray and with Hoplite, and verify both results.

The programs run in the cluster of RAY_ADDRESS, or on this machine. The times are not a benchmark.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
import time
from pathlib import Path

import ray

import hoplite.ray
import work

HERE = Path(__file__).parent
APPS = sorted(found.parent.name for found in HERE.glob("*/plain.py"))
WAYS = {"plain": "plain Ray", "with_hoplite": "Ray with Hoplite"}


def timed(app: str, way: str, job: work.Job) -> float:
    """Returns the seconds of one run, after a check of its result."""
    module = importlib.import_module(f"{app}.{way}")
    workers = [module.Worker.options(num_cpus=0).remote(job, number) for number in range(job.workers)]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    began = time.perf_counter()
    steps = list(module.run(workers, job))
    took = time.perf_counter() - began
    module.check(job, steps)
    for worker in workers:
        ray.kill(worker)
    return took


def changed(app: str) -> tuple[int, int]:
    """Returns the numbers of changed lines in with_hoplite.py and of all lines in plain.py, without empty ones."""
    before, after = (
        [line for line in (HERE / app / f"{way}.py").read_text().splitlines() if line]
        for way in ("plain", "with_hoplite")
    )
    return sum(line.startswith("+ ") for line in difflib.ndiff(before, after)), len(before)


def main() -> None:
    """Runs the applications one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("apps", nargs="*", help=f"Run only these: {', '.join(APPS)}")
    parser.add_argument("--size", type=int, default=4_000_000, help="Set the float32 values in a model or batch")
    parser.add_argument("--workers", type=int, default=4, help="Set the number of workers")
    parser.add_argument("--steps", type=int, default=10, help="Set the number of steps")
    parser.add_argument("--init", default="{}", help="Pass these arguments to ray.init, as JSON")
    options = parser.parse_args()
    if unknown := sorted(set(options.apps) - set(APPS)):
        parser.error(f"unknown application {unknown[0]}: use {', '.join(APPS)}")
    ray.init(**json.loads(options.init))
    with hoplite.ray.start():
        for app in options.apps or APPS:
            count = work.needed(app, options.workers)
            job = work.Job(workers=options.workers, count=count, size=options.size, steps=options.steps)
            for way, words in WAYS.items():
                sys.stdout.write(f"{app}, {words}: {timed(app, way, job):.2f} s, result verified\n")
            lines, of = changed(app)
            sys.stdout.write(f"{app}, changed lines: {lines} of {of}\n")


if __name__ == "__main__":
    main()
