"""The pattern eviction: readers get more objects than fit into their stores, all in the same order."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hoplite_bench.steady.job import Content, Job, report, tag_of
from hoplite_bench.steady.patterns import AT_ONCE
from hoplite_bench.steady.server import STEP_TIMEOUT_S
from hoplite_bench.steady.worker import IDLE_TIMEOUT_S

if TYPE_CHECKING:
    import hoplite


class Holder:
    """Puts all objects before the run begins, and serves them."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        content = Content(job.nbytes)
        for number in range(job.steps):
            with client.create(content.size, name=job.weights(number)) as buffer:
                content.fill(buffer.array, tag_of(-1, number))

    def run(self) -> None:
        """Waits until the process is killed."""
        time.sleep(IDLE_TIMEOUT_S)


class Reader:
    """Gets all objects, a few at once."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.content = Content(job.nbytes)

    def run(self) -> None:
        """Reads the objects in order, and reports each."""
        report(at=time.monotonic())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(self.read, range(self.job.steps)):
                report(at=time.monotonic())

    def read(self, number: int) -> None:
        """Gets and verifies one object."""
        name = self.job.weights(number)
        found = self.client.get(name, timeout=STEP_TIMEOUT_S)
        self.content.check(name, found, tag=tag_of(-1, number))
