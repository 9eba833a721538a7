"""`hoplite.ray.reduce` with every kind of input, and with failing inputs."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from hoplite.ray.sums import bring
from rays import RAY_SOON, objects, on, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 300_000


@ray.remote
def made(number: int, size: int = SIZE) -> Any:
    """Returns an array, which Ray stores."""
    return np.full(size, float(number))


def test_a_sum_takes_every_kind_of_input() -> None:
    @ray.remote
    def in_hoplite(number: int) -> Any:
        return hoplite.ray.put(np.full(SIZE, float(number)))

    hp = hoplite.ray.client()
    plain = hp.put(np.full(SIZE, 1.0))
    inputs = [
        plain,
        "sums/named",
        hoplite.ray.put(np.full(SIZE, 4.0)),
        made.options(**on(1)).remote(8),
        ray.put(np.full(SIZE, 16.0)),
        # An ObjectRef of an ObjectRef, from a task that puts.
        in_hoplite.options(**on(2)).remote(32),
    ]
    total = hoplite.ray.reduce(inputs, "sum")
    hp.put(np.full(SIZE, 2.0), name="sums/named")
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 63).all()
    assert sorted(hoplite.ray.inputs(total)) == list(range(6))

    @ray.remote
    def first(value: Any) -> float:
        return float(value[0])

    assert ray.get(first.options(**on(2)).remote(total), timeout=RAY_SOON) == 63
    hp.delete([plain, "sums/named"])


def test_reduce_returns_immediately_and_takes_the_first_inputs() -> None:
    @ray.remote
    def late(gate: str) -> Any:
        hoplite.ray.client().get(gate)
        return np.full(SIZE, 100.0)

    slow = late.options(**on(1)).remote("gate/sum")
    total = hoplite.ray.reduce([slow, made.options(**on(2)).remote(1), made.options(**on(1)).remote(2)], count=2)
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 3).all()
    assert sorted(hoplite.ray.inputs(total)) == [1, 2]
    gate = hoplite.ray.put(b"open", name="gate/sum")
    assert ray.get(slow, timeout=RAY_SOON)[0] == 100
    del gate


def test_temporary_inputs_exist_until_the_sum_is_complete() -> None:
    def begun() -> Any:
        return hoplite.ray.reduce([hoplite.ray.put(np.full(SIZE, 1.0)), hoplite.ray.put(np.full(SIZE, 2.0)), "late/1"])

    total = begun()
    gc.collect()
    passing = hoplite.ray.put(np.zeros(SIZE))
    text = str(hoplite.ray.ref(passing))
    del passing
    gc.collect()
    wait_until(lambda: text not in objects(), "the thread that counts has looked")
    last = hoplite.ray.put(np.full(SIZE, 4.0), name="late/1")
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 7).all()
    wait_until(lambda: set(objects()) == {str(hoplite.ray.ref(total)), "late/1"}, "the inputs are gone")
    del last


def test_objects_of_ray_are_put_on_the_node_that_holds_them() -> None:
    where = made.options(**on(2)).remote(1)
    ray.wait([where], timeout=RAY_SOON, fetch_local=False)

    @ray.remote(num_cpus=0)
    def brought(value: Any) -> str:
        bring(value, "brought/1")
        return str(ray.get_runtime_context().get_node_id())

    node = ray.get(brought.remote(where), timeout=RAY_SOON)
    hp = hoplite.ray.client()
    assert [location.node for location in hp.locations("brought/1")] == [hoplite.ray.status()["nodes"][node]["id"]]
    assert [node] == ray.experimental.get_object_locations([where])[where]["node_ids"]


def test_a_retried_task_counts_once(tmp_path: Any) -> None:
    """The task puts its gradient under its name and is killed. Ray's retry puts it again."""

    @ray.remote(max_retries=2)
    def dies_once(marker: str) -> Any:
        from pathlib import Path

        kept = hoplite.ray.put(np.full(SIZE, 5.0), name="retried/1")
        if not Path(marker).exists():
            Path(marker).touch()
            os._exit(1)
        return [kept]

    total = hoplite.ray.reduce(["retried/1", "retried/2"])
    result = dies_once.options(**on(1)).remote(str(tmp_path / "died"))
    kept = ray.get(result, timeout=RAY_SOON)
    assert (tmp_path / "died").exists()
    second = hoplite.ray.put(np.full(SIZE, 1.0), name="retried/2")
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 6).all()
    del kept, second, result


def test_lost_inputs_of_failed_tasks_are_replaced_by_others() -> None:
    @ray.remote(max_retries=0)
    def fails() -> Any:
        raise ValueError("no gradient")

    @ray.remote
    def late(gate: str) -> Any:
        hoplite.ray.client().get(gate)
        return np.full(SIZE, 4.0)

    refs = [made.remote(1), fails.options(**on(1)).remote(), late.options(**on(2)).remote("lost/go")]
    total = hoplite.ray.reduce(refs, count=2)
    wait_until(lambda: hoplite.ray.lost(total) == [1], "the failed input is known to be lost")
    hp = hoplite.ray.client()
    gate = hp.put(1, name="lost/go")
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 5).all()
    assert sorted(hoplite.ray.inputs(total)) == [0, 2]
    assert hoplite.ray.lost(total) == [1]
    hp.delete(gate)


def test_failed_methods_of_a_tensor_transport_are_lost_inputs() -> None:
    hoplite.ray.register()

    @ray.remote
    class Worker:
        @ray.method(tensor_transport="hoplite_numpy")
        def gradient(self, number: int) -> Any:
            if number < 0:
                raise ValueError("no gradient of this actor")
            if number > 100:
                os._exit(1)
            return np.full(SIZE, float(number))

    good, raises, dies = (Worker.options(**on(place)).remote() for place in (0, 1, 2))
    refs = [good.gradient.remote(3), raises.gradient.remote(-1), dies.gradient.remote(101), good.gradient.remote(4)]
    total = hoplite.ray.reduce(refs, count=2)
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 7).all()
    short = hoplite.ray.reduce(refs[:3], count=3)
    with pytest.raises(hoplite.ObjectLost, match=r"no gradient of this actor|died"):
        hoplite.ray.get(short, timeout=RAY_SOON)
    both = hoplite.ray.reduce(refs[:3], count=2)
    with pytest.raises(hoplite.ObjectLost):
        hoplite.ray.get(both, timeout=RAY_SOON)
    waiting = hoplite.ray.reduce([*refs[:3], "methods/last"], count=2)
    wait_until(lambda: hoplite.ray.lost(waiting) == [1, 2], "the failed methods are known")
    last = hoplite.ray.put(np.full(SIZE, 9.0), name="methods/last")
    assert (hoplite.ray.get(waiting, timeout=RAY_SOON) == 12).all()
    del last


def test_reduce_names_an_invalid_input() -> None:
    with pytest.raises(hoplite.InvalidArgument, match="input 1 of the reduce"):
        hoplite.ray.reduce(["a/1", np.ones(3)])
    with pytest.raises(hoplite.InvalidArgument):
        hoplite.ray.reduce([])
    with pytest.raises(hoplite.UnknownOp):
        hoplite.ray.reduce(["a/1"], "median")
    with pytest.raises(hoplite.InvalidArgument, match="not a result"):
        hoplite.ray.inputs(ray.put(1))
    with pytest.raises(hoplite.InvalidArgument, match="not a result"):
        hoplite.ray.lost(ray.put(1))
