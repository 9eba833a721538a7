"""The pattern serving: the first host publishes queries, all others reply to each with a few bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from hoplite_bench.steady.job import DTYPE, Content, Job, report, tag_of
from hoplite_bench.steady.server import STEP_TIMEOUT_S
from hoplite_bench.steady.worker import newest

if TYPE_CHECKING:
    import hoplite


class Frontend:
    """Publishes queries one after the other, and waits for the first replies to each."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.queries = Content(job.nbytes)
        # The next query, prepared while replies arrive.
        self.next = np.empty(self.queries.size, DTYPE)

    def run(self) -> None:
        """Runs all steps."""
        self.queries.fill(self.next, tag_of(-1, 1))
        report(at=time.monotonic())
        for step in range(1, self.job.steps + 1):
            self.client.put(self.next, name=self.job.weights(step), retain=2)
            self.queries.fill(self.next, tag_of(-1, step + 1))
            names = [self.job.answer(worker, step) for worker in range(self.job.workers)]
            first, _ = self.client.wait(names, count=self.job.count, timeout=STEP_TIMEOUT_S)
            for ref, answer in zip(first, self.client.get(first, timeout=STEP_TIMEOUT_S), strict=True):
                if bytes(answer) != str(tag_of(-1, step)).encode():
                    raise ValueError(f"{ref} is {bytes(answer)!r}, not {tag_of(-1, step)}")
            report(at=time.monotonic())


class Model:
    """Replies to the newest query; a query that was pruned meanwhile gets no reply."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.queries = Content(job.nbytes)

    def run(self) -> None:
        """Replies until the process is killed."""
        step = 0
        while True:
            step, found = newest(self.client, self.job.versions, step)
            self.queries.check(self.job.weights(step), found, tag=tag_of(-1, step))
            # Computed from the content of the query: the first element of the base is 0.
            answer = str(int(found[0])).encode()
            del found
            self.client.put(answer, name=self.job.answer(self.job.worker, step), retain=2, exist_ok=True)
