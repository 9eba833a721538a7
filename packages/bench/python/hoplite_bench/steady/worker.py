"""A worker of a training pattern: gets new weights, verifies them, and produces a result of the same size."""

from __future__ import annotations

import json
from typing import Any

import hoplite
from hoplite_bench.steady.job import Content, Job, tag_of
from hoplite_bench.steady.patterns import PATTERNS

# The end of the run kills a worker; this timeout is for workers that were left behind.
IDLE_TIMEOUT_S = 600.0


def newest(client: hoplite.Client, prefix: str, after: int) -> tuple[int, Any]:
    """Gets the newest object under a prefix, which retains two.

    Returns:
        Its number, which is greater than `after`, and its value.
    """
    while True:
        ref = client.latest(prefix, after=after, timeout=IDLE_TIMEOUT_S)
        try:
            return ref.number, client.get(ref, timeout=IDLE_TIMEOUT_S)
        except (hoplite.ObjectDeleted, hoplite.ObjectLost):
            # The server has pruned this version; a newer one exists.
            after = ref.number


class Worker:
    """One worker."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.pattern = PATTERNS[job.pattern]
        self.answers = Content(job.nbytes)
        self.weights = Content(job.nbytes, head=1 + job.workers)

    def run(self) -> None:
        """Produces results until the process is killed."""
        version = announced = answered = -1
        while True:
            if not self.pattern.everyone:
                announced, wanted = newest(self.client, self.job.announcements, announced)
                if json.loads(bytes(wanted))[self.job.worker] <= answered:
                    continue
            version, number = self.get_weights(version)
            # The weights still request the last result if no step has used it yet.
            if number > answered:
                self.answer(number)
                answered = number

    def get_weights(self, after: int) -> tuple[int, int]:
        """Gets weights that are newer than a version, and verifies them.

        Returns:
            Their version, and the number of the result that they request from this worker.
        """
        version, found = newest(self.client, self.job.versions, after)
        self.weights.check(self.job.weights(version), found, tag=tag_of(-1, version))
        if int(found[0]) != version:
            raise ValueError(f"{self.job.weights(version)} has version {found[0]:g}")
        return version, int(found[1 + self.job.worker])

    def answer(self, number: int) -> None:
        """Creates a result, unless an earlier process of this worker has sealed it."""
        try:
            buffer = self.client.create(self.answers.size, name=self.job.answer(self.job.worker, number))
        except hoplite.NameTaken:
            return
        with buffer:
            self.answers.fill(buffer.array, tag_of(self.job.worker, number))
