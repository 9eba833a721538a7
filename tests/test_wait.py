"""Wait: which of several objects are available, in the order of their arrival."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Ref, testing
from support import SOON, Later, eventually, numbers

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

SMALL, LARGE = 10, 50_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


def texts(refs: list[Ref]) -> list[str]:
    return [str(ref) for ref in refs]


@SIZES
def test_all_available_refs_are_ready(crew: Crew, size: int) -> None:
    refs = [crew.clients[seed % 3].put(numbers(size, seed=seed)) for seed in range(5)]
    ready, rest = crew.getter.wait(refs, timeout=SOON)
    assert set(ready) == set(refs)
    assert len(ready) == 5
    assert rest == []
    assert all(isinstance(ref, Ref) for ref in ready)


@SIZES
def test_ready_refs_are_in_the_order_of_their_arrival(crew: Crew, size: int) -> None:
    names = [crew.name(number) for number in range(4)]
    wait = Later(crew.getter.wait, names, 3, timeout=SOON)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    for number in (3, 0, 2):
        assert not wait.done()
        crew.putter.put(numbers(size), name=names[number])
        # Wait until the getter's node has seen it.
        crew.getter.wait([names[number]], timeout=SOON)
    ready, rest = wait.result()
    assert texts(ready) == [names[3], names[0], names[2]]
    assert texts(rest) == [names[1]]


def test_exactly_count_are_ready(crew: Crew) -> None:
    refs = [crew.putter.put(numbers(SMALL)) for _ in range(6)]
    for count in range(7):
        ready, rest = crew.getter.wait(refs, count, timeout=SOON)
        assert len(ready) == count
        # The others in the given order, whether they are available or not.
        assert rest == [ref for ref in refs if ref not in ready]
    assert crew.getter.wait([], timeout=0) == ([], [])
    assert crew.getter.wait([crew.name("never")], 0) == ([], [Ref(crew.name("never"))])


def test_a_timeout_returns_the_available_refs(crew: Crew) -> None:
    ref, never = crew.putter.put(numbers(LARGE)), crew.name("never")
    begun = time.monotonic()
    ready, rest = crew.getter.wait([never, ref], timeout=0.1)
    assert time.monotonic() - begun >= 0.1
    assert (ready, texts(rest)) == ([ref], [never])
    assert crew.getter.status()["waiting"] == 0


def test_timeout_0_does_not_wait(crew: Crew) -> None:
    assert crew.putter.wait([crew.name("never")], timeout=0) == ([], [Ref(crew.name("never"))])
    ref = crew.putter.put(numbers(LARGE))
    assert crew.putter.wait([ref], timeout=0) == ([ref], [])


def test_deleted_objects_are_ready(crew: Crew) -> None:
    """Deleted before the wait, unless it is a name that can be put again, or during it: no wait is useful any more."""
    name, begun, gone = crew.name("named"), crew.name("begun"), crew.putter.put(numbers(SMALL))
    crew.putter.put(numbers(LARGE), name=name)
    crew.putter.delete([gone, name])
    ready, rest = crew.getter.wait([gone, name], count=1, timeout=SOON)
    assert (ready, rest) == ([gone], [Ref(name)])
    assert crew.getter.wait([name], timeout=0) == ([], [Ref(name)])
    buffer = crew.putter.create(LARGE, name=begun)
    wait = Later(crew.getter.wait, [begun], timeout=SOON)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    # Answered by the owner of the name, after the first: a wait unknown to it waits for the next object of this name.
    assert crew.getter.wait([begun], timeout=0) == ([], [Ref(begun)])
    crew.reducer.delete(begun)
    assert wait.result() == ([Ref(begun)], [])
    buffer.discard()


def test_an_incomplete_object_is_not_ready(crew: Crew) -> None:
    buffer = crew.putter.create(LARGE, name=crew.name())
    assert crew.getter.wait([crew.name()], timeout=0.1) == ([], [Ref(crew.name())])
    wait = Later(crew.getter.wait, [crew.name()], timeout=SOON)
    buffer[...] = numbers(LARGE)
    assert not wait.done(within=0.05)
    buffer.seal()
    assert wait.result()[1] == []


def test_a_result_is_ready_when_it_is_complete_or_failed(crew: Crew) -> None:
    total = crew.reducer.reduce([crew.name(0), crew.name(1)])
    lost = crew.reducer.reduce([crew.name("never")], timeout=0.1)
    wait = Later(crew.getter.wait, [total], timeout=SOON)
    for number in range(2):
        assert not wait.done()
        crew.putter.put(numbers(LARGE), name=crew.name(number))
    assert wait.result() == ([total], [])
    assert crew.reducer.wait([lost], timeout=SOON) == ([lost], [])


def test_duplicate_refs_and_invalid_counts_are_rejected(crew: Crew) -> None:
    ref = crew.putter.put(b"")
    for refs, count in (([ref, str(ref)], None), ([ref], 2), ([ref], -1), ([ref], 0.5), (ref, None)):
        with pytest.raises(hoplite.InvalidArgument):
            crew.getter.wait(refs, count, timeout=SOON)  # type: ignore[arg-type]


def test_many_refs_in_one_call(crew: Crew) -> None:
    """Of 10,000 refs, 30 are available and one is put in the end."""
    refs: list[Ref | str] = [crew.name(f"never/{number}") for number in range(9969)]
    there = [crew.name(f"there/{number}") for number in range(30)]
    for name in there:
        crew.putter.put(b"x", name=name)
    refs += there
    refs.insert(5000, crew.name("late"))
    ready, rest = crew.getter.wait(refs, 30, timeout=SOON)
    assert {*texts(ready)} == {*there}
    assert len(rest) == 10_000 - 30
    wait = Later(crew.getter.wait, refs, 31, timeout=SOON)
    crew.putter.put(numbers(LARGE), name=crew.name("late"))
    ready, rest = wait.result()
    assert {*texts(ready)} == {*there, crew.name("late")}
    assert len(rest) == 10_000 - 31


def test_timeout_0_finds_objects_on_other_nodes() -> None:
    """Whether the putter's node, the caller's or a third one owns the name."""
    with testing.cluster(3) as nodes:
        putter, caller = nodes[0].client(), nodes[1].client()
        for number in range(12):
            name = f"group{number}/1"
            putter.put(np.zeros(100_000), name=name)
            both = [name, f"group{number}/2"]
            # A put does not wait until a third node has processed its completion.
            eventually(lambda both=both: caller.wait(both, timeout=0)[0] == [Ref(both[0])])  # type: ignore[misc]
            assert caller.latest(f"group{number}/", timeout=0) == Ref(name)
            assert len(caller.locations(name, timeout=0)) == 1
            with pytest.raises(hoplite.Timeout, match="no client has put one"):
                caller.latest(f"group{number}/", after=1, timeout=0)
            caller.put(b"x", name=f"group{number}/3", timeout=0)
            caller.reduce([name], name=f"group{number}/4", timeout=SOON)


def test_a_wait_for_too_many_refs_names_the_limit() -> None:
    with testing.cluster(1) as nodes, pytest.raises(hoplite.InvalidArgument, match="65536"):
        nodes[0].client().wait([f"never/{number}" for number in range(65_537)], timeout=0)
