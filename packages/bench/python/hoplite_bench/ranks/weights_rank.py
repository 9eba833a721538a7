"""One rank of `hoplite bench weights`: the first ranks publish versions of a module, the others update theirs.

Several trainers publish the same share of the rows of each tensor. Receivers bring all of it, or are ranks of tensor
parallelism in turn. An operation is a step of weight delivery: "update" publishes, and all receivers fetch into their
modules; "join" is the same, but the last receiver calls in the middle of the transfer; "stage" fetches next to the
module; "switch" copies a staged version into the module of the first receiver, and "memcpy" copies the same bytes;
"tensors" is an update of small tensors, which the first trainer publishes for the first receiver.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

import hoplite
import hoplite.torch
from content import fill, wrong
from hoplite_rank import PATIENCE_S, joined, options_of_node
from rank import HEAD_START_NS, Rank, Task, serve, sleep_until

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "weights/"
# The tensors of one layer: four matrices, and the two vectors of a normalization. The last tensor takes the rest.
WIDTH = 1024
LAYER = ((WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH,))
# In "tensors", each tensor has this shape: what it takes is not its bytes.
TINY = (16,)
# Variants that record memory: all of the process, or without shared memory, so without the store of its node.
MEMORY, PRIVATE = "memory", "private memory"
SAMPLE_S = 0.01


class WeightsRank(Rank):
    """The publisher or a receiver.

    Args:
        client: client of this host's node.
        midway_ns: time from the publication until the last receiver calls in "join".
        trainers: number of ranks that publish.
        parts: number of ranks of tensor parallelism, which the receivers are in turn.
        bucket: bytes of an object of a publication; None is the default of `publish`.
    """

    leads = True

    def __init__(self, client: hoplite.Client, midway_ns: int, trainers: int, parts: int, bucket: int | None) -> None:
        self.client = client
        self.midway_ns = midway_ns
        self.trainers = trainers
        self.cuts = parts
        self.bucket = bucket
        self.shapes: list[tuple[int, ...]] = []
        self.module: torch.nn.ParameterDict | None = None
        self.staged: Any = None
        self.copied: tuple[np.ndarray, np.ndarray] | None = None
        self.most = 0

    def prepare(self, task: Task) -> str:
        """Creates and touches the module: a trainer's with new values, a receiver's with -1."""
        self.most = 0
        if self.is_idle(task):
            return ""
        self.shapes = shapes_of(task.nbytes) if task.op != "tensors" else [TINY] * (task.nbytes // 4 // TINY[0])
        shapes = self.shapes
        if task.rank >= self.trainers and self.is_cut(task):
            shapes = [part.shape for part in self.places(task, task.rank - self.trainers)]
        if self.module is None or [tuple(one.shape) for one in self.module.values()] != shapes:
            self.module = None
            # From a mapping, it would be in the order of the names.
            self.module = torch.nn.ParameterDict(
                [(f"tensor{number}", torch.nn.Parameter(torch.empty(shape))) for number, shape in enumerate(shapes)]
            )
        for number, array in enumerate(self.arrays()):
            if task.rank < self.trainers:
                fill(array, rank=0, seed=task.seed + number)
            else:
                array[:] = -1
        if task.op == "switch" and task.rank < self.trainers:
            self.publish(task)
        elif task.op == "switch" and task.rank == self.trainers:
            self.staged = self.fetch(task, stage=True)
        elif task.op == "memcpy" and task.rank == self.trainers:
            nbytes = sum(array.nbytes for array in self.arrays())
            self.copied = np.full(nbytes, 0, np.uint8), np.full(nbytes, 1, np.uint8)
        return ""

    def is_idle(self, task: Task) -> bool:
        """Whether this rank has no part in a step of one trainer and one receiver."""
        return task.op == "tensors" and task.rank not in (0, self.trainers)

    def is_cut(self, task: Task) -> bool:
        """Whether receivers bring parts of tensors."""
        return self.cuts > 1 and task.op != "tensors"

    def places(self, task: Task, receiver: int) -> list[Place]:
        """What a receiver has of each tensor."""
        rank, parts = receiver % self.cuts, self.cuts
        return [Place.of(number, shape, rank, parts) for number, shape in enumerate(shapes_of(task.nbytes))]

    def arrays(self) -> list[np.ndarray]:
        """The memory of the module's tensors, each as one row."""
        assert self.module is not None, "the module is created in prepare"
        return [parameter.detach().numpy().reshape(-1) for parameter in self.module.values()]

    def publish(self, task: Task) -> None:
        """Publishes the module; its version is the number of the round. Only the newest of its size is retained."""
        assert self.module is not None, "the module is created in prepare"
        source: Any = self.module
        options: dict[str, Any] = {}
        if self.trainers > 1 and task.op != "tensors":
            rows = {name: _share(len(one), task.rank, self.trainers) for name, one in self.module.items()}
            source = {name: one.detach()[rows[name]] for name, one in self.module.items()}
            boxes = {name: (rows[name], tuple(one.shape)) for name, one in self.module.items()}
            options["shards"] = (task.rank, self.trainers, boxes)
        if self.is_cut(task):
            options["layouts"] = [self.layout(task, receiver) for receiver in range(self.cuts)]
        name = f"{prefix(task)}{task.round}"
        hoplite.torch.publish(source, name, retain=1, bucket=self.bucket, client=self.client, **options)

    def layout(self, task: Task, receiver: int) -> dict[str, Any]:
        """What a receiver brings, as `fetch` takes it."""
        return {f"tensor{number}": place.slices for number, place in enumerate(self.places(task, receiver))}

    def fetch(self, task: Task, *, stage: bool) -> Any:  # noqa: ANN401 - weights, or what is staged
        """Fetches this round's version into the module, or next to it."""
        return hoplite.torch.fetch(
            prefix(task),
            into=self.module,
            after=task.round - 1,
            layout=self.layout(task, task.rank - self.trainers) if self.is_cut(task) else None,
            stage=stage,
            client=self.client,
            timeout=PATIENCE_S,
        )

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Publishes or fetches, or copies on one host."""
        if self.is_idle(task):
            return (0, 0)
        match task.op:
            case "update" | "join" | "stage" | "tensors" if task.rank < self.trainers:
                self.publish(task)
            case "update" | "stage" | "tensors":
                with self.recording(task.variant):
                    self.staged = self.fetch(task, stage=task.op == "stage")
            case "join":
                is_late = task.rank == task.ranks - 1
                if is_late:
                    sleep_until(at + HEAD_START_NS + self.midway_ns)
                start = time.monotonic_ns()
                self.fetch(task, stage=False)
                return (start, time.monotonic_ns()) if is_late else (0, 0)
            case "switch" if task.rank == self.trainers:
                self.staged.switch()
                return None
            case "memcpy" if task.rank == self.trainers:
                assert self.copied is not None, "run was called before prepare"
                np.copyto(*self.copied)
                return None
        # Of these operations, only one host's time counts.
        return (0, 0) if task.op in ("join", "switch", "memcpy") else None

    @contextlib.contextmanager
    def recording(self, variant: str) -> Iterator[None]:
        """Records the most memory that this process uses beyond its private memory at the start, if requested."""
        if variant not in (MEMORY, PRIVATE):
            yield
            return
        before, ended = used(PRIVATE), threading.Event()

        def sample() -> None:
            is_last = False
            while not is_last:
                is_last = ended.wait(SAMPLE_S)
                self.most = max(self.most, used(variant) - before)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def check(self, task: Task) -> str:
        """Compares a receiver's module with what was published."""
        if task.op == "stage" and task.rank >= self.trainers:
            self.staged.switch()
        self.staged = self.copied = None
        is_others = task.op == "switch" and task.rank > self.trainers
        if task.rank < self.trainers or task.op == "memcpy" or is_others or self.is_idle(task):
            return ""
        places = self.places(task, task.rank - self.trainers) if self.is_cut(task) else []
        for number, (array, shape) in enumerate(zip(self.arrays(), self.shapes, strict=True)):
            if array.size == math.prod(shape):
                error = wrong(array, nbytes=array.nbytes, ranks=range(1), seed=task.seed + number)
            else:
                whole = np.empty(shape, np.float32)
                fill(whole.reshape(-1), rank=0, seed=task.seed + number)
                is_right = np.array_equal(whole[places[number].slices].reshape(-1), array)
                error = "" if is_right else "a part has other elements"
            if error:
                return f"tensor {number}: {error}"
        return ""

    def extra(self) -> int:
        """The most memory that a recorded fetch used beyond that before it."""
        return self.most


class Place(NamedTuple):
    """What a rank of tensor parallelism has of a tensor.

    Attributes:
        slices: its slices.
        shape: their shape.
    """

    slices: tuple[slice, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, number: int, shape: tuple[int, ...], rank: int, parts: int) -> Place:
        """Norms are whole; of matrices, every second is cut by its columns."""
        axis = number % 2 if len(shape) == len(LAYER[0]) else 0
        is_whole = shape == (WIDTH,)
        cut = slice(0, shape[axis]) if is_whole else _share(shape[axis], rank, parts)
        slices = tuple(cut if each == axis else slice(0, length) for each, length in enumerate(shape))
        return cls(slices, tuple(each.stop - each.start for each in slices))


def prefix(task: Task) -> str:
    """The prefix of a step's versions: a small round must not delete the version that the next large one replaces."""
    return f"{PREFIX}{task.nbytes}/"


def _share(length: int, rank: int, ranks: int) -> slice:
    return slice(rank * length // ranks, (rank + 1) * length // ranks)


def shapes_of(nbytes: int) -> list[tuple[int, ...]]:
    """The shapes of a module of exactly this many bytes of float32."""
    found: list[tuple[int, ...]] = []
    left = nbytes // 4
    while left:
        shape = LAYER[len(found) % len(LAYER)]
        found.append(shape if math.prod(shape) <= left else (left,))
        left -= math.prod(found[-1])
    return found


def used(variant: str) -> int:
    """The memory of this process, with or without shared memory, in bytes; takes 15 ms per GiB."""
    lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]]
    fields = {name: int(number) * 1024 for name, number, *_ in lines}
    return fields["Pss:"] - (fields["Pss_Shmem:"] if variant == PRIVATE else 0)


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = options_of_node()
    parser.add_argument("--midway-ns", type=int, required=True)
    parser.add_argument("--trainers", type=int, required=True)
    parser.add_argument("--parts", type=int, required=True)
    parser.add_argument("--bucket", type=int)
    options = parser.parse_args()
    with joined(options) as client:
        serve(
            WeightsRank(client, options.midway_ns, options.trainers, options.parts, options.bucket),
            control=options.control,
            number=options.rank,
            ranks=options.ranks,
            version=hoplite.__version__,
        )


if __name__ == "__main__":
    main()
