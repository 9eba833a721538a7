"""The cells of the study: operation, number of workers and container set-up, and the systems of each layer. Pure.

In a broadcast and a gather, rank 0 is the server besides the workers: w workers are w + 1 ranks. The published study
counts so too: its parameter server is a process without a GPU, so that 4 workers use 4 GPUs. In all other operations,
every rank is a worker, so one worker has no other to exchange with. In training with a parameter server, rank 0 is the
server and a worker: 4 workers train 50000 / 32 / 4 = 391 steps per epoch, as published.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite.settings import closest
from hoplite_bench import plan
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.systems import SYSTEMS
from hoplite_bench.systems.base import ALLGATHER, TRAIN_ALLREDUCE, TRAIN_PS
from hoplite_bench.systems.hoplite import OWN
from hoplite_bench.systems.pytorch import CUDA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite_bench.row import Row

SHELL, TORCH = "shell", "torch"
LAYERS = (SHELL, TORCH)
# Container set-ups, with their titles in a report.
CONTAINERS = {
    "bare": "bare processes",
    "hpc": "HPC container (Charliecloud)",
    "single": "one container for all ranks",
    "cross": "one container per rank",
}
OPS = ("broadcast", "gather", ALLGATHER, "allreduce")
TRAINING = (TRAIN_PS, TRAIN_ALLREDUCE)
# Operations in which rank 0 is the server.
SERVED = ("broadcast", "gather")
# Systems whose rows are part of no layer of the study.
EXCLUDED = ("ray", "dask")
# Variants of a system that compete in the study: its own choice of algorithm, for each place of its arrays.
VARIANTS = ("default", STREAM, OWN, CUDA)
WORKERS_MAX = 16
ALONE = "one worker has no other to exchange with"


@dataclasses.dataclass(frozen=True)
class StudyCell(plan.Cell):
    """One operation in one container set-up: a row for each system and variant.

    Attributes:
        container: name of the set-up.
        workers: number of workers, without a server.
    """

    container: str = "bare"
    workers: int = 1

    @property
    def ranks(self) -> int:
        """The number of processes that take part."""
        return ranks_of(self.op, self.workers)

    @property
    def is_alone(self) -> bool:
        """Whether there is only one process, which has nothing to communicate."""
        return self.ranks == 1

    def __str__(self) -> str:
        plural = "" if self.workers == 1 else "s"
        return f"{self.op} of {self.nbytes} bytes, {self.workers} worker{plural}, {self.container}"


@dataclasses.dataclass(frozen=True)
class Unit:
    """Cells that are measured on the same processes.

    Attributes:
        container: name of the set-up.
        ranks: number of processes.
        cells: the cells, in order.
    """

    container: str
    ranks: int
    cells: tuple[StudyCell, ...]


def ranks_of(op: str, workers: int) -> int:
    """The number of ranks for a number of workers."""
    return workers + 1 if op in SERVED else workers


def workers_of(op: str, ranks: int) -> int:
    """The number of workers among a number of ranks."""
    return ranks - 1 if op in SERVED else ranks


def layer_of(system: str) -> str:
    """The layer of a system."""
    return TORCH if system.startswith("torch-") else SHELL


def competes(one: plan.Contender) -> bool:
    """Whether a variant of a system is part of the study."""
    return one.variant in VARIANTS


def systems(layers: Iterable[str], names: Sequence[str] | None = None) -> list[str]:
    """The systems of some layers.

    Args:
        layers: names of layers.
        names: the requested systems; None for all.

    Raises:
        InvalidArgument: a layer or system is unknown, or a system is in none of the layers.
    """
    layers = _known("layer", layers, LAYERS)
    known = [name for name in SYSTEMS if name not in EXCLUDED]
    if names is None:
        return [name for name in known if layer_of(name) in layers]
    for name in _known("system", names, known):
        if layer_of(name) not in layers and name != WIRE:
            raise InvalidArgument(f"{name} is in the layer {layer_of(name)}: add {layer_of(name)} to --layers")
    return list(names)


def cells(containers: Iterable[str], ops: Iterable[str], workers: Iterable[int], nbytes: int) -> list[StudyCell]:
    """All combinations; training, as in the published study, only with the largest number of workers.

    Raises:
        InvalidArgument: a name is unknown, or a number is out of range.
    """
    containers = _known("container set-up", containers, CONTAINERS)
    ops = _known("operation", ops, (*OPS, *TRAINING))
    workers = sorted(set(workers))
    for count in workers:
        if not 1 <= count <= WORKERS_MAX:
            raise InvalidArgument(f"{count} workers are out of range: set 1 to {WORKERS_MAX}")
    sized = {cell.op: cell.nbytes for cell in plan.cells(ops, [nbytes], [0.0])}
    return [
        StudyCell(op, sized[op], container=container, workers=count)
        for container in containers
        for count in workers
        for op in ops
        if op not in TRAINING or count == workers[-1]
    ]


def units(of: Iterable[StudyCell]) -> list[Unit]:
    """Groups cells by the processes that they need: most ranks first, then by set-up.

    The tables of a report are about the most workers, so that an interrupted run has these.
    """
    found: dict[tuple[int, str], list[StudyCell]] = {}
    for cell in of:
        found.setdefault((cell.ranks, cell.container), []).append(cell)
    order = sorted(found, key=lambda key: -key[0])
    return [Unit(container, ranks, tuple(found[ranks, container])) for ranks, container in order]


def cell_of(row: Row) -> StudyCell:
    """The cell of a row."""
    return StudyCell(row.op, row.bytes, container=row.container, workers=workers_of(row.op, row.hosts))


def _known(what: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    known, names = list(known), list(dict.fromkeys(names))
    for name in names:
        if name not in known:
            raise InvalidArgument(f"unknown {what} {name!r}{closest(name, known)}: choose from {', '.join(known)}")
    return names
