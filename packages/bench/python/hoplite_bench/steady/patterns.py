"""The patterns of a steady run: what a step moves, how many answers it takes, and its bound.

Pure: no processes, no links. A time is given in transfers: how long one object takes over one link, which
carries a transfer in each direction at once.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_bench.steady.team import Settings

MIB = 2**20
# Smaller objects travel in messages, or take less time than the processes.
NBYTES_MIN = 2**16


def majority(workers: int) -> int:
    """More than half of the workers, so that each step needs at least one answer to the newest object."""
    return workers // 2 + 1


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A communication pattern.

    Attributes:
        title: a noun phrase for tables.
        answers: how many answers a step takes, by the number of workers.
        transfers: the bound of a step in transfers, by the number of answers.
        why: what the bound counts.
        everyone: whether all workers get the new object of a step; else only those whose answers the step took.
        nbytes: of each object, by default.
        steps: of a run, by default.
        alone: whether it needs fixed workers and an undisturbed cluster: no fault, no more workers on a host.
        middle: the typical step of several. Where steps overlap, they end in bursts, and only their mean is meaningful.
    """

    title: str
    answers: Callable[[int], int]
    transfers: Callable[[int], int]
    why: str
    everyone: bool = True
    nbytes: int = 16 * MIB
    steps: int = 300
    alone: bool = False
    middle: Callable[[list[float]], float] = statistics.median


PATTERNS = {
    "async": Pattern(
        "asynchronous parameter server",
        majority,
        lambda _: 2,
        "the weights leave the server, then a sum that needs an answer to them comes back",
    ),
    "sync": Pattern(
        "synchronous parameter server",
        lambda workers: workers,
        lambda _: 2,
        "the weights leave the server, then the sum of all answers to them comes back",
    ),
    "samples": Pattern(
        "samples, as in IMPALA",
        lambda workers: max(1, workers // 2),
        lambda count: count,
        "the link of the learner receives a sample of each worker that the step takes; the weights leave it meanwhile",
        everyone=False,
    ),
    "gradients": Pattern(
        "gradients, as in A3C",
        majority,
        lambda _: 2,
        "the weights leave the learner, then a sum that needs an answer to them comes back",
        everyone=False,
    ),
    "serving": Pattern(
        "serving an ensemble",
        majority,
        lambda _: 1,
        "the query leaves the server once; the answers are small",
    ),
    "eviction": Pattern(
        "readers with small stores",
        lambda readers: readers,
        lambda _: 1,
        "each reader receives each object once, and so does the link of the host that has them send it once",
        nbytes=2**18,
        steps=2000,
        alone=True,
        middle=statistics.fmean,
    ),
}

# Readers of the pattern eviction, on the hosts after the first.
READERS = 3
# Of all bytes that a reader reads, the part that its store holds: 200 MB by default.
STORE_SHARE = 0.38
# Objects that a reader requests at once: the link stays busy while one of them is announced.
AT_ONCE = 8


def check(settings: Settings, *, hosts: int) -> None:
    """Refuses a run that can't work.

    Args:
        settings: of the run.
        hosts: of the lab.

    Raises:
        InvalidArgument: with what is wrong and what to set instead.
    """
    name, nbytes, steps = settings.pattern, settings.nbytes, settings.steps
    if name not in PATTERNS:
        raise InvalidArgument(f"pattern {name!r} is unknown: use {', '.join(PATTERNS)}")
    if nbytes % 4 or nbytes < NBYTES_MIN:
        raise InvalidArgument(f"size {nbytes} B is not valid: use a multiple of 4 B from 64 KiB")
    if not PATTERNS[name].alone:
        return
    if hosts <= READERS:
        raise InvalidArgument(f"{name} needs {READERS + 1} hosts and the lab has {hosts}: set --lab {READERS + 1}")
    if settings.per_host > 1 or settings.fault != "none":
        option = "--workers-per-host" if settings.per_host > 1 else "--fault"
        raise InvalidArgument(f"{name} runs without {option}: leave out {option} or {name}")
    if store_bytes(nbytes, steps) < 2 * AT_ONCE * nbytes:
        least = math.ceil(2 * AT_ONCE / STORE_SHARE)
        raise InvalidArgument(
            f"{steps} steps are too few for {name}: a store holds {STORE_SHARE:.0%} of the objects and needs room for "
            f"{2 * AT_ONCE}; set --steps to at least {least}"
        )


def store_bytes(nbytes: int, steps: int) -> int:
    """The capacity of a reader's store, which is smaller than what it reads."""
    return int(STORE_SHARE * nbytes * steps)
