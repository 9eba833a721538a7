"""The situations that the tests of Ray's own collective backends cover, with the backend "hoplite".

docs/ray-coverage.md lists them. A program runs in all members at once and returns its failures or results, so that one
cluster and one group serve many cases.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray
from ray.util.collective.types import ReduceOp

from rays import RAY_SOON, end, everywhere, members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

COUNT = 3
SIZE = 100_000
DTYPES = ("uint8", "int32", "int64", "float16", "float32", "float64")
SHAPES = ((), (0,), (1,), (2**20,), (5, 5, 5), (1, 3, 5, 7))
OPS: dict[Any, Callable[..., Any]] = {
    ReduceOp.SUM: np.sum,
    ReduceOp.PRODUCT: np.prod,
    ReduceOp.MIN: np.min,
    ReduceOp.MAX: np.max,
}


def join(name: str, count: int = COUNT) -> Callable[[Any, int], Any]:
    """Returns a program that makes a member join a group."""
    return lambda collective, rank: collective.init_collective_group(count, rank, backend="hoplite", group_name=name)


@contextlib.contextmanager
def grouped(name: str = "default", count: int = COUNT) -> Iterator[list[Any]]:
    """Starts the members of a group, on three Ray nodes."""
    found = members(count)
    try:
        everywhere(found, join(name, count))
        yield found
    finally:
        end(found)


def attempt(call: Callable[[], Any]) -> str:
    """Returns the error that a call raises, as text."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the test checks it
        return f"{type(error).__name__}: {error}"
    return "done"


def read_only(array: Any) -> Any:
    """Makes an array read-only, as Ray's arguments are."""
    array.flags.writeable = False
    return array


def test_operations_by_dtype_shape_and_root() -> None:
    """Inputs may be read-only, and outputs may have any memory order or be slices."""

    def program(collective: Any, rank: int, *, is_frozen: bool) -> list[str]:
        wrong = []
        cases = [(dtype, (3, 4)) for dtype in DTYPES] + [("float32", shape) for shape in SHAPES]
        for dtype, shape in cases:

            def full(value: int, dtype: str = dtype, shape: tuple[int, ...] = shape) -> Any:
                array = np.full(shape, value, dtype)
                return read_only(array) if is_frozen else array

            def check(what: str, array: Any, value: int, dtype: str = dtype, shape: tuple[int, ...] = shape) -> None:
                if array.dtype != dtype or array.shape != shape or not (array == value).all():
                    wrong.append(f"{what} of {dtype} {shape}: {array.ravel()[:3]} is not {value}")

            def room(dtype: str = dtype, shape: tuple[int, ...] = shape) -> Any:
                if is_frozen and len(shape) < 2:
                    return np.zeros((*shape, 2), dtype)[..., 0]
                return np.zeros(shape, dtype, order="F" if is_frozen else "C")

            every = range(collective.get_collective_group_size())
            for op, fold in OPS.items():
                mine = room()
                mine[...] = rank + 2
                collective.allreduce(mine, op=op)
                check(f"allreduce {op}", mine, fold([each + 2 for each in every]))
            for root in every:
                mine = room() if rank == root else full(rank + 1)
                if rank == root:
                    mine[...] = rank + 1
                collective.reduce(mine, root)
                check(f"reduce to {root}", mine, sum(each + 1 for each in every) if rank == root else rank + 1)
                mine = full(7 + root) if rank == root else room()
                collective.broadcast(mine, root)
                check(f"broadcast from {root}", mine, 7 + root)
            gathered = [room() for _ in every]
            collective.allgather(gathered, full(rank + 1))
            for each in every:
                check(f"allgather of {each}", gathered[each], each + 1)
            mine = room()
            collective.reducescatter(mine, [full(rank + 10 * each) for each in every])
            check("reducescatter", mine, sum(every) + 10 * rank * len(every))
            collective.send(full(rank), (rank + 1) % len(every))
            mine = room()
            collective.recv(mine, (rank - 1) % len(every))
            check("recv", mine, (rank - 1) % len(every))
        return wrong

    with grouped() as found:
        for is_frozen in (False, True):
            assert everywhere(found, functools.partial(program, is_frozen=is_frozen)) == [[]] * COUNT


def test_groups_by_name_rank_and_size() -> None:
    """Several groups of the same members, in two orders of ranks, next to a group of one."""
    names = ("default", "test", "123?34!", "ünï/cödé 1")

    def program(collective: Any, rank: int) -> Any:
        got = []
        for place, name in enumerate(names):
            collective.init_collective_group(2, (rank + place) % 2, backend="hoplite", group_name=name)
        collective.init_collective_group(1, 0, backend="hoplite", group_name=f"alone-{rank}")
        for place, name in enumerate(names):
            mine = np.full(SIZE, float(10**place * (1 + rank)))
            collective.allreduce(mine, name)
            root = np.full(10, float(rank))
            collective.broadcast(root, 0, name)
            got.append((collective.get_rank(name), float(mine[-1]), float(root[0])))
        alone = np.arange(5.0)
        gathered = [np.zeros(5)]
        collective.allreduce(alone, f"alone-{rank}")
        collective.allgather(gathered, alone, f"alone-{rank}")
        collective.reducescatter(alone, gathered, f"alone-{rank}")
        collective.barrier(f"alone-{rank}")
        unknown = collective.get_rank("none"), collective.get_collective_group_size("none")
        return (
            got,
            alone.tolist(),
            unknown,
            collective.is_group_initialized("test"),
            collective.is_group_initialized("x"),
        )

    found = members(2)
    for rank, results in enumerate(everywhere(found, program)):
        got, alone, unknown, is_known, is_other = results
        assert got == [((rank + place) % 2, 3.0 * 10**place, float(place % 2)) for place in range(4)]
        assert (alone, unknown, is_known, is_other) == (list(range(5)), (-1, -1), True, False)
    end(found)


def test_a_group_can_be_destroyed_and_created_again() -> None:
    def program(collective: Any, rank: int) -> list[Any]:
        results: list[Any] = [attempt(lambda: collective.allreduce(np.ones(5)))]
        for turn in range(3):
            join("default")(collective, rank)
            results.append(attempt(lambda: join("default")(collective, rank)))
            mine = np.full(SIZE, turn + 1.0)
            collective.allreduce(mine)
            results.append(float(mine[0]))
            collective.destroy_collective_group("random")
            collective.destroy_collective_group()
            results.append(collective.is_group_initialized("default"))
        results.append(attempt(lambda: collective.send(mine, (rank + 1) % COUNT)))
        return results

    found = members(COUNT)
    for results in everywhere(found, program):
        assert "is not initialized" in results[0]
        assert "is not initialized" in results[-1]
        for turn in range(3):
            again, total, is_there = results[1 + 3 * turn : 4 + 3 * turn]
            assert "a second time" in again
            assert (total, is_there) == (3.0 * (turn + 1), False)
    end(found)


def check_wrong_arguments(found: list[Any]) -> None:
    def program(collective: Any, rank: int) -> tuple[list[str], float]:
        mine, others = np.ones(10), (rank + 1) % COUNT
        wrong: list[Callable[[], Any]] = [
            *(lambda root=root: collective.broadcast(mine, root) for root in (-1, 3)),
            *(lambda root=root: collective.reduce(mine, root) for root in (-1, 3)),
            *(lambda rank=rank: collective.send(mine, rank) for rank in (-1, 3)),
            *(lambda rank=rank: collective.recv(mine, rank) for rank in (-1, 3)),
            lambda: collective.send(mine, rank),
            lambda: collective.recv(mine, rank),
            *(lambda n=n: collective.allgather([np.ones(10)] * n, mine) for n in (0, 1, 2, 4)),
            *(lambda n=n: collective.reducescatter(mine, [np.ones(10)] * n) for n in (0, 1, 2, 4)),
            *(lambda op=op: collective.allreduce(mine, op=op) for op in ("sum", None, 9)),
            lambda: collective.reduce(mine, 0, op="median"),
            lambda: collective.reducescatter(mine, [mine] * COUNT, op="sum"),
            lambda: collective.allreduce([1.0, 2.0]),
            lambda: collective.send(b"bytes", others),
            lambda: collective.allgather([mine, mine, "no array"], mine),
        ]
        results = [attempt(call) for call in wrong]
        collective.allreduce(mine)
        return results, float(mine[0])

    words = [
        *["is negative", "must be less than world size"] * 4,
        *["is self"] * 2,
        *["empty list", "world_size", "world_size", "world_size"] * 2,
        *["unknown operation"] * 5,
        *["Unrecognized tensor type"] * 3,
    ]
    for results, total in everywhere(found, program):
        assert total == COUNT
        assert [word for word, each in zip(words, results, strict=True) if word not in each] == [], results


def check_read_only_arrays(found: list[Any]) -> None:
    """The array is rejected before anything is awaited or sent: the same call with a copy then succeeds."""

    def program(collective: Any, rank: int) -> tuple[list[str], list[float]]:
        mine, before, after = read_only(np.full(10, rank + 1.0)), (rank - 1) % COUNT, (rank + 1) % COUNT
        calls: list[Callable[[Any], Any]] = [
            lambda array: collective.allreduce(array),
            lambda array: collective.reduce(array, 1),
            lambda array: collective.broadcast(array, 1),
            lambda array: collective.allgather([np.zeros(10), array, np.zeros(10)], mine),
            lambda array: collective.reducescatter(array, [mine] * COUNT),
            lambda array: collective.send(array, after),
            lambda array: collective.recv(array, before),
        ]
        results, got = [], []
        for call in calls:
            results.append(attempt(functools.partial(call, mine)))
            if results[-1] != "done":
                copy = np.array(mine)
                call(copy)
                got.append(float(copy[0]))
        return results, got

    for rank, (results, got) in enumerate(everywhere(found, program)):
        is_root = rank == 1
        done = [False, not is_root, is_root, False, False, True, False]
        assert [each == "done" for each in results] == done, results
        assert all("read-only" in each for each in results if each != "done")
        assert got == [6.0, *([6.0] if is_root else [2.0]), 2.0, 6.0, (rank - 1) % COUNT + 1.0]


def check_other_shapes(found: list[Any]) -> None:
    """A member with a wrong array gets an error; in a reduce of it, all callers do. No member gets wrong numbers."""

    def program(collective: Any, rank: int) -> tuple[list[list[bool]], float]:
        is_odd = rank == 1
        others: list[Any] = [
            np.zeros(7),
            np.zeros((2, 5)),
            np.zeros(10, "float32"),
            # NumPy would broadcast or convert the values of these in an assignment.
            np.zeros((10, 2), "float32")[:, 0],
            np.zeros((3, 20))[:, ::2],
        ]
        results = []
        for other in others:
            mine = other if is_odd else np.zeros(10)
            mine[...] = rank
            calls: list[Callable[[Any], Any]] = [
                lambda mine: collective.allreduce(mine),
                lambda mine: collective.reduce(mine, 0),
                lambda mine: collective.broadcast(mine, 0),
                lambda mine: collective.allgather([mine] * COUNT, np.full(10, float(rank))),
                lambda mine: collective.reducescatter(mine, [np.ones(10)] * COUNT),
            ]
            one = ["ShapeMismatch" in attempt(functools.partial(call, mine)) for call in calls]
            if rank == 0:
                collective.send(np.full(10, 5.0), 1)
            if is_odd:
                one.append("ShapeMismatch" in attempt(functools.partial(collective.recv, mine, 0)))
                one.append(bool((mine == rank).all()))
                # The message that could not be received is still the next one.
                right = np.zeros(10)
                collective.recv(right, 0)
                one.append(bool((right == 5).all()))
            results.append(one)
        whole = np.ones(10)
        collective.allreduce(whole)
        return results, float(whole[0])

    root, odd, third = [True, True, *[False] * 3], [True, False, *[True] * 6], [True, *[False] * 4]
    assert everywhere(found, program) == [([each] * 5, 3.0) for each in (root, odd, third)]


def test_a_group_keeps_working_after_failed_calls() -> None:
    with grouped() as found:
        check_wrong_arguments(found)
        check_read_only_arrays(found)
        check_other_shapes(found)


def test_the_failure_of_a_sender_or_receiver_is_reported() -> None:
    """A send does not wait for its receiver. A receive from a failed rank names it, then and immediately afterwards."""

    def sends(collective: Any, rank: int) -> None:
        for name in ("0 dies", "1 dies"):
            if collective.is_group_initialized(name):
                collective.send(np.ones(SIZE), 1 - rank, name)

    def receives(collective: Any, rank: int) -> str:
        mine = np.zeros(SIZE)
        # The first message may have arrived before the failure.
        return attempt(lambda: [collective.recv(mine, 1 - rank, f"{1 - rank} dies") for _ in range(2)])

    pairs = [members(2), members(2)]
    for gone, pair in enumerate(pairs):
        everywhere(pair, join(f"{gone} dies", 2))
    # In the first pair the sender is killed, in the second the receiver of a message already sent.
    sending = [pairs[0][0].run.remote(sends), pairs[1][0].run.remote(sends)]
    ray.get(sending, timeout=RAY_SOON)
    living = [pairs[0][1], pairs[1][0]]
    waiting = [member.run.remote(receives) for member in living]
    for gone, pair in enumerate(pairs):
        ray.kill(pair[gone])
    lost = [f"rank {gone} is gone" for gone in range(2)]
    for refs in (waiting, [member.run.remote(receives) for member in living]):
        results = ray.get(refs, timeout=RAY_SOON)
        assert [words in each for words, each in zip(lost, results, strict=True)] == [True, True], results
    end(living)
