"""The participants of a measurement: their contents, and Hoplite's ranks in this process."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hoplite import testing
from hoplite_bench.systems.base import OPS, RANKS
from hoplite_bench.systems.hoplite import Hoplite

# The programs import each other by the names of their files.
sys.path.insert(0, str(RANKS))
import content
import hoplite_rank
from rank import Task

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS_OF_A_TEST = 3
SEED = 17


def summed(nbytes: int, ranks: range) -> np.ndarray:
    """The correct sum of the inputs of some ranks."""
    total = np.zeros(nbytes // 4, np.float32)
    for rank in ranks:
        one = np.empty_like(total)
        content.fill(one, rank=rank, seed=SEED)
        total += one
    return total


def wrong(found: np.ndarray, nbytes: int, ranks: range) -> str:
    return content.wrong(found, nbytes=nbytes, ranks=ranks, seed=SEED)


@pytest.mark.parametrize("nbytes", [4, 4096, content.PIECE * 4 + 4])
def test_only_the_right_sum_is_right(nbytes: int) -> None:
    right = summed(nbytes, range(4))
    assert wrong(right, nbytes, range(4)) == ""
    off = right.copy()
    off[-1] += 1
    assert wrong(off, nbytes, range(4)) == f"element {off.size - 1} of {off.size} is {off[-1]} instead of {right[-1]}"
    # Of the wrong ranks, of one rank twice, of another round, one element short, empty, of another kind.
    twice = right + summed(nbytes, range(1)) - summed(nbytes, range(3, 4))
    for other in (
        summed(nbytes, range(3)),
        twice,
        right + 4,
        right[:-1],
        right[:0],
        right.astype(np.float64),
        np.stack([right]),
    ):
        assert wrong(other, nbytes, range(4)) != ""


@pytest.mark.parametrize("op", OPS)
def test_what_did_not_come_is_wrong(op: str) -> None:
    said = [
        content.wrong_at([], op=op, nbytes=4096, rank=rank, ranks=RANKS_OF_A_TEST, seed=SEED)
        for rank in range(RANKS_OF_A_TEST)
    ]
    receivers = {"rtt": [0, 1], "broadcast": [1, 2], "gather": [0], "reduce": [0], "allreduce": [0, 1, 2]}[op]
    assert [bool(one) for one in said] == [rank in receivers for rank in range(RANKS_OF_A_TEST)]


@pytest.fixture
def ranks() -> Iterator[list[Any]]:
    with testing.cluster(RANKS_OF_A_TEST, capacity="256MiB") as nodes:
        yield [hoplite_rank.HopliteRank(node.client()) for node in nodes]


def task(op: str, rank: int, *, number: int, arrival_s: float, inputs: int = 1) -> Task:
    return Task(
        op=op,
        nbytes=2**20,
        variant="default",
        round=number,
        seed=SEED,
        ranks=RANKS_OF_A_TEST,
        rank=rank,
        arrival_ns=round(arrival_s * 1e9),
        inputs=inputs,
    )


def run(
    ranks: list[Any], op: str, *, number: int = 1, arrival_s: float = 0.0, inputs: int = 1
) -> list[tuple[int, int] | None]:
    """Runs one round of all ranks, each in a thread; returns the times that they report."""
    tasks, times = call_all(ranks, op, number=number, arrival_s=arrival_s, inputs=inputs)
    assert [rank.check(one) for rank, one in zip(ranks, tasks, strict=True)] == [""] * len(ranks)
    return times


def call_all(
    ranks: list[Any], op: str, *, number: int = 1, arrival_s: float = 0.0, inputs: int = 1
) -> tuple[list[Task], list[tuple[int, int] | None]]:
    """A round whose result is not verified."""
    tasks = [task(op, rank, number=number, arrival_s=arrival_s, inputs=inputs) for rank in range(len(ranks))]
    tokens = [rank.prepare(one) for rank, one in zip(ranks, tasks, strict=True)]
    times: list[tuple[int, int] | None] = [None] * len(ranks)

    def call(rank: int) -> None:
        time.sleep(arrival_s * rank)
        start = time.monotonic_ns()
        times[rank] = ranks[rank].run(tasks[rank], tokens, 0) or (start, time.monotonic_ns())

    threads = [threading.Thread(target=call, args=[rank]) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return tasks, times


@pytest.mark.parametrize("op", ["reduce", "allreduce"])
def test_several_inputs_of_a_host_go_into_a_sum(ranks: list[Any], op: str) -> None:
    run(ranks, op, inputs=2)
    assert [rank.disturbed() for rank in ranks] == [""] * len(ranks)
    # Without the content of one input, the sum would differ.
    came = [np.zeros(1024, content.DTYPE)]
    content.fill(came[0], rank=0, seed=SEED)
    facts: dict[str, Any] = {"op": "reduce", "nbytes": 4096, "rank": 0, "ranks": 1, "seed": SEED}
    assert content.wrong_at(came, **facts) == ""
    assert content.wrong_at(came, **facts, inputs=2) != ""


def test_several_inputs_of_a_host_come_late(ranks: list[Any]) -> None:
    assert None not in run(ranks, "reduce", arrival_s=0.2, inputs=2)


def test_a_rank_reports_what_was_retried(ranks: list[Any]) -> None:
    rank = ranks[0]
    assert rank.disturbed() == ""
    rank.counters["refusals"] -= 1
    assert rank.disturbed() == "refusals +1"
    assert rank.disturbed() == ""


@pytest.mark.parametrize("op", OPS)
def test_hoplite_does_every_operation(ranks: list[Any], op: str) -> None:
    run(ranks, op)
    # Twice, so that leftovers of the first run would be found.
    run(ranks, op, number=2)


@pytest.mark.parametrize("op", OPS)
def test_all_that_hoplite_has_is_there_once(ranks: list[Any], op: str) -> None:
    """The estimated memory is what the stores contain, except what a round trip sends."""
    tasks, _ = call_all(ranks, op)
    used = sum(rank.client.status()["store"]["used"] for rank in ranks)
    expected = Hoplite().memory(op, RANKS_OF_A_TEST, tasks[0].nbytes) - (tasks[0].nbytes if op == "rtt" else 0)
    assert expected <= used < expected + 2**16
    assert [rank.check(one) for rank, one in zip(ranks, tasks, strict=True)] == [""] * len(ranks)


@pytest.mark.parametrize("op", ["gather", "reduce", "allreduce"])
def test_the_input_of_one_who_comes_late_is_not_there_before(ranks: list[Any], op: str) -> None:
    times = run(ranks, op, arrival_s=0.2)
    assert None not in times
    root, *_, last = [one for one in times if one is not None]
    # No rank has the sum before the last call, and the last call is known to be the last.
    assert last[0] == max(start for start, _ in [one for one in times if one is not None])
    assert root[1] > last[0] > root[0] + 0.3e9


def test_one_whose_input_is_there_does_not_call(ranks: list[Any]) -> None:
    assert run(ranks, "reduce")[1:] == [(0, 0), (0, 0)]
