"""Reservations: refs that are created before their objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from support import SOON, Later, numbers, same

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("size", [100, 50_000], ids=["small", "large"])
NO_OBJECT = (hoplite.ObjectLost, hoplite.ObjectDeleted)


@SIZES
def test_a_get_of_a_reservation_waits_for_its_put(crew: Crew, size: int) -> None:
    ref = crew.putter.reserve()
    waiting = Later(crew.getter.get, ref, timeout=SOON)
    assert not waiting.done(within=0.05)
    assert crew.putter.put(numbers(size), name=ref) == ref
    same(waiting.result(), numbers(size))


@SIZES
def test_a_buffer_can_have_a_reservation(crew: Crew, size: int) -> None:
    ref = crew.putter.reserve()
    with crew.putter.create(size, name=ref) as buffer:
        assert buffer.ref == ref
        buffer[...] = 5
    same(crew.getter.get(ref, timeout=SOON), np.full(size, 5, "float32"))


def test_a_reduce_takes_reservations_for_its_result_and_inputs(crew: Crew) -> None:
    inputs = [crew.putter.reserve() for _ in range(3)]
    ref = crew.reducer.reserve()
    waiting = Later(crew.getter.get, ref, timeout=SOON)
    assert crew.reducer.reduce(inputs, name=ref) == ref
    for place, reserved in enumerate(inputs):
        crew.putter.put(np.full(50_000, float(place)), name=reserved)
    same(waiting.result(), np.full(50_000, 3.0))


@SIZES
def test_a_buffer_has_its_ref_before_the_seal(crew: Crew, size: int) -> None:
    for name in (None, crew.name()):
        buffer = crew.putter.create(size, name=name)
        ref = buffer.ref
        waiting = Later(crew.getter.get, ref, timeout=SOON)
        buffer[...] = 7
        assert not waiting.done(within=0.05)
        assert buffer.seal() == ref == buffer.ref
        same(waiting.result(), np.full(size, 7, "float32"))


@pytest.mark.faults("a buffer is discarded while it is fetched")
@SIZES
def test_discarding_a_buffer_fails_its_pending_gets(crew: Crew, size: int) -> None:
    buffer = crew.putter.create(size)
    waiting = Later(crew.getter.get, buffer.ref, timeout=SOON)
    assert not waiting.done(within=0.05)
    buffer.discard()
    with pytest.raises(NO_OBJECT):
        waiting.result()
    with pytest.raises(hoplite.InvalidArgument, match="discarded"):
        _ = buffer.ref


def test_a_reservation_can_be_put_once_and_only_by_its_client(crew: Crew) -> None:
    ref = crew.putter.reserve()
    with crew.another() as other, pytest.raises(hoplite.InvalidArgument, match="not reserved for this client"):
        other.put(b"mine", name=ref)
    crew.putter.put(b"kept", name=ref)
    for value in (b"kept", numbers(50_000)):
        with pytest.raises(hoplite.InvalidArgument, match="has already been put"):
            crew.putter.put(value, name=ref)
    assert crew.getter.get(ref, timeout=SOON) == b"kept"


def test_a_reservation_is_lost_with_its_client(crew: Crew) -> None:
    """Also if a view of the client, which keeps the attachment open, still exists."""
    large = crew.putter.put(numbers(50_000))
    with crew.another() as other:
        view = other.get(large, timeout=SOON)
        ref = other.reserve()
        waiting = Later(crew.getter.get, ref, timeout=SOON)
        assert not waiting.done(within=0.05)
    with pytest.raises(hoplite.ObjectLost, match="reserved it and was closed"):
        waiting.result()
    same(view, numbers(50_000))


@pytest.mark.faults("a buffer is discarded while it is fetched")
def test_a_failed_seal_fails_pending_gets(crew: Crew) -> None:
    pinned = crew.putter.put(np.ones(128 * 1024 * 1024 - 200_000, np.uint8), timeout=SOON)
    buffer = crew.putter.create(30_000, "bytes")
    others = [crew.putter.put(bytes(30_000)) for _ in range(2)]
    waiting = Later(crew.getter.get, buffer.ref, timeout=SOON)
    assert not waiting.done(within=0.05)

    def fill() -> None:
        while True:
            others.append(crew.putter.put(bytes(30_000), timeout=0.1))

    with pytest.raises(hoplite.StoreFull):
        fill()
    with pytest.raises(hoplite.StoreFull):
        buffer.seal(timeout=0.1)
    with pytest.raises(NO_OBJECT):
        waiting.result()
    crew.putter.delete([pinned, *others])


def test_a_deleted_reservation_can_not_be_put(crew: Crew) -> None:
    ref = crew.putter.reserve()
    waiting = Later(crew.getter.get, ref, timeout=SOON)
    assert not waiting.done(within=0.05)
    crew.getter.delete(ref)
    with pytest.raises(hoplite.ObjectDeleted):
        waiting.result()
    with pytest.raises(hoplite.ObjectDeleted):
        crew.putter.put(b"late", name=ref)
