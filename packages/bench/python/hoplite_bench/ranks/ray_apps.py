"""Runs the applications of `examples/ray_apps` on a Ray cluster, all in one way: plain, or with Hoplite.

Another program sends requests as lines of JSON on standard input, and reads one line of JSON per request. Two of these
programs run side by side and alternate.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

import ray

import work
from ray_driver import connect

START_TIMEOUT_S = 300.0
# Timeout for calls that are still running at the end of a turn.
DRAIN_TIMEOUT_S = 600.0


class Stage:
    """The running application.

    Args:
        way: "plain" or "with_hoplite".
    """

    def __init__(self, way: str) -> None:
        self.way = way
        self.module: Any = None
        self.workers: list[Any] = []
        self.job = work.Job(workers=0, count=0, size=0, steps=0)

    def begin(self, app: str, places: list[int], nbytes: int, seconds: float, restarts: bool) -> dict[str, Any]:
        """Starts the workers of an application.

        Args:
            app: the name of its folder.
            places: for each worker, the number of its host.
            nbytes: size of the model, policy or batch.
            seconds: minimum compute time of each call.
            restarts: whether Ray restarts a worker that has died, and repeats its calls.

        Returns:
            "count", the number of results that a step needs.
        """
        self.module = importlib.import_module(f"{app}.{self.way}")
        count = work.needed(app, len(places))
        self.job = work.Job(workers=len(places), count=count, size=nbytes // 4, steps=0, seconds=seconds)
        tries = -1 if restarts else 0
        self.workers = [
            self.module.Worker.options(
                num_cpus=0, resources={f"rank{place}": 0.001}, max_restarts=tries, max_task_retries=tries
            ).remote(self.job, number)
            for number, place in enumerate(places)
        ]
        ray.get([worker.__ray_ready__.remote() for worker in self.workers], timeout=START_TIMEOUT_S)
        return {"count": count}

    def turn(self, steps: int, kill_after: int | None = None) -> dict[str, Any]:
        """Runs some steps from the beginning, and verifies the results.

        Args:
            steps: number of steps.
            kill_after: number of steps after which the process of the last worker is killed.

        Returns:
            "ends", the seconds from the beginning to the end of each step; "wrong", the error in the results, if any;
            "back", the number of finished steps when the killed worker was first seen running again; None if never.
        """
        job = dataclasses.replace(self.job, steps=steps)
        victim = self.workers[-1]
        process = ray.get(victim.__ray_call__.remote(lambda _: os.getpid()))
        ends, found, ready, back = [], [], None, None
        began = time.monotonic()
        for item in self.module.run(self.workers, job):
            ends.append(time.monotonic() - began)
            found.append(item)
            if len(ends) == kill_after:
                os.kill(process, signal.SIGKILL)
                ready = victim.__ray_ready__.remote()
            elif ready is not None and back is None and ray.wait([ready], timeout=0)[0]:
                back = len(ends)
        # Waits until nothing of this turn is running when the other program has its turn.
        ray.get([worker.__ray_ready__.remote() for worker in self.workers], timeout=DRAIN_TIMEOUT_S)
        try:
            self.module.check(job, found)
            wrong = ""
        except ValueError as error:
            wrong = str(error)
        del found, item
        gc.collect()
        return {"ends": ends, "wrong": wrong, "back": back}

    def end(self) -> dict[str, Any]:
        """Ends the workers."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        return {}


def main() -> None:
    """Executes requests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="host:port of the head of the cluster")
    parser.add_argument("--host", required=True, help="address of this host")
    parser.add_argument("--hosts", type=int, required=True, help="number of nodes")
    parser.add_argument("--way", choices=("plain", "with_hoplite"), required=True)
    parser.add_argument("--memory", type=int, required=True, help="maximum size of each Hoplite store in bytes")
    options = parser.parse_args()
    # Keeps the output of Ray apart from the replies.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    connect(options.address, options.host, options.hosts)
    if options.way == "with_hoplite":
        import hoplite.ray

        hoplite.ray.start(options.memory, timeout=START_TIMEOUT_S)
    stage = Stage(options.way)
    answer: dict[str, Any] = {"ray": ray.__version__}
    while True:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            return
        asked = json.loads(line)
        answer = getattr(stage, asked.pop("do"))(**asked)


if __name__ == "__main__":
    main()
