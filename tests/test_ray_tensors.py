"""The situations that the tests of Ray's own tensor transports cover, with the transport "hoplite_numpy".

docs/ray-coverage.md lists them.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from rays import RAY_SOON, objects, on, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 100_000


def workers(*places: int) -> list[Any]:
    """Starts actors with methods of the tensor transport, one on each of the given Ray nodes."""

    def total(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: total(each) for key, each in value.items()}
        if isinstance(value, list):
            return [total(each) for each in value]
        return (str(value.dtype), value.shape, float(value.sum())) if isinstance(value, np.ndarray) else value

    @ray.remote(enable_tensor_transport=True)
    class Worker:
        def __init__(self) -> None:
            hoplite.ray.register()
            self.kept = np.zeros(SIZE)
            self.tries = 0

        @ray.method(tensor_transport="hoplite_numpy")
        def echo(self, value: Any) -> Any:
            return value

        @ray.method(tensor_transport="hoplite_numpy")
        def made(self, number: int) -> Any:
            return np.full(SIZE, float(number))

        @ray.method(tensor_transport="hoplite_numpy")
        def views(self) -> Any:
            self.kept[:3] = 1, 2, 3
            return [self.kept, self.kept[:2], self.kept[1:3], self.kept[1:3]]

        @ray.method(tensor_transport="hoplite_numpy", max_task_retries=1, retry_exceptions=[ValueError])
        def made_at_try(self, number: int) -> Any:
            self.tries += 1
            if self.tries < number:
                raise ValueError("not at this try")
            return np.full(SIZE, float(self.tries))

        @ray.method(tensor_transport="hoplite_numpy")
        def raises(self) -> Any:
            raise RuntimeError("no tensor today")

        def plain(self, number: int) -> Any:
            return np.full(SIZE, float(number))

        def totals(self, *values: Any) -> list[Any]:
            return [total(value) for value in values]

        def opens(self, refs: list[Any]) -> list[Any]:
            return [total(value) for value in ray.get(refs)]

        def puts(self, count: int) -> list[Any]:
            return [ray.put(np.full(SIZE, float(each)), _tensor_transport="hoplite_numpy") for each in range(count)]

        def passes(self, refs: list[Any]) -> list[Any]:
            return refs

        def writes(self, value: Any) -> Any:
            value += 1

        def writes_kept(self) -> None:
            self.kept += 1

        def is_freed(self) -> bool:
            ray.experimental.wait_tensor_freed(self.kept, timeout=RAY_SOON)
            return True

        def waits(self, gate: str) -> None:
            hoplite.ray.client().get(gate)

        def collects(self) -> None:
            gc.collect()

        def transfers(self, source: Any, sink: Any) -> Any:
            return ray.get(sink.totals.remote(source.made.remote(5)))

    return [Worker.options(**on(place)).remote() for place in places]


def got(*refs: Any) -> list[Any]:
    """Returns the values of some ObjectRefs."""
    return list(ray.get(list(refs), timeout=RAY_SOON))


def made(number: float) -> tuple[str, tuple[int, ...], float]:
    """Returns the result of `totals` for an array of `made`."""
    return "float64", (SIZE,), SIZE * number


def ended(actors: list[Any]) -> None:
    """Waits until the objects of actors are deleted, and kills the actors."""
    gc.collect()
    wait_until(lambda: not objects(), "the tensors are gone")
    for actor in actors:
        ray.kill(actor)


@pytest.mark.filterwarnings("ignore:RDT ObjectRef")
def test_tensors_by_kind_and_by_how_their_refs_are_passed() -> None:
    """To the same actor, to another, twice in a call, in lists, forwarded, returned, and to the driver in both ways."""
    cases: list[tuple[Any, Any]] = [
        (np.arange(5.0), ("float64", (5,), 10.0)),
        ([np.ones(3, "uint8"), np.ones((2, 3), "int64"), 7], [("uint8", (3,), 3.0), ("int64", (2, 3), 6.0), 7]),
        ({"none": np.zeros(0), "more": b"1" * 1_000_000}, {"none": ("float64", (0,), 0.0), "more": b"1" * 1_000_000}),
        (np.arange(20.0)[::2], ("float64", (10,), 90.0)),
        (np.full((100, 1000), 2.0), ("float64", (100, 1000), 200_000.0)),
        ([np.array(3.0, "float32"), "text"], [("float32", (), 3.0), "text"]),
        (123, 123),
    ]
    source, sink, third = actors = workers(1, 2, 0)
    for value, total in cases:
        ref = source.echo.remote(value)
        twice = [sink.totals.remote(ref, ref), source.totals.remote(ref, ref), sink.totals.remote(ref)]
        assert got(*twice, source.totals.remote(ref)) == [[total] * 2, [total] * 2, [total], [total]]
        assert got(sink.opens.remote([ref, ref]), source.opens.remote([ref])) == [[total] * 2, [total]]
        on_and_on = third.echo.remote(sink.echo.remote(ref))
        back = source.echo.remote(ref)
        assert got(source.totals.remote(on_and_on), third.totals.remote(back, ref)) == [[total], [total] * 2]
        kept = [ray.get(ref), ray.get(ref, _use_object_store=True), ray.get(back)]
        assert got(third.totals.remote(*kept)) == [[total] * 3]
    del ref, on_and_on, back, kept, twice
    ended(actors)


def test_methods_of_the_transport_that_fail_are_retried_or_reported() -> None:
    source, sink = actors = workers(1, 2)
    for way in (sink.totals.remote, source.totals.remote, lambda ref: ref):
        with pytest.raises(RuntimeError, match="no tensor today"):
            ray.get(way(source.raises.remote()), timeout=RAY_SOON)
        assert got(sink.totals.remote(source.made.remote(2))) == [[made(2)]]
    retried = source.made_at_try.remote(2)
    assert got(sink.totals.remote(retried)) == [[made(2)]]
    assert set(objects()) >= {f"ray/{retried.hex()}/0"}
    with pytest.raises(ValueError, match="not at this try"):
        ray.get(sink.totals.remote(source.made_at_try.remote(99)), timeout=RAY_SOON)
    del retried
    ended(actors)


def test_transport_by_name_and_by_options() -> None:
    source, sink = actors = workers(1, 2)

    def invalid() -> None:
        @ray.remote
        class Wrong:
            @ray.method(tensor_transport="no_such")
            def make(self) -> Any:
                return np.ones(1)

    @ray.remote
    class Plain:
        def make(self) -> Any:
            return np.ones(1)

    plain = Plain.options(**on(1)).remote()
    for call in (
        invalid,
        lambda: source.plain.options(tensor_transport="no_such").remote(1),
        lambda: ray.put(np.ones(1), _tensor_transport="no_such"),
    ):
        with pytest.raises(ValueError, match="Invalid tensor transport"):
            call()
    with pytest.raises(ValueError, match="enable_tensor_transport"):
        plain.make.options(tensor_transport="hoplite_numpy").remote()
    ref = source.plain.options(tensor_transport="hoplite_numpy").remote(3)
    assert got(sink.totals.remote(ref)) == [[made(3)]]
    assert set(objects()) == {f"ray/{ref.hex()}/0"}
    del ref
    ended([*actors, plain])


def test_the_failure_of_a_sender_before_it_creates_a_tensor() -> None:
    """The receiver survives, and another sender replaces the failed one."""
    source, sink, fresh = workers(1, 2, 2)
    source.waits.remote("dies/never")
    ref = source.made.remote(1)
    result = sink.totals.remote(ref)
    ray.kill(source)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(result, timeout=RAY_SOON)
    assert got(sink.totals.remote(3)) == [[3]]
    (source,) = workers(1)
    ref = source.made.remote(1)
    assert got(fresh.totals.remote(ref)) == [[made(1)]]
    del ref, result
    ended([source, sink, fresh])


def test_the_failure_of_a_receiver_before_it_gets_a_tensor() -> None:
    """The sender survives, and the process that made the call gets the error."""
    source, sink, caller, fresh = workers(1, 2, 0, 2)
    sink.waits.remote("dies/never")
    # Without torch, the failure ends a thread of Ray in the calling process, so another process makes the call.
    result = caller.transfers.remote(source, sink)
    wait_until(objects, "the tensor is made")
    ray.kill(sink)
    with pytest.raises(ray.exceptions.RayError):
        ray.get(result, timeout=RAY_SOON)
    assert got(fresh.totals.remote(source.made.remote(1))) == [[made(1)]]
    del result
    # The error refers to itself, and to the ObjectRef of the tensor.
    got(caller.collects.remote())
    ended([source, caller, fresh])


def test_refs_dropped_before_their_tensor_is_created_or_received() -> None:
    source, sink = actors = workers(1, 2)
    source.waits.remote("early/1")
    result = sink.totals.remote(source.made.remote(4))
    source.made.remote(5)
    gc.collect()
    gate = hoplite.ray.put(b"open", name="early/1")
    assert got(result) == [[made(4)]]
    # A running method of the source does not block a receiver.
    ref = source.made.remote(6)
    source.waits.remote("early/2")
    assert got(sink.totals.remote(ref)) == [[made(6)]]
    second = hoplite.ray.put(b"open", name="early/2")
    del ref, result
    wait_until(lambda: set(objects()) == {"early/1", "early/2"}, "the tensors are gone")
    del gate, second
    ended(actors)


def test_refs_created_kept_and_forwarded() -> None:
    source, sink, third = actors = workers(1, 2, 0)
    refs = got(source.puts.remote(3))[0]
    again = got(third.passes.remote(refs))[0]
    del refs
    assert got(sink.opens.remote(again), source.opens.remote(again)) == [[made(0), made(1), made(2)]] * 2
    assert [float(each[0]) for each in ray.get(again)] == [0, 1, 2]
    own = ray.put(np.full(SIZE, 3.0), _tensor_transport="hoplite_numpy")
    assert got(sink.opens.remote([own])) == [[made(3)]]
    del own
    # From an actor that is neither the source nor the sink, and out of order.
    assert got(third.transfers.remote(source, sink)) == [[made(5)]]

    @ray.remote(max_concurrency=10)
    class Both:
        @ray.method(tensor_transport="hoplite_numpy")
        async def give(self, number: int) -> Any:
            return np.full(10, float(number))

        async def take(self, value: Any) -> float:
            return float(value[0])

    giver, taker = (Both.options(**on(place)).remote() for place in (1, 2))
    taken = [taker.take.remote(giver.give.remote(number)) for number in range(50)]
    assert got(*taken) == list(range(50))
    del again, taken
    ended([*actors, giver, taker])


def test_received_arrays_are_snapshots_of_the_returned_ones() -> None:
    """Overlapping views and one array twice. Later writes of the sender are not visible, and receivers can't write."""
    source, sink = actors = workers(1, 2)
    ref = source.views.remote()
    seen = [(*made(0)[:2], 6.0), *[("float64", (2,), total) for total in (3.0, 5.0, 5.0)]]
    assert got(sink.totals.remote(ref)) == [[seen]]
    ray.get(source.writes_kept.remote(), timeout=RAY_SOON)
    assert got(sink.totals.remote(ref)) == [[seen]]
    del ref
    # This is how a sender in Ray detects that its array is no longer used.
    assert got(source.is_freed.remote()) == [True]
    ref = source.made.remote(1)
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            ray.get(sink.writes.remote(ref), timeout=RAY_SOON)
    assert got(sink.totals.remote(ref)) == [[made(1)]]
    del ref
    ended(actors)


def test_targets_of_another_shape_are_rejected() -> None:
    source, *_ = actors = workers(1)
    ref = source.made.remote(7)
    ray.wait([ref], timeout=RAY_SOON)
    target = np.zeros(3)
    ray.experimental.set_target_for_ref(ref, [target])
    with pytest.raises(ValueError, match="Shape"):
        ray.get(ref)
    assert not target.any()
    del target
    assert (ray.get(ref) == 7).all()
    del ref
    ended(actors)
