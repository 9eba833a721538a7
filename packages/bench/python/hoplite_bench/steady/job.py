"""Shared by the processes of a steady run: the job as one JSON argument, reports as lines, contents of objects."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any, Self

import numpy as np

DTYPE = np.dtype("float32")
# Elements repeat after a prime number, so that no block of an object equals its neighbor.
PERIOD = 1021
# Below 2^24 divided by the maximum number of results in a sum, so that float32 represents each sum exactly.
TAGS = 8191
# Number of elements that a quick check compares, and the number of checks per complete comparison.
SAMPLED = 4096
WHOLE_EVERY = 16


@dataclasses.dataclass(frozen=True)
class Job:
    """The work of one process.

    Attributes:
        pattern: a name in `PATTERNS`.
        prefix: prefix of all names, with the slash at its end.
        socket: socket of the node to attach to.
        nbytes: size of each object.
        workers: number of workers.
        count: number of results that a step uses.
        steps: number of steps of the server.
        worker: number of this worker; -1 is the server.
        reports: whether the process waits for the start of the run and reports each step.
    """

    pattern: str
    prefix: str
    socket: str
    nbytes: int
    workers: int
    count: int
    steps: int
    worker: int = -1
    reports: bool = False

    def to_argument(self) -> str:
        """Serializes the job for the command line of a process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_command_line(cls) -> Self:
        """Parses the only argument of this process."""
        return cls(**json.loads(sys.argv[1]))

    @property
    def versions(self) -> str:
        """The prefix of the weights."""
        return f"{self.prefix}weights/"

    def weights(self, version: int) -> str:
        """The name of a version of the weights."""
        return f"{self.versions}{version}"

    @property
    def announcements(self) -> str:
        """The prefix of the objects that request the next results, in patterns where not all workers take part."""
        return f"{self.prefix}go/"

    def answer(self, worker: int, number: int) -> str:
        """The name of a worker's result: its gradient or sample."""
        return f"{self.prefix}answer/w{worker}/{number}"


def report(**facts: Any) -> None:  # noqa: ANN401 - any JSON value
    """Writes a line to the benchmark."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def tag_of(worker: int, number: int) -> int:
    """The number that is added to the base in each element of one result."""
    return (worker * 67 + number + 1) % TAGS


class Content:
    """The elements of objects: a base that repeats after a prime number, plus a tag that identifies the object.

    Args:
        nbytes: size of an object.
        head: number of elements at the front that contain other numbers and are not verified.
    """

    def __init__(self, nbytes: int, head: int = 0) -> None:
        self.size = nbytes // DTYPE.itemsize
        self.head = head
        self._base = (np.arange(self.size) % PERIOD).astype(DTYPE)
        self._checks = 0

    def fill(self, out: np.ndarray, tag: int) -> None:
        """Writes an object."""
        np.add(self._base, np.float32(tag), out=out)

    def check(self, what: str, found: np.ndarray, *, tag: int, times: int = 1) -> None:
        """Verifies an object: some elements each time, all of them in every 16th check.

        Args:
            what: description of the object, for the error.
            found: the received value.
            tag: tag of the object, or the sum of the tags.
            times: number of objects in a sum.

        Raises:
            ValueError: an element is wrong.
        """
        if (found.dtype, found.shape) != (DTYPE, (self.size,)):
            raise ValueError(f"{what} is an array of {found.dtype} {found.shape}, not of {DTYPE} ({self.size},)")
        self._checks += 1
        stride = 1 if self._checks % WHOLE_EVERY == 1 else max(1, self.size // SAMPLED)
        # A different offset each time, so that eventually each element is compared.
        for part in (slice(self.head + self._checks % stride, None, stride), slice(-1, None)):
            expected = self._base[part] * np.float32(times) + np.float32(tag)
            if not np.array_equal(found[part], expected):
                at = int(np.argmax(found[part] != expected))
                raise ValueError(f"{what}: element {found[part][at]!s} is wrong: expected {expected[at]!s}")
