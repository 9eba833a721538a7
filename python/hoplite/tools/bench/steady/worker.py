"""A worker of a pattern: gets new weights, verifies them, and answers by an object of the same size."""

from __future__ import annotations

import hoplite
from hoplite.tools.bench.steady.job import Content, Job, say, tag_of
from hoplite.tools.bench.steady.patterns import PATTERNS

# The end of the run kills a worker; this is for one that was left behind.
IDLE_TIMEOUT_S = 600.0


class Worker:
    """One worker and the number of its next answer."""

    def __init__(self, job: Job, client: hoplite.Client) -> None:
        self.job = job
        self.client = client
        self.pattern = PATTERNS[job.pattern]
        self.answers = Content(job.nbytes)
        self.weights = Content(job.nbytes, head=1 + job.workers)

    def run(self) -> None:
        """Answers until the process is killed."""
        version = answered = -1
        while True:
            version, number = self.newest(version)
            # The weights still name the last answer if no step has taken it yet.
            if number > answered:
                self.answer(number)
                answered = number

    def newest(self, after: int) -> tuple[int, int]:
        """Gets weights that are newer than a version.

        Returns:
            Their version, and the number of the answer that they want of this worker.
        """
        while True:
            ref = self.client.latest(f"{self.job.prefix}policy/", after=after, timeout=IDLE_TIMEOUT_S)
            after = ref.number
            try:
                found = self.client.get(ref, timeout=IDLE_TIMEOUT_S)
            except (hoplite.ObjectDeleted, hoplite.ObjectLost):
                # The server has pruned this version; a newer one exists.
                continue
            self.weights.check(str(ref), found, tag=tag_of(-1, after))
            if int(found[0]) != after:
                raise ValueError(f"{ref} holds version {found[0]:g}")
            return after, int(found[1 + self.job.worker])

    def answer(self, number: int) -> None:
        """Makes an answer, unless an earlier process of this worker has sealed it."""
        try:
            buffer = self.client.create(self.answers.size, name=self.job.answer(self.job.worker, number))
        except hoplite.NameTaken:
            return
        with buffer:
            self.answers.fill(buffer.array, tag_of(self.job.worker, number))


def main() -> None:
    """Works for one job until the process is killed."""
    job = Job.from_command_line()
    with hoplite.init(f"unix:{job.socket}") as client:
        worker = Worker(job, client)
        say(ready=True)
        worker.run()


if __name__ == "__main__":
    main()
