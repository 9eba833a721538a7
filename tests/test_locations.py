"""Locations: the nodes that hold an object, now or as they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Location
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract import Crew

pytest_plugins = ["contract"]

LARGE = 50_000


def holders(crew: Crew, ref: hoplite.Ref | str) -> dict[str, bool]:
    """Returns the nodes that hold an object, and whether each has a complete copy."""
    return {place.node: place.complete for place in crew.reducer.locations(ref, timeout=SOON)}


def follow(crew: Crew, ref: hoplite.Ref | str) -> Iterator[Location]:
    return crew.getter.watch_locations(ref, timeout=SOON)


def test_an_object_that_was_not_put_has_no_locations(crew: Crew) -> None:
    assert crew.getter.locations(crew.name(), timeout=SOON) == []


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_the_putter_holds_its_object(crew: Crew, size: int) -> None:
    ref = crew.putter.put(numbers(size))
    places = crew.reducer.locations(ref, timeout=SOON)
    assert Location(crew.nodes[0].id, crew.nodes[0].address, complete=True) in places
    # A small object is at its owners too.
    assert len(places) == 1 or size == 10


def test_a_getter_holds_its_copy(crew: Crew) -> None:
    ref = crew.putter.put(numbers(LARGE))
    value = crew.getter.get(ref, timeout=SOON)
    getter = crew.getter.status()["id"]
    eventually(lambda: holders(crew, ref) == {crew.nodes[0].id: True, getter: True})
    same(value, numbers(LARGE))


def test_an_unsealed_object_is_not_complete(crew: Crew) -> None:
    buffer = crew.putter.create(LARGE, name=crew.name())
    assert holders(crew, crew.name()) == {crew.nodes[0].id: False}
    buffer[...] = numbers(LARGE)
    buffer.seal()
    eventually(lambda: holders(crew, crew.name()) == {crew.nodes[0].id: True})


def test_a_deleted_object_has_no_locations(crew: Crew) -> None:
    for size in (10, LARGE):
        ref = crew.putter.put(numbers(size))
        crew.putter.delete(ref)
        with pytest.raises(hoplite.ObjectDeleted):
            crew.getter.locations(ref, timeout=SOON)


def test_a_watcher_gets_new_and_completed_copies(crew: Crew) -> None:
    """The watch starts before the object exists, and gets an error when it is deleted."""
    watch = follow(crew, crew.name())
    first = Later(next, watch)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    buffer = crew.putter.create(LARGE, name=crew.name())
    assert first.result() == Location(crew.nodes[0].id, crew.nodes[0].address, complete=False)
    second = Later(next, watch)
    assert not second.done(within=0.05)
    buffer[...] = numbers(LARGE)
    buffer.seal()
    assert second.result() == Location(crew.nodes[0].id, crew.nodes[0].address, complete=True)
    if crew.place == "cluster":
        third = Later(next, watch)
        value = crew.reducer.get(crew.name(), timeout=SOON)
        assert third.result().node == crew.nodes[2].id
        place = third.result()
        while not place.complete:
            place = next(watch)
        assert place == Location(crew.nodes[2].id, crew.nodes[2].address, complete=True)
        same(value, numbers(LARGE))
    end = Later(next, watch)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    crew.putter.delete(crew.name())
    with pytest.raises(hoplite.ObjectDeleted):
        end.result()
    with pytest.raises(StopIteration):
        next(watch)


def test_a_watcher_starts_with_the_existing_copies(crew: Crew) -> None:
    ref = crew.putter.put(numbers(LARGE))
    assert next(follow(crew, ref)) == Location(crew.nodes[0].id, crew.nodes[0].address, complete=True)


def test_a_watcher_respects_its_timeout(crew: Crew) -> None:
    ref = crew.putter.put(numbers(LARGE))
    watch = crew.getter.watch_locations(ref, timeout=0.05)
    assert next(watch).complete
    with pytest.raises(hoplite.Timeout):
        next(watch)
    with pytest.raises(hoplite.Timeout):
        next(crew.getter.watch_locations(crew.name(), timeout=0))
    assert crew.getter.status()["waiting"] == 0
