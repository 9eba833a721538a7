"""What is to be measured and what each step of it may take; pure: knows no process and no clock."""

from __future__ import annotations

import dataclasses
import itertools
import random
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.systems.base import OPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.systems.base import System

# Small operations take less than a process's turn on the processor, so one says little: most rounds in a sample, by
# size. As many as take so long, but three of those that are slower: they vary less.
ROUNDS_MAX = ((64 * 2**10, 15), (2**20, 5))
ROUNDS_MIN = 3
SAMPLE_S = 0.05
# What the slowest system took of the wire's time, per host (Ray's allreduce, 2 for each), and as much again.
SLOWEST = 4
# Of each step of a round beside moving bytes: a machine that swaps, a process that starts.
PATIENCE_S = 30.0
# What takes several inputs a host; of more the sums would not be exact.
SUMS = ("reduce", "allreduce")
INPUTS_MAX = 8
# Where the rate is not known.
SLOW_LINK = 10**9
# Bytes a second that two cores fill or compare, of all hosts together.
MEMORY_RATE = 10**9
# Making ready, freezing and checking, of one round of nothing: as seen with eight hosts on two cores.
OVERHEAD_S = 0.15


@dataclasses.dataclass(frozen=True)
class Cell:
    """One operation of one size: a row for each system and variant.

    Attributes:
        op: one of OPS.
        nbytes: of each participant's array.
        arrival_s: seconds between the calls of one participant and the next.
        inputs: arrays of each participant that go into a sum.
    """

    op: str
    nbytes: int
    arrival_s: float = 0.0
    inputs: int = 1

    def rounds(self, seconds: float) -> int:
        """How many rounds a sample is the median of, if one takes so long."""
        most = next((rounds for limit, rounds in ROUNDS_MAX if self.nbytes <= limit), 1)
        return max(min(most, ROUNDS_MIN), min(most, int(SAMPLE_S / max(seconds, 1e-6))))

    def __str__(self) -> str:
        late = f" arriving every {self.arrival_s:g} s" if self.arrival_s else ""
        each = f", {self.inputs} inputs a host" if self.inputs > 1 else ""
        return f"{self.op} of {self.nbytes} bytes{late}{each}"


@dataclasses.dataclass(frozen=True)
class Contender:
    """One variant of one system: what a row is of.

    Attributes:
        system: its name.
        variant: how it does the operation.
        group: the settings that its processes run with.
    """

    system: str
    variant: str
    group: str

    @property
    def yardstick(self) -> bool:
        """Whether the others are compared to this one."""
        return self.system == WIRE and self.variant == STREAM


def cells(
    ops: Iterable[str], sizes: Iterable[int], arrivals: Iterable[float], inputs: Iterable[int] = (1,)
) -> list[Cell]:
    """All combinations, small sizes first, so that an interrupted run has something of everything.

    Several inputs a host are of sums alone: other operations have the cells of one.

    Raises:
        InvalidArgument: an operation is unknown, a size is not that of an array of float32, an interval is negative, or
            there are several inputs a host and no sum, or too many.
    """
    for op in (ops := list(ops)):
        if op not in OPS:
            raise InvalidArgument(f"no operation {op!r}; there are {', '.join(OPS)}")
    for size in (sizes := sorted(set(sizes))):
        if size < 4 or size % 4:
            raise InvalidArgument(f"{size} bytes are no array of float32: say a multiple of 4")
    for arrival in (arrivals := list(arrivals)):
        if not 0 <= arrival <= 60:
            raise InvalidArgument(f"an arrival interval of {arrival} s; say 0 to 60")
    for count in (inputs := sorted(set(inputs))):
        if not 1 <= count <= INPUTS_MAX:
            raise InvalidArgument(f"{count} inputs a host; say 1 to {INPUTS_MAX}")
    if inputs and inputs[0] > 1 and not set(ops) & set(SUMS):
        raise InvalidArgument(f"several inputs a host are of {' and '.join(SUMS)}, not of {', '.join(ops)}")
    return [
        Cell(op, size, arrival, count)
        for size, arrival, count, op in itertools.product(sizes, arrivals, inputs, ops)
        if count == 1 or op in SUMS
    ]


def contenders(systems: Iterable[System], op: str, inputs: int = 1) -> list[Contender]:
    """Who has a row for an operation with so many inputs a host."""
    return [
        Contender(system.name, variant.name, variant.group)
        for system in systems
        if inputs == 1 or system.several_inputs
        for variant in system.variants(op)
    ]


def turns(who: Sequence[Contender], repeats: int, seed: int) -> Iterator[Contender]:
    """Repeats that take turns, each in another order: whatever one leaves to the next hits all alike.

    Args:
        who: has a turn in each repeat.
        repeats: how many.
        seed: of the orders; the same seed gives the same.
    """
    orders = random.Random(seed)
    for _ in range(repeats):
        yield from orders.sample(who, len(who))


def step_timeout_s(cell: Cell, hosts: int, rate: int) -> float:
    """How long one step of a round may take before the system counts as hanging.

    Args:
        cell: of which cell.
        hosts: how many take part.
        rate: of a link in bits per second; 0 if it is not known.
    """
    wire = cell.nbytes * 8 / (rate or SLOW_LINK)
    return PATIENCE_S + hosts * (SLOWEST * wire + cell.arrival_s + (3 + cell.inputs) * cell.nbytes / MEMORY_RATE)


def expected_s(cell: Cell, hosts: int, rate: int, repeats: int) -> float:
    """About how long one contender of a cell takes, with its warm-up; for the time left, not for a deadline."""
    copies = {"rtt": 2, "broadcast": 3, "gather": hosts, "reduce": 3, "allreduce": 4}[cell.op]
    wire = cell.nbytes * 8 / (rate or SLOW_LINK)
    one = copies * wire + (1 + cell.inputs) * hosts * cell.nbytes / MEMORY_RATE + OVERHEAD_S + cell.arrival_s * hosts
    return one * (1 + repeats * (1 + cell.rounds(one)))


def is_on(row: Row, network: Mapping[str, object]) -> bool:
    """Whether a row was measured on a network like this one."""
    return all(
        row.lab.get(name) == network.get(name)
        for name in ("kind", "rate", "uplink", "racks", "pods", "pod_uplink", "names")
    )
