"""The tensor transport "hoplite" between actors: inputs of a reduce, failed actors and aborted transfers."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from rays import RAY_SOON, objects, on, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180), pytest.mark.usefixtures("peaceful")]

SIZE = 300_000


def arrays() -> tuple[Any, Any]:
    """Returns the classes of a source and a sink of arrays."""

    @ray.remote
    class Source:
        @ray.method(tensor_transport="hoplite_numpy")
        def make(self, number: int) -> Any:
            return {"big": np.full(SIZE, float(number)), "small": [np.arange(number)], "note": "as it is"}

        @ray.method(tensor_transport="hoplite_numpy")
        def one(self, number: int) -> Any:
            return np.full(SIZE, float(number))

    @ray.remote
    class Sink:
        def take(self, value: Any) -> tuple[float, list[int], str]:
            return float(value["big"].sum()), value["small"][0].tolist(), value["note"]

    return Source, Sink


def test_pending_results_of_actors_can_be_inputs_of_a_reduce() -> None:
    source_class, _ = arrays()
    sources = [source_class.options(**on(number)).remote() for number in range(3)]
    refs = [source.one.remote(10**number) for number, source in enumerate(sources)]
    total = hoplite.ray.reduce(refs)
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 111).all()
    # No input was put twice.
    assert set(objects()) <= {f"ray/{ref.hex()}/0" for ref in refs} | {str(hoplite.ray.ref(total))}
    for source in sources:
        ray.kill(source)


# Without torch, Ray's thread that aborts failed transfers ends when it imports torch.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensors_are_deleted_with_their_actor() -> None:
    source_class, sink_class = arrays()
    source, sink = source_class.options(**on(1)).remote(), sink_class.options(**on(2)).remote()
    ref = source.make.remote(2)
    assert ray.get(sink.take.remote(ref), timeout=RAY_SOON)[1] == [0, 1]
    ray.kill(source)
    wait_until(lambda: not objects(), "the tensors are gone")
    # A transfer that can no longer succeed fails, and the receiver survives.
    with pytest.raises(ray.exceptions.RayError):
        ray.get(sink.take.remote(ref), timeout=RAY_SOON)
    plain = {"big": np.zeros(1), "small": [np.arange(1)], "note": "not by Hoplite"}
    assert ray.get(sink.take.remote(plain), timeout=RAY_SOON)[1] == [0]
    # Ray sometimes starts no further transfer to that actor.
    other, fresh = source_class.options(**on(1)).remote(), sink_class.options(**on(2)).remote()
    again = other.make.remote(3)
    assert ray.get(fresh.take.remote(again), timeout=RAY_SOON)[1] == [0, 1, 2]
    for actor in (other, sink, fresh):
        ray.kill(actor)
    del again


def test_an_aborted_transfer_ends_and_the_actor_keeps_working() -> None:
    """As Ray does if a transfer fails or takes too long."""
    from ray.experimental.rdt.tensor_transport_manager import CommunicatorMetadata

    from hoplite.ray.transport import HopliteMetadata, HopliteTransport

    @ray.remote(max_concurrency=2)
    class Receiver:
        def __init__(self) -> None:
            self.transport = HopliteTransport()
            self.never = HopliteMetadata(tensor_meta=[], tensor_device="cpu", names=["ray/never/0"])

        def receive(self) -> str:
            try:
                self.transport.recv_multiple_tensors("never", self.never, CommunicatorMetadata())
            except hoplite.HopliteError as error:
                return str(error)
            return "it came"

        def abort(self) -> int:
            under_way = len(self.transport._receiving)
            self.transport.abort_transport("never", CommunicatorMetadata())
            return under_way

    receiver = Receiver.options(**on(1)).remote()
    waiting = receiver.receive.remote()
    wait_until(lambda: ray.get(receiver.abort.remote(), timeout=RAY_SOON), "the transfer is under way")
    assert "aborted" in ray.get(waiting, timeout=RAY_SOON)
    ray.kill(receiver)


def test_a_first_transfer_arrives_however_ray_orders_its_threads() -> None:
    """In an actor, Ray creates its manager of transfers without a lock; with two of them, a transfer is lost."""
    source_class, _ = arrays()

    @ray.remote
    class Sink:
        def __init__(self) -> None:
            import ray.experimental

            self.created = 0
            both = threading.Barrier(2)
            sink = self

            class Slow(ray.experimental.RDTManager):  # type: ignore[misc, name-defined]
                def __init__(self) -> None:
                    super().__init__()
                    sink.created += 1
                    # The transfer and the method that waits for it each create one, if they can.
                    with contextlib.suppress(threading.BrokenBarrierError):
                        both.wait(timeout=2)

            ray.experimental.RDTManager = Slow

        def take(self, value: Any) -> tuple[float, int]:
            return float(value[0]), self.created

    source, sink = source_class.options(**on(1)).remote(), Sink.options(**on(2)).remote()
    ref = source.one.remote(5)
    assert ray.get(sink.take.remote(ref), timeout=RAY_SOON) == (5.0, 1)
    for actor in (source, sink):
        ray.kill(actor)
