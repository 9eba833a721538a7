"""The patterns of a steady run: what a step transfers, how many results it uses, and its bound.

Pure: no processes, no links. Times are given in transfers: the time of one object over one link, which carries one
transfer in each direction at once.
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
    """More than half of the workers, so that each step needs at least one result of the newest object."""
    return workers // 2 + 1


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A communication pattern.

    Attributes:
        title: a noun phrase for tables.
        answers: number of results that a step uses, by the number of workers.
        transfers: bound of a step in transfers, by the number of results.
        why: derivation of the bound.
        everyone: whether all workers get the new object of a step; else only those whose results the step used.
        nbytes: default size of each object.
        steps: default number of steps.
        alone: whether it requires one worker per host and an undisturbed cluster without faults.
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
        "the server sends the weights, then receives a sum that includes a result for them",
    ),
    "sync": Pattern(
        "synchronous parameter server",
        lambda workers: workers,
        lambda _: 2,
        "the server sends the weights, then receives the sum of all results for them",
    ),
    "samples": Pattern(
        "sample collection, as in IMPALA",
        lambda workers: max(1, workers // 2),
        lambda count: count,
        "the learner receives a sample from each worker that the step uses, while it sends the weights",
        everyone=False,
    ),
    "gradients": Pattern(
        "gradient collection, as in A3C",
        majority,
        lambda _: 2,
        "the learner sends the weights, then receives a sum that includes a result for them",
        everyone=False,
    ),
    "serving": Pattern(
        "ensemble serving",
        majority,
        lambda _: 1,
        "the server sends the query once; the results are small",
    ),
    "eviction": Pattern(
        "readers with small stores",
        lambda readers: readers,
        lambda _: 1,
        "each reader receives each object once, and the link of the sending host carries each object once",
        nbytes=2**18,
        steps=2000,
        alone=True,
        middle=statistics.fmean,
    ),
}

# Readers of the pattern eviction, on the hosts after the first.
READERS = 3
# Share of all bytes read that a reader's store holds: 200 MB by default.
STORE_SHARE = 0.38
# Number of objects that a reader requests at once, so that the link stays busy while one of them is announced.
AT_ONCE = 8


def check(settings: Settings, *, hosts: int) -> None:
    """Validates the settings of a run.

    Args:
        settings: settings of the run.
        hosts: number of hosts in the lab.

    Raises:
        InvalidArgument: a setting is not valid; the message names one that is.
    """
    name, nbytes, steps = settings.pattern, settings.nbytes, settings.steps
    if name not in PATTERNS:
        raise InvalidArgument(f"unknown pattern {name!r}: use {', '.join(PATTERNS)}")
    if nbytes % 4 or nbytes < NBYTES_MIN:
        raise InvalidArgument(f"size {nbytes} B is not valid: set a multiple of 4 B, at least 64 KiB")
    if not PATTERNS[name].alone:
        return
    if hosts <= READERS:
        raise InvalidArgument(f"{name} needs {READERS + 1} hosts, but the lab has {hosts}: set --lab {READERS + 1}")
    if settings.per_host > 1 or settings.fault != "none":
        option = "--workers-per-host" if settings.per_host > 1 else "--fault"
        raise InvalidArgument(f"the pattern {name} does not support {option}: omit one of them")
    if store_bytes(nbytes, steps) < 2 * AT_ONCE * nbytes:
        least = math.ceil(2 * AT_ONCE / STORE_SHARE)
        raise InvalidArgument(
            f"{steps} steps are too few for {name}: a store holds {STORE_SHARE:.0%} of the objects, but must hold "
            f"{2 * AT_ONCE}; set --steps to at least {least}"
        )


def store_bytes(nbytes: int, steps: int) -> int:
    """The capacity of a reader's store, which is smaller than the bytes that it reads."""
    return int(STORE_SHARE * nbytes * steps)
