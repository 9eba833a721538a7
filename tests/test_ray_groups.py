"""Groups of `ray.util.collective` with the backend "hoplite": every operation, and members that fail or leave."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray
import ray.util.collective
from ray.util.collective.types import ReduceOp

import hoplite.ray
from rays import RAY_SOON, end, everywhere, members, objects, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 100_000
KINDS = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]


@pytest.fixture
def group() -> Iterator[list[Any]]:
    """Four members of the group "four", on three Ray nodes."""
    found = members(4)
    ray.util.collective.create_collective_group(found, 4, list(range(4)), backend="hoplite", group_name="four")
    yield found
    end(found)
    ray.kill(ray.get_actor("info_four"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_operation(group: list[Any], kind: str) -> None:
    def program(collective: Any, rank: int) -> dict[str, Any]:
        def tensor(value: float) -> Any:
            if kind == "numpy":
                return np.full(SIZE, value, "float32")
            import torch

            return torch.full((SIZE,), float(value), dtype=torch.float32)

        results: dict[str, Any] = {}
        for name, op in (("sum", ReduceOp.SUM), ("product", ReduceOp.PRODUCT), ("min", ReduceOp.MIN)):
            mine = tensor(rank + 1)
            collective.allreduce(mine, "four", op)
            results[name] = {float(each) for each in (mine[0], mine[SIZE - 1])}
        mine = tensor(rank)
        collective.broadcast(mine, 2, "four")
        results["broadcast"] = float(mine[0])
        mine = tensor(rank + 1)
        collective.reduce(mine, 1, "four", ReduceOp.MAX)
        results["reduce"] = float(mine[0])
        gathered = [tensor(0) for _ in range(4)]
        collective.allgather(gathered, tensor(rank), "four")
        results["allgather"] = [float(each[5]) for each in gathered]
        mine = tensor(0)
        collective.reducescatter(mine, [tensor(10 * rank + place) for place in range(4)], "four")
        results["reducescatter"] = float(mine[0])
        # Around a ring, twice, to check that the second of each pair is not confused with the first.
        for turn in range(2):
            collective.send(tensor(100 * turn + rank), (rank + 1) % 4, "four")
        got = []
        for _ in range(2):
            mine = tensor(0)
            collective.recv(mine, (rank - 1) % 4, "four")
            got.append(float(mine[0]))
        results["ring"] = got
        collective.barrier("four")
        return results

    for rank, results in enumerate(everywhere(group, program)):
        assert results == {
            "sum": {10.0},
            "product": {24.0},
            "min": {1.0},
            "broadcast": 2.0,
            "reduce": 4.0 if rank == 1 else rank + 1.0,
            "allgather": [0.0, 1.0, 2.0, 3.0],
            "reducescatter": 60.0 + 4 * rank,
            "ring": [(rank - 1) % 4, 100.0 + (rank - 1) % 4],
        }


def test_only_the_last_operations_leave_objects(group: list[Any]) -> None:
    def program(collective: Any, rank: int) -> int:
        mine = np.full(SIZE, float(rank))
        for _ in range(10):
            collective.allreduce(mine, "four", ReduceOp.MAX)
            collective.broadcast(mine, 0, "four")
        return int(mine[0])

    assert everywhere(group, program) == [3, 3, 3, 3]
    large = [each for each in objects() if "/ended-" not in each and not each.startswith("@")]
    # Of the last two operations only: inputs, results and broadcast objects.
    assert len(large) <= 2 * 5, large


def test_strided_tensors_are_filled(group: list[Any]) -> None:
    def program(collective: Any, rank: int) -> list[float]:
        whole = np.full((4, 6), float(rank))
        collective.allreduce(whole[:, 1], "four")
        return list(whole[0, :3])

    assert everywhere(group, program) == [[float(rank), 6.0, float(rank)] for rank in range(4)]


def test_the_failure_of_a_member_is_an_error_for_the_others(group: list[Any]) -> None:
    def warm(collective: Any, rank: int) -> None:
        del rank
        collective.barrier("four")

    def program(collective: Any, rank: int) -> str:
        try:
            collective.allreduce(np.full(SIZE, float(rank)), "four")
        except hoplite.HopliteError as error:
            return str(error)
        return "it came"

    everywhere(group, warm)
    waiting = [member.run.remote(program) for member in group[:3]]
    ray.kill(group[3])
    for error in ray.get(waiting, timeout=RAY_SOON):
        assert "rank 3 is gone" in error
    # The next operation fails too, at once.
    for error in ray.get([member.run.remote(program) for member in group[:3]], timeout=RAY_SOON):
        assert "rank 3 is gone" in error


def test_a_member_that_leaves_fails_only_operations_that_need_it(group: list[Any]) -> None:
    def leaves(collective: Any, rank: int) -> str:
        mine = np.full(SIZE, float(rank))
        collective.allreduce(mine, "four")
        if rank == 3:
            collective.send(np.full(SIZE, 7.0), 0, "four")
            ray.util.collective.collective._group_mgr.get_group_by_name("four").destroy_group()
            return str(mine[0])
        if rank == 0:
            collective.recv(mine, 3, "four")
        try:
            collective.barrier("four")
        except hoplite.HopliteError as error:
            return f"{mine[0]}, {'rank 3 is gone' in str(error)}"
        return "the barrier passed"

    assert everywhere(group, leaves) == ["7.0, True", "6.0, True", "6.0, True", "6.0"]


def test_an_incomplete_group_names_the_missing_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    (only,) = members(1)

    def program(collective: Any, rank: int) -> str:
        from hoplite.ray import groups

        groups.MEET_S = 0.5
        try:
            collective.init_collective_group(3, rank, backend="hoplite", group_name="three")
        except hoplite.Timeout as error:
            return str(error)
        return "complete"

    (error,) = everywhere([only], program)
    assert "rank 1, 2 is missing" in error
    ray.kill(only)


def test_a_group_name_can_be_reused() -> None:
    for round_ in range(2):
        found = members(2)

        def program(collective: Any, rank: int, add: int = round_) -> float:
            collective.init_collective_group(2, rank, backend="hoplite", group_name="again")
            mine = np.full(SIZE, float(rank + add))
            collective.allreduce(mine, "again")
            return float(mine[0])

        assert everywhere(found, program) == [1.0 + 2 * round_] * 2
        end(found)


def test_a_group_forms_without_a_member_that_failed_early() -> None:
    first, second, third = members(3)

    def join(rank: int) -> Callable[[Any, int], Any]:
        return lambda collective, _: collective.init_collective_group(2, rank, backend="hoplite", group_name="late")

    first.run.remote(join(1))
    # It waits for rank 0, and is killed.
    supervisor = hoplite.ray.place.supervisor()
    wait_until(lambda: ray.get(supervisor.forming.remote("late")) == [1], "rank 1 is there")
    ray.kill(first)
    wait_until(lambda: not ray.get(supervisor.forming.remote("late")), "its reservation is lost")
    joining = second.run.remote(join(0))
    ray.get([joining, third.run.remote(join(1))], timeout=RAY_SOON)

    def reduced(collective: Any, _: int) -> float:
        mine = np.ones(SIZE)
        collective.allreduce(mine, group_name="late")
        return float(mine[0])

    assert ray.get([second.run.remote(reduced), third.run.remote(reduced)], timeout=RAY_SOON) == [2, 2]
    end([second, third])


def test_a_read_only_array_is_rejected_before_others_wait(group: list[Any]) -> None:
    def given(collective: Any, rank: int) -> str:
        mine = np.ones(SIZE)
        mine.flags.writeable = False
        collective.barrier(group_name="four")
        try:
            if rank == 1:
                collective.allreduce(mine, group_name="four")
            return "done"
        except hoplite.InvalidArgument as error:
            return str(error)

    results = ray.get([member.run.remote(given) for member in group], timeout=RAY_SOON)
    assert "read-only" in results[1]
    assert "numpy.array" in results[1]
