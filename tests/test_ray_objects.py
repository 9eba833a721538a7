"""ObjectRefs whose values Hoplite transfers: as arguments, results, nested, by `ray.get`; and their deletion."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from rays import RAY_SOON, node_id, objects, on, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

MIB = 1 << 20


def array(number: int, size: int = MIB) -> Any:
    """Returns an array whose bytes identify it."""
    return np.arange(size, dtype="int64") + number


def test_ray_get_returns_the_object_on_every_node() -> None:
    ref = hoplite.ray.put(array(1))

    @ray.remote
    def total(value: Any) -> int:
        assert not value.flags.writeable
        return int(value.sum())

    expected = int(array(1).sum())
    assert int(ray.get(ref).sum()) == expected
    assert ray.get([total.options(**on(number)).remote(ref) for number in range(3)], timeout=RAY_SOON) == [expected] * 3
    # Ray has no copy: it transferred only the ref.
    assert len(objects()) == 1
    assert objects()[str(hoplite.ray.ref(ref))] == 3


def test_refs_can_be_nested_and_returned() -> None:
    @ray.remote
    def make(number: int) -> Any:
        return {"deep": [hoplite.ray.put(array(number))], "plain": hoplite.Ref("by-name/1")}

    @ray.remote
    class Holder:
        def take(self, given: dict[str, Any]) -> None:
            self.given = given

        def first(self) -> int:
            return int(ray.get(self.given["deep"][0])[0])

        def plain(self) -> str:
            return str(self.given["plain"])

    # Held by an actor alone, not by the task that put it nor by the driver.
    holder = Holder.options(**on(2)).remote()
    maker = make.options(**on(1)).remote(7)
    ray.get(holder.take.remote(ray.get(maker)), timeout=RAY_SOON)
    del maker
    gc.collect()
    assert ray.get(holder.first.remote(), timeout=RAY_SOON) == 7
    assert ray.get(holder.plain.remote()) == "by-name/1"
    ray.kill(holder)


def test_an_object_is_deleted_with_its_last_ray_reference() -> None:
    ref = hoplite.ray.put(array(1))
    text = str(hoplite.ray.ref(ref))

    @ray.remote
    class Keeper:
        def keep(self, given: list[Any]) -> None:
            self.given = given

        def drop(self) -> None:
            self.given = []

    keeper = Keeper.options(**on(1)).remote()
    ray.get(keeper.keep.remote([ref]), timeout=RAY_SOON)
    view = ray.get(ref)
    del ref
    gc.collect()
    # The actor's reference keeps the object, whenever the reference-counting thread checks.
    kept = hoplite.ray.put(array(2))
    del kept
    gc.collect()
    wait_until(lambda: list(objects()) == [text], "only the kept object is there")
    ray.get(keeper.drop.remote())
    wait_until(lambda: not objects(), "the object is gone")
    assert int(view[5]) == 6
    ray.kill(keeper)


def test_an_argument_is_kept_by_the_task_that_waits_for_it() -> None:
    """The driver drops its ref while the task waits for another argument."""

    @ray.remote
    class Gate:
        def __init__(self) -> None:
            self.is_open = False

        def open(self) -> None:
            self.is_open = True

        def look(self) -> bool:
            return self.is_open

    @ray.remote
    def when_open(gate: Any) -> int:
        while not ray.get(gate.look.remote()):
            continue
        return 1

    @ray.remote
    def total(value: Any, after: int) -> int:
        return int(value[0]) + after

    gate = Gate.options(**on(1)).remote()
    answer = total.options(**on(2)).remote(hoplite.ray.put(array(41)), when_open.options(**on(1)).remote(gate))
    gc.collect()
    # An unreferenced object is deleted in the meantime, so the reference-counting thread has run.
    passing = hoplite.ray.put(array(3))
    text = str(hoplite.ray.ref(passing))
    del passing
    gc.collect()
    wait_until(lambda: text not in objects(), "the other object is gone")
    ray.get(gate.open.remote())
    assert ray.get(answer, timeout=RAY_SOON) == 42
    ray.kill(gate)
    del answer


def test_an_object_is_deleted_with_the_actor_that_put_it() -> None:
    """As results of `ray.put` are lost with their owner."""

    @ray.remote
    class Maker:
        def make(self) -> list[Any]:
            return [hoplite.ray.put(array(1))]

    maker = Maker.options(**on(1)).remote()
    (ref,) = ray.get(maker.make.remote(), timeout=RAY_SOON)
    assert int(ray.get(ref)[0]) == 1
    ray.kill(maker)
    wait_until(lambda: not objects(), "the object is gone")
    with pytest.raises((hoplite.ObjectLost, hoplite.ObjectDeleted)):
        hoplite.ray.get(ref, timeout=RAY_SOON)


def test_get_takes_mixed_kinds_of_refs() -> None:
    ours, theirs = hoplite.ray.put(array(1)), ray.put(array(2))
    hp = hoplite.ray.client()
    plain, named = hp.put(array(3)), hp.put(array(4), name="kinds/1")
    values = hoplite.ray.get([ours, theirs, plain, "kinds/1"], timeout=RAY_SOON)
    assert [int(value[0]) for value in values] == [1, 2, 3, 4]
    assert int(hoplite.ray.get(ours, timeout=RAY_SOON)[0]) == 1
    assert hoplite.ray.ref(theirs) is None
    hp.delete([plain, named])
    with pytest.raises(hoplite.ObjectDeleted):
        hoplite.ray.get(plain, timeout=RAY_SOON)
    with pytest.raises(hoplite.Timeout):
        hoplite.ray.get("never/put", timeout=0.1)


def test_wait_returns_ready_and_remaining_refs() -> None:
    @ray.remote
    def later(gate: str) -> int:
        return int(hoplite.ray.client().get(gate)[0])

    ours, theirs = hoplite.ray.put(array(1)), ray.put(array(2))
    slow = later.options(**on(1)).remote("gate/1")
    given = [slow, ours, "never/put", theirs]
    came, rest = hoplite.ray.wait(given, num_returns=2, timeout=RAY_SOON)
    assert set(came) == {ours, theirs}
    assert rest == [slow, "never/put"]
    assert hoplite.ray.wait(given, num_returns=3, timeout=0.2)[1] == rest
    gate = hoplite.ray.put(array(5), name="gate/1")
    came, rest = hoplite.ray.wait([slow, "never/put"], timeout=RAY_SOON)
    assert came == [slow]
    assert ray.get(slow) == 5
    del gate


def test_init_in_a_worker_finds_the_node_of_its_raylet() -> None:
    """Three raylets of this host have three nodes. Without an address each worker finds its own."""

    @ray.remote
    def where() -> tuple[str, str]:
        with hoplite.init() as hp:
            return ray.get_runtime_context().get_node_id(), hp.status()["id"]

    nodes = hoplite.ray.status()["nodes"]
    found = ray.get([where.options(**on(number)).remote() for number in range(3)], timeout=RAY_SOON)
    assert [node for node, _ in found] == [node_id(number) for number in range(3)]
    assert [nodes[node]["id"] for node, _ in found] == [own for _, own in found]
    assert len({own for _, own in found}) == 3


def test_put_takes_other_values_than_arrays() -> None:
    for value in (b"bytes", {"a": [1, np.ones(3)]}, "text", None, 3.5):
        got = ray.get(hoplite.ray.put(value))
        if isinstance(value, dict):
            assert got["a"][1].tolist() == [1, 1, 1]
        else:
            assert (bytes(got) if isinstance(value, bytes) else got) == value


def test_the_error_of_a_deleted_object_names_it() -> None:
    ref = hoplite.ray.put(array(1))
    text = str(hoplite.ray.ref(ref))
    hoplite.ray.client().delete(text)
    with pytest.raises(ray.exceptions.RaySystemError, match=text):
        ray.get(ref)
    with pytest.raises(hoplite.ObjectDeleted, match=text):
        hoplite.ray.get(ref)
