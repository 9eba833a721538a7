"""The server of a training pattern, on the first host: takes answers, publishes new weights, reports each step."""

from __future__ import annotations

import json
import time

import numpy as np

import hoplite
from hoplite_bench.steady.job import DTYPE, Content, Job, report, tag_of
from hoplite_bench.steady.patterns import PATTERNS

# A step that takes longer hangs.
STEP_TIMEOUT_S = 120.0
# Between two attempts at a step whose answers were lost with their host.
RETRY_S = 0.05


class Server:
    """A server that reduces the first answers to arrive.

    It names for each worker the one answer that no step has taken yet. A worker makes its next answer only after the
    weights, or an announcement, want it, so that nobody has more than one.
    """

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.pattern = PATTERNS[job.pattern]
        # Of each worker, the number of its answer that no step has taken.
        self.pending = [0] * job.workers
        self.answers = Content(job.nbytes)
        self.weights = Content(job.nbytes, head=1 + job.workers)
        # The next weights, prepared while answers arrive.
        self.next = np.empty(self.weights.size, DTYPE)
        self.retries = 0

    def run(self) -> None:
        """Runs all steps."""
        self.weights.fill(self.next, tag_of(-1, 0))
        self.publish(0)
        report(at=time.monotonic())
        for step in range(1, self.job.steps + 1):
            self.weights.fill(self.next, tag_of(-1, step))
            taken, values, made = self.take()
            tags = {worker: tag_of(worker, self.pending[worker]) for worker in taken}
            names = [self.job.answer(worker, self.pending[worker]) for worker in taken]
            for worker in taken:
                self.pending[worker] += 1
            self.publish(step)
            report(at=time.monotonic(), retries=self.retries)
            # While the workers get the weights.
            self.check(step, values, tags)
            del values
            self.client.delete([*names, *made])

    def take(self) -> tuple[list[int], list[np.ndarray], list[hoplite.Ref]]:
        """Takes the first answers to arrive.

        Returns:
            The workers, what arrived, and what was made of it, to delete later.
        """
        deadline = time.monotonic() + STEP_TIMEOUT_S
        names = {self.job.answer(worker, number): worker for worker, number in enumerate(self.pending)}
        while True:
            try:
                taken, values, made = self.collect(list(names))
            except (hoplite.ObjectLost, hoplite.ObjectDeleted):
                # A host was declared dead or a process was killed: its worker answers again.
                if time.monotonic() > deadline:
                    raise
                self.retries += 1
                time.sleep(RETRY_S)
            else:
                return [names[str(ref)] for ref in taken], values, made

    def collect(self, names: list[str]) -> tuple[list[hoplite.Ref], list[np.ndarray], list[hoplite.Ref]]:
        """Reduces the first answers to arrive; see `take`."""
        total = self.client.reduce(names, op="sum", count=self.job.count)
        value = self.client.get(total, timeout=STEP_TIMEOUT_S)
        return total.inputs(timeout=STEP_TIMEOUT_S), [value], [total]

    def publish(self, version: int) -> None:
        """Puts new weights, which name the answer that is wanted of each worker, and announces them if need be."""
        self.next[: self.weights.head] = [version, *self.pending]
        self.client.put(self.next, name=self.job.weights(version), retain=2)
        if not self.pattern.everyone:
            wanted = json.dumps(self.pending).encode()
            self.client.put(wanted, name=f"{self.job.announcements}{version}", retain=2)

    def check(self, step: int, values: list[np.ndarray], tags: dict[int, int]) -> None:
        """Verifies what a step took."""
        what = f"the sum of step {step}, of workers {list(tags)}"
        self.answers.check(what, values[0], tag=sum(tags.values()), times=len(tags))


class SampleServer(Server):
    """A server that gets each of the first answers to arrive."""

    def collect(self, names: list[str]) -> tuple[list[hoplite.Ref], list[np.ndarray], list[hoplite.Ref]]:
        """Waits for the first answers and gets them; see `take`."""
        taken, _ = self.client.wait(names, count=self.job.count, timeout=STEP_TIMEOUT_S)
        return taken, self.client.get(taken, timeout=STEP_TIMEOUT_S), []

    def check(self, step: int, values: list[np.ndarray], tags: dict[int, int]) -> None:
        """Verifies what a step took."""
        for (worker, tag), value in zip(tags.items(), values, strict=True):
            self.answers.check(f"the sample of worker {worker} in step {step}", value, tag=tag)
