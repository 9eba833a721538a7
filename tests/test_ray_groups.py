"""Groups of `ray.util.collective` with the backend "hoplite": members that fail, leave or are missing."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray
import ray.util.collective
from ray.util.collective.types import ReduceOp

import hoplite.ray
from hoplite.ray.groups import HopliteGroup
from rays import RAY_SOON, end, everywhere, members, objects, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 100_000


@pytest.fixture
def group() -> Iterator[list[Any]]:
    """Four members of the group "four", on three Ray nodes."""
    found = members(4)
    ray.util.collective.create_collective_group(found, 4, list(range(4)), backend="hoplite", group_name="four")
    yield found
    end(found)
    ray.kill(ray.get_actor("info_four"))


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


def test_what_is_lost_before_the_death_of_a_member_is_detected_names_the_member() -> None:
    group: Any = HopliteGroup.__new__(HopliteGroup)
    group._group_name, group._gone, group._broken, group._hp = "four", None, threading.Event(), contextlib.ExitStack()
    detection = threading.Timer(0.1, group._break, [3])
    detection.start()

    def lose() -> None:
        raise hoplite.ObjectLost("its reduce ended with the client of rank 0")

    with pytest.raises(hoplite.HopliteError, match="rank 3 is gone"):
        group._guarded("allreduce", lose)
    detection.join()


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
    # The name can be used again once all members are gone.
    end([second, third])
    found = members(2)
    everywhere(found, lambda collective, rank: join(rank)(collective, rank))
    assert everywhere(found, reduced) == [2, 2]
    end(found)
