"""What to measure, and the timeout of each step. Pure: depends on no process and no clock."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_bench.ranks.resnet import NBYTES
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.systems.base import ALLGATHER, DDP, OPS, TRAIN_ALLREDUCE, TRAIN_PS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.systems.base import System

# Small operations take less than a scheduler time slice, so one round is not significant. Maximum rounds in a sample,
# by size. A sample has as many rounds as fit into SAMPLE_S, but at least ROUNDS_MIN: slower rounds vary less.
ROUNDS_MAX = ((64 * 2**10, 15), (2**20, 5))
ROUNDS_MIN = 3
SAMPLE_S = 0.05
# Time of the slowest system in multiples of the wire's time, per host (2 for Ray's allreduce), doubled.
SLOWEST = 4
# Part of each timeout that does not depend on the bytes: a machine that swaps, a process that starts.
PATIENCE_S = 30.0
# Operations that accept several inputs per host; with more than INPUTS_MAX the sums would not be exact.
SUMS = ("reduce", "allreduce")
INPUTS_MAX = 8
# Operations whose array has one size.
FIXED = {DDP: NBYTES, TRAIN_PS: NBYTES, TRAIN_ALLREDUCE: NBYTES}
# Assumed where the rate is unknown.
SLOW_LINK = 10**9
# Bytes per second that two cores fill or compare, for all hosts together.
MEMORY_RATE = 10**9
# Preparing, freezing and checking one empty round, as measured with eight hosts on two cores.
OVERHEAD_S = 0.15


@dataclasses.dataclass(frozen=True)
class Cell:
    """One operation with one size: a row for each system and variant.

    Attributes:
        op: one of OPS, ALLGATHER, or an operation of FIXED.
        nbytes: size of each participant's array.
        arrival_s: seconds between the calls of successive participants.
        inputs: arrays that each participant adds to a sum.
    """

    op: str
    nbytes: int
    arrival_s: float = 0.0
    inputs: int = 1

    def rounds(self, seconds: float) -> int:
        """The number of rounds in a sample, if one round takes this long."""
        most = next((rounds for limit, rounds in ROUNDS_MAX if self.nbytes <= limit), 1)
        return max(min(most, ROUNDS_MIN), min(most, int(SAMPLE_S / max(seconds, 1e-6))))

    def __str__(self) -> str:
        late = f" arriving every {self.arrival_s:g} s" if self.arrival_s else ""
        each = f", {self.inputs} inputs per host" if self.inputs > 1 else ""
        return f"{self.op} of {self.nbytes} bytes{late}{each}"


@dataclasses.dataclass(frozen=True)
class Contender:
    """One variant of one system, which gets one row per cell.

    Attributes:
        system: name of the system.
        variant: variant of the operation.
        group: name of the settings of its processes.
    """

    system: str
    variant: str
    group: str

    @property
    def yardstick(self) -> bool:
        """Whether the others are compared with this one."""
        return self.system == WIRE and self.variant == STREAM


def cells(
    ops: Iterable[str], sizes: Iterable[int], arrivals: Iterable[float], inputs: Iterable[int] = (1,)
) -> list[Cell]:
    """Returns all combinations, small sizes first, so that an interrupted run covers a part of everything.

    Several inputs per host apply to sums only; other operations get only the cells with one. A training step has the
    size of its model.

    Raises:
        InvalidArgument: an operation is unknown, a size is not that of a float32 array, an interval is out of range, or
            several inputs per host are requested without a sum, or too many.
    """
    for op in (ops := list(ops)):
        if op not in (known := (*OPS, ALLGATHER, *FIXED)):
            raise InvalidArgument(f"unknown operation {op!r}: choose from {', '.join(known)}")
    for size in (sizes := sorted(set(sizes))):
        if size < 4 or size % 4:
            raise InvalidArgument(f"{size} bytes are not an array of float32: set a multiple of 4")
    for arrival in (arrivals := list(arrivals)):
        if not 0 <= arrival <= 60:
            raise InvalidArgument(f"an arrival interval of {arrival} s is out of range: set 0 to 60")
    for count in (inputs := sorted(set(inputs))):
        if not 1 <= count <= INPUTS_MAX:
            raise InvalidArgument(f"{count} inputs per host are out of range: set 1 to {INPUTS_MAX}")
    if inputs and inputs[0] > 1 and not set(ops) & set(SUMS):
        raise InvalidArgument(
            f"several inputs per host apply to sums, not to {', '.join(ops)}: add {' or '.join(SUMS)}"
        )
    found = [
        Cell(op, FIXED.get(op, size), arrival, count)
        for size, arrival, count, op in itertools.product(sizes, arrivals, inputs, ops)
        if count == 1 or op in SUMS
    ]
    return list(dict.fromkeys(found))


def contenders(systems: Iterable[System], op: str, inputs: int = 1) -> list[Contender]:
    """The contenders for an operation with this many inputs per host."""
    return [
        Contender(system.name, variant.name, variant.group)
        for system in systems
        if inputs == 1 or system.several_inputs
        for variant in system.variants(op)
    ]


def turns(who: Sequence[Contender], repeats: int, seed: int) -> Iterator[Contender]:
    """Yields interleaved turns, each repeat in a random order, so that the effect of one on the next hits all alike.

    Args:
        who: has one turn per repeat.
        repeats: number of repeats.
        seed: seed of the orders; the same seed gives the same orders.
    """
    orders = random.Random(seed)
    for _ in range(repeats):
        yield from orders.sample(who, len(who))


def step_timeout_s(cell: Cell, hosts: int, rate: int) -> float:
    """The time after which a step of a round counts as hanging, in seconds.

    Args:
        cell: the cell.
        hosts: number of hosts.
        rate: rate of a link in bit/s; 0 if unknown.
    """
    wire = cell.nbytes * 8 / (rate or SLOW_LINK)
    return PATIENCE_S + hosts * (SLOWEST * wire + cell.arrival_s + (3 + cell.inputs) * cell.nbytes / MEMORY_RATE)


def expected_s(cell: Cell, hosts: int, rate: int, repeats: int) -> float:
    """Estimates the time of one contender in a cell, with its warm-up; for the time left, not for a deadline."""
    copies = {
        "rtt": 2,
        "broadcast": 3,
        "gather": hosts,
        "reduce": 3,
        "allreduce": 4,
        ALLGATHER: hosts,
        DDP: 4,
        TRAIN_ALLREDUCE: 4,
        TRAIN_PS: hosts + 3,
    }[cell.op]
    wire = cell.nbytes * 8 / (rate or SLOW_LINK)
    one = copies * wire + (1 + cell.inputs) * hosts * cell.nbytes / MEMORY_RATE + OVERHEAD_S + cell.arrival_s * hosts
    return one * (1 + repeats * (1 + cell.rounds(one)))


def is_on(row: Row, network: Mapping[str, object]) -> bool:
    """Whether a row was measured on an equivalent network."""
    return all(
        row.lab.get(name) == network.get(name)
        for name in ("kind", "container", "rate", "uplink", "racks", "pods", "pod_uplink", "flow_cap", "names")
    )
