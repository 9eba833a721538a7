"""Pending results of reduces: they block nothing else, and processes end cleanly."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from rays import RAY_SOON, objects, on, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

SIZE = 300_000


@ray.remote(max_retries=0)
def fails() -> Any:
    raise ValueError("no gradient today")


@ray.remote
def made(number: int) -> Any:
    return np.full(SIZE, float(number))


@pytest.mark.usefixtures("peaceful")
def test_a_result_is_ready_when_it_is_complete() -> None:
    total = hoplite.ray.reduce(["ready/1", "ready/2"])
    first = hoplite.ray.put(np.full(SIZE, 1.0), name="ready/1")
    assert ray.wait([total], timeout=0.5) == ([], [total])
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(total, timeout=0.1)
    with pytest.raises(hoplite.Timeout, match="ready/2"):
        hoplite.ray.get(total, timeout=0.1)
    second = hoplite.ray.put(np.full(SIZE, 2.0), name="ready/2")
    assert ray.wait([total], timeout=RAY_SOON) == ([total], [])
    assert (ray.get(total) == 3).all()
    del first, second


@pytest.mark.usefixtures("peaceful")
def test_a_failed_result_has_the_error_of_its_input() -> None:
    total = hoplite.ray.reduce([made.remote(1), fails.remote()])
    with pytest.raises(hoplite.ObjectLost, match=r"input 1: ValueError: no gradient today"):
        ray.get(total, timeout=RAY_SOON)
    with pytest.raises(hoplite.ObjectLost, match="no gradient today"):
        hoplite.ray.get(total, timeout=RAY_SOON)

    @ray.remote
    def uses(value: Any) -> float:
        return float(value[0])

    with pytest.raises(hoplite.ObjectLost, match="no gradient today"):
        ray.get(uses.options(**on(1)).remote(total), timeout=RAY_SOON)
    assert ray.get(ray.put(1), timeout=RAY_SOON) == 1


@pytest.mark.usefixtures("peaceful")
def test_one_thread_can_put_an_input_while_another_waits() -> None:
    total = hoplite.ray.reduce(["threads/1"])
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.append(ray.get(total, timeout=RAY_SOON)))
    waiting.start()
    # This would need the lock of a thread that is unpickling.
    gradient = ray.get(made.remote(5), timeout=RAY_SOON)
    ref = hoplite.ray.put(gradient, name="threads/1")
    waiting.join()
    assert (got[0] == 5).all()
    del ref


@pytest.mark.usefixtures("peaceful")
def test_the_event_loop_of_an_actor_runs_while_it_awaits_a_result() -> None:
    @ray.remote
    class Server:
        async def sum(self, refs: list[Any]) -> float:
            return float((await refs[0])[0])

        async def give(self) -> None:
            self.ref = hoplite.ray.put(np.full(SIZE, 7.0), name="loop/1")
            await asyncio.sleep(0)

    server = Server.options(**on(1)).remote()
    pending = server.sum.remote([hoplite.ray.reduce(["loop/1"])])
    ray.get(server.give.remote(), timeout=RAY_SOON)
    assert ray.get(pending, timeout=RAY_SOON) == 7
    ray.kill(server)


@pytest.mark.usefixtures("peaceful")
def test_tasks_that_wait_for_a_result_need_no_cpu() -> None:
    """The node has two CPUs. Three consumers must not hold them while the gradients need one."""
    place = {"resources": {"r1": 0.001}, "num_cpus": 1}

    @ray.remote
    def prepared() -> Any:
        return np.ones(SIZE)

    @ray.remote
    def gradient(value: Any, number: int) -> Any:
        return value * number

    @ray.remote
    def uses(value: Any) -> float:
        return float(value[0])

    value = prepared.options(**place).remote()
    total = hoplite.ray.reduce([gradient.options(**place).remote(value, number) for number in range(1, 5)])
    used = [uses.options(**place).remote(total) for _ in range(3)]
    assert ray.get(used, timeout=RAY_SOON) == [10, 10, 10]


@pytest.mark.usefixtures("peaceful")
def test_the_name_of_a_failed_reduce_can_be_reused() -> None:
    """The end of the first reduce must not affect the second one, although both have one name."""
    total = hoplite.ray.reduce([made.remote(1), fails.remote()], name="again/1")
    with pytest.raises(hoplite.ObjectLost, match="no gradient today"):
        ray.get(total, timeout=RAY_SOON)
    gate = "again/go"

    @ray.remote
    def late(gate: str) -> Any:
        hoplite.ray.client().get(gate)
        return np.full(SIZE, 4.0)

    total = hoplite.ray.reduce([made.remote(2), late.options(**on(1)).remote(gate)], name="again/1")
    passing = hoplite.ray.put(np.zeros(SIZE))
    text = str(hoplite.ray.ref(passing))
    del passing
    wait_until(lambda: text not in objects(), "the thread has looked after what was dropped")
    opened = hoplite.ray.put(1, name=gate)
    assert (ray.get(total, timeout=RAY_SOON) == 6).all()
    del opened


@pytest.mark.usefixtures("peaceful")
def test_the_inputs_of_a_named_reduce_are_deleted_however_it_ends() -> None:
    def given() -> list[Any]:
        return [hoplite.ray.put(np.full(SIZE, 1.0)), "ended/never"]

    late = hoplite.ray.reduce(given(), name="ended/1", timeout=0.2)
    with pytest.raises(hoplite.Timeout, match="ended/never"):
        ray.get(late, timeout=RAY_SOON)
    deleted = hoplite.ray.reduce(given(), name="ended/2")
    hoplite.ray.client().delete("ended/2")
    # The keeper may request it after its end.
    with pytest.raises((hoplite.ObjectDeleted, hoplite.ObjectLost)):
        ray.get(deleted, timeout=RAY_SOON)
    dropped = hoplite.ray.reduce(given(), name="ended/3")
    del dropped
    wait_until(lambda: not objects(), "the inputs are gone")
    again = hoplite.ray.put(np.ones(5), name="ended/2")
    assert ray.get(again, timeout=RAY_SOON).sum() == 5
    del again, late, deleted


PENDING = """
    import atexit
    import os
    import sys

    atexit.register(lambda: print("the end", flush=True))

    import numpy as np
    import ray
    import hoplite.ray

    atexit.register(lambda: print("later handler", flush=True))

    @ray.remote
    def never():
        import time
        time.sleep(3600)

    ray.init(address=sys.argv[1], log_to_driver=False, namespace="others")
    kept = [hoplite.ray.reduce([never.options(num_cpus=0).remote(), "pending/1"]) for _ in range(20)]
    given = hoplite.ray.put(np.ones(10))
    for _ in range(int(sys.argv[3])):
        hoplite.ray.put(np.ones(10))
    if sys.argv[2] == "shutdown":
        ray.shutdown()
        print("goes on", flush=True)
    elif sys.argv[2] == "again":
        ray.shutdown()
        ray.init(address=sys.argv[1], log_to_driver=False, namespace="others")
        assert ray.get(hoplite.ray.put(b"second"), timeout=60) == b"second"
        kept = [hoplite.ray.reduce(["pending/2"])]
"""


@pytest.mark.parametrize(("end", "puts"), [("exit", "50"), ("shutdown", "0"), ("again", "50")])
def test_a_process_with_pending_reduces_ends_cleanly(peaceful: Any, end: str, puts: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PENDING), peaceful.address, end, puts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-3:-1] == ["later handler", "the end"], done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("peaceful")
def test_results_are_deleted_as_soon_as_they_are_dropped() -> None:
    refs = [hoplite.ray.reduce([hoplite.ray.put(np.full(1000, float(number)))]) for number in range(200)]
    assert [float(value[0]) for value in ray.get(refs, timeout=RAY_SOON)] == list(range(200))
    wait_until(lambda: len(objects()) == 200, "the inputs are gone")
    first = refs[:100]
    del refs
    wait_until(lambda: len(objects()) == 100, "half of the results are gone")
    # The store never holds more than one unreferenced object, so a small one suffices.
    size = 8 << 20
    for _ in range(100):
        hoplite.ray.put(np.empty(size, "uint8"), timeout=RAY_SOON)
    del first


@pytest.mark.usefixtures("peaceful")
def test_methods_that_return_not_exactly_one_tensor_are_lost_inputs() -> None:
    hoplite.ray.register()

    @ray.remote
    class Worker:
        @ray.method(tensor_transport="hoplite_numpy")
        def gives(self, kind: str) -> Any:
            one = np.full(SIZE, 3.0)
            return {"none": None, "number": 5, "two": {"a": one, "b": one + 1}, "one": one}[kind]

    worker = Worker.options(**on(1)).remote()
    for kind in ("none", "number", "two"):
        refs = [worker.gives.remote("one"), worker.gives.remote(kind)]
        total = hoplite.ray.reduce(refs)
        with pytest.raises(hoplite.ObjectLost, match="input 1: its method returned no tensor, or several"):
            ray.get(total, timeout=RAY_SOON)
        enough = hoplite.ray.reduce(refs, count=1)
        assert ray.get(enough, timeout=RAY_SOON)[0] == 3
        assert hoplite.ray.inputs(enough) == [0]
    del refs, total, enough
    ray.kill(worker)


@pytest.mark.usefixtures("peaceful")
def test_object_refs_inside_of_values_are_counted_and_usable() -> None:
    inner = ray.put("inner")
    ours = hoplite.ray.put(np.full(SIZE, 4.0))
    outer = hoplite.ray.put({"ref": inner, "ours": [ours], "array": np.arange(5)})
    text = str(hoplite.ray.ref(ours))
    del inner, ours

    @ray.remote
    def opens(value: Any) -> tuple[str, float, int]:
        return ray.get(value["ref"]), float(ray.get(value["ours"][0])[0]), int(value["array"].sum())

    assert ray.get(opens.options(**on(2)).remote(outer), timeout=RAY_SOON) == ("inner", 4.0, 10)
    assert ray.get(hoplite.ray.get(outer, timeout=RAY_SOON)["ref"]) == "inner"
    assert text in objects()
    del outer
    wait_until(lambda: not objects(), "what was inside is gone with the value")
    named = hoplite.ray.put([ray.put(1)], name="inside/1")
    with pytest.raises(hoplite.HopliteError, match="get it by that ObjectRef, not by its name"):
        hoplite.ray.get("inside/1", timeout=RAY_SOON)
    del named


def test_classes_of_the_main_script_and_actors_can_be_put(peaceful: Any) -> None:
    program = """
        import dataclasses
        import sys
        import ray
        import hoplite.ray

        import numpy as np

        @dataclasses.dataclass
        class Sample:
            number: int

        class Named(np.ndarray):
            pass

        @ray.remote
        class Counter:
            def next(self):
                return 5

        @ray.remote(num_cpus=0)
        def reads(sample):
            assert type(sample[2]).__name__ == "Named"
            return sample[0].number + ray.get(sample[1].next.remote()) + int(sample[2].sum())

        ray.init(address=sys.argv[1], log_to_driver=False)
        counter = Counter.options(num_cpus=0).remote()
        print(ray.get(reads.remote(hoplite.ray.put([Sample(34), counter, np.arange(3).view(Named)])), timeout=60))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), peaceful.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "42", done.stderr


@pytest.mark.usefixtures("peaceful")
def test_arguments_of_the_wrong_type_are_rejected() -> None:
    no_ref: list[Any] = [1, "x/1", None]
    for wrong in no_ref:
        with pytest.raises(hoplite.InvalidArgument, match="takes an ObjectRef"):
            hoplite.ray.ref(wrong)
    no_list: list[Any] = ["abc", b"abc", ray.put(1), hoplite.Ref("a/1")]
    for wrong in no_list:
        with pytest.raises(hoplite.InvalidArgument, match="takes a list of inputs"):
            hoplite.ray.reduce(wrong)
    with pytest.raises(hoplite.InvalidArgument, match="can't be pickled"):
        hoplite.ray.put(threading.Lock())
