"""The server of a training pattern, on the first host: uses results, publishes new weights, reports each step."""

from __future__ import annotations

import json
import time

import numpy as np

import hoplite
from hoplite_bench.steady.job import DTYPE, Content, Job, report, tag_of
from hoplite_bench.steady.patterns import PATTERNS

# Timeout of a step.
STEP_TIMEOUT_S = 120.0
# Delay between two attempts at a step whose results were lost with their host.
RETRY_S = 0.05


class Server:
    """A server that reduces the first results to arrive.

    For each worker it requests the one result that no step has used yet. A worker creates its next result only after
    the weights or an announcement request it, so that no worker has more than one.
    """

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.pattern = PATTERNS[job.pattern]
        # For each worker, the number of the result that no step has used yet.
        self.pending = [0] * job.workers
        self.answers = Content(job.nbytes)
        self.weights = Content(job.nbytes, head=1 + job.workers)
        # The next weights, prepared while results arrive.
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
            # Verified while the workers get the weights.
            self.check(step, values, tags)
            del values
            self.client.delete([*names, *made])

    def take(self) -> tuple[list[int], list[np.ndarray], list[hoplite.Ref]]:
        """Uses the first results to arrive.

        Returns:
            The workers, the received values, and derived objects to delete later.
        """
        deadline = time.monotonic() + STEP_TIMEOUT_S
        names = {self.job.answer(worker, number): worker for worker, number in enumerate(self.pending)}
        while True:
            try:
                taken, values, made = self.collect(list(names))
            except (hoplite.ObjectLost, hoplite.ObjectDeleted):
                # A host was declared dead or a process was killed: its worker repeats its result.
                if time.monotonic() > deadline:
                    raise
                self.retries += 1
                time.sleep(RETRY_S)
            else:
                return [names[str(ref)] for ref in taken], values, made

    def collect(self, names: list[str]) -> tuple[list[hoplite.Ref], list[np.ndarray], list[hoplite.Ref]]:
        """Reduces the first results to arrive; see `take`."""
        total = self.client.reduce(names, op="sum", count=self.job.count)
        value = self.client.get(total, timeout=STEP_TIMEOUT_S)
        return total.inputs(timeout=STEP_TIMEOUT_S), [value], [total]

    def publish(self, version: int) -> None:
        """Puts new weights, which request a result from each worker; announces them unless all workers get them."""
        self.next[: self.weights.head] = [version, *self.pending]
        self.client.put(self.next, name=self.job.weights(version), retain=2)
        if not self.pattern.everyone:
            wanted = json.dumps(self.pending).encode()
            self.client.put(wanted, name=f"{self.job.announcements}{version}", retain=2)

    def check(self, step: int, values: list[np.ndarray], tags: dict[int, int]) -> None:
        """Verifies the values that a step used."""
        what = f"the sum of step {step}, of workers {list(tags)}"
        self.answers.check(what, values[0], tag=sum(tags.values()), times=len(tags))


class SampleServer(Server):
    """A server that gets each of the first results to arrive."""

    def collect(self, names: list[str]) -> tuple[list[hoplite.Ref], list[np.ndarray], list[hoplite.Ref]]:
        """Waits for the first results and gets them; see `take`."""
        taken, _ = self.client.wait(names, count=self.job.count, timeout=STEP_TIMEOUT_S)
        return taken, self.client.get(taken, timeout=STEP_TIMEOUT_S), []

    def check(self, step: int, values: list[np.ndarray], tags: dict[int, int]) -> None:
        """Verifies the values that a step used."""
        for (worker, tag), value in zip(tags.items(), values, strict=True):
            self.answers.check(f"the sample of worker {worker} in step {step}", value, tag=tag)
