"""Slots: refs that any client of the cluster may fill, each once, for answers to the client that made them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from hoplite.capabilities import grant
from programs import kill, line, started
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("size", [100, 50_000], ids=["small", "large"])

# Makes slots, and waits for nothing.
CALLER = """
import sys, time
import hoplite
hp = hoplite.connect(sys.argv[1])
for slot in hp.slots(int(sys.argv[2])):
    print(slot, flush=True)
time.sleep(600)
"""

# Begins to fill a slot, and never completes it.
FILLER = """
import sys, time
import hoplite
hp = hoplite.connect(sys.argv[1])
buffer = hp.create(50_000, "float32", name=sys.argv[2])
print(buffer.ref, flush=True)
time.sleep(600)
"""


@SIZES
def test_any_client_fills_a_slot_for_its_readers(crew: Crew, size: int) -> None:
    slots = crew.getter.slots(3)
    assert len(set(slots)) == 3
    waiting = [Later(crew.getter.get, slot, timeout=SOON) for slot in slots]
    assert not waiting[0].done(within=0.05)
    with crew.another() as other:
        for client, slot in zip((crew.putter, crew.getter, other), slots, strict=True):
            assert client.put(numbers(size), name=slot) == slot
        for each in waiting:
            same(each.result(), numbers(size))
    for slot in slots[:2]:
        same(crew.reducer.get(slot, timeout=SOON), numbers(size))


@SIZES
def test_a_buffer_fills_a_slot(crew: Crew, size: int) -> None:
    (slot,) = crew.getter.slots(1)
    crew.putter.create(size, name=slot).discard()
    with crew.putter.create(size, name=str(slot)) as buffer:
        assert buffer.ref == slot
        buffer[...] = 5
    same(crew.getter.get(slot, timeout=SOON), np.full(size, 5, "float32"))


@SIZES
def test_one_of_many_puts_fills_a_slot(crew: Crew, size: int) -> None:
    for _ in range(5):
        (slot,) = crew.getter.slots(1)
        won: list[int] = []

        def fill(number: int, slot: hoplite.Ref = slot, won: list[int] = won) -> None:
            client = (crew.putter, crew.getter, crew.reducer)[number % 3]
            try:
                client.put(np.full(size, number), name=slot)
            except hoplite.NameTaken:
                return
            won.append(number)

        threads = [threading.Thread(target=fill, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        same(crew.getter.get(slot, timeout=SOON), np.full(size, won[0]))
        assert crew.putter.put(np.ones(size), name=slot, exist_ok=True) == slot


def test_unfilled_slots_are_lost_with_their_client(crew: Crew) -> None:
    with crew.another() as other:
        empty, full = other.slots(2)
        waiting = Later(crew.getter.get, empty, timeout=SOON)
        assert not waiting.done(within=0.05)
        crew.putter.put(b"kept", name=full)
    with pytest.raises(hoplite.ObjectLost, match="reserved it and was closed before the put"):
        waiting.result()
    for client in (crew.putter, crew.getter):
        with pytest.raises(hoplite.ObjectLost):
            client.put(b"late", name=empty)
        with pytest.raises(hoplite.ObjectLost):
            client.get(empty, timeout=SOON)
        assert client.get(full, timeout=SOON) == b"kept"


def test_a_deleted_slot_is_not_filled(crew: Crew) -> None:
    (slot,) = crew.getter.slots(1)
    waiting = Later(crew.reducer.get, slot, timeout=SOON)
    assert not waiting.done(within=0.05)
    crew.putter.delete(slot)
    with pytest.raises(hoplite.ObjectDeleted):
        waiting.result()
    for client in (crew.putter, crew.getter):
        with pytest.raises(hoplite.ObjectDeleted):
            client.put(b"late", name=slot)


def test_a_reduce_folds_the_first_slots_that_are_filled(crew: Crew) -> None:
    slots = crew.reducer.slots(5)
    total = crew.reducer.reduce(slots, count=3)
    for number, slot in ((4, slots[4]), (0, slots[0]), (2, slots[2])):
        crew.putter.put(np.full(50_000, float(number)), name=slot)
    same(crew.getter.get(total, timeout=SOON), np.full(50_000, 6.0))
    assert set(total.inputs(timeout=SOON)) == {slots[0], slots[2], slots[4]}
    with pytest.raises(hoplite.InvalidArgument, match="is a slot"):
        crew.reducer.reduce([slots[0]], name=slots[1])


@pytest.mark.parametrize("count", [-1, 65_537, 1.5, "2"])
def test_a_wrong_number_of_slots_is_refused(crew: Crew, count: object) -> None:
    assert crew.getter.slots(0) == []
    with pytest.raises(hoplite.InvalidArgument):
        crew.getter.slots(count)  # type: ignore[arg-type]


def test_a_ref_that_is_no_slot_takes_only_the_put_of_its_client(crew: Crew) -> None:
    ref = crew.getter.reserve()
    with crew.another() as other, pytest.raises(hoplite.InvalidArgument, match="not reserved for this client"):
        other.put(b"mine", name=ref)


def test_a_client_with_a_prefix_neither_makes_nor_fills_slots() -> None:
    token = hoplite.new_token()
    with Node(listen="127.0.0.1:0", token=token) as node, node.client() as full:
        (slot,) = full.slots(1)
        mine = hoplite.connect(node.socket, capability=grant(token, "team-a/"))
        with mine, pytest.raises(hoplite.NotAllowed, match='agree on names that begin with "team-a/"'):
            mine.slots(1)
        filler = hoplite.connect(node.socket, capability=grant(token, "team-a/"))
        with filler, pytest.raises(hoplite.NotAllowed, match="put of"):
            filler.put(b"answer", name=slot)
        writer = hoplite.connect(node.socket, capability=grant(token, "", verbs=["put"]))
        with writer:
            writer.put(b"answer", name=slot)
        assert full.get(slot, timeout=SOON) == b"answer"


@pytest.mark.faults("kills a process that has made slots")
def test_a_killed_caller_loses_its_slots_alone() -> None:
    with Node(listen="127.0.0.1:0") as node, node.client() as hp:
        with started(CALLER, node.socket, "2") as caller:
            empty, full = line(caller), line(caller)
            waiting = Later(hp.get, empty, timeout=SOON)
            hp.put(b"kept", name=full)
            kill(caller)
            with pytest.raises(hoplite.ObjectLost, match=rf"process {caller.pid} on node \w+"):
                waiting.result()
        with pytest.raises(hoplite.ObjectLost):
            hp.put(b"late", name=empty)
        assert hp.get(full, timeout=SOON) == b"kept"


@pytest.mark.faults("kills the node of a caller")
def test_slots_are_lost_with_the_node_of_their_client() -> None:
    with (
        Node(listen="127.0.0.1:0") as safe,
        testing.node_process("--join", safe.address) as doomed,
        safe.client() as hp,
    ):
        eventually(lambda: len(hp.status()["members"]) == 2)
        with started(CALLER, doomed.socket, "2") as caller:
            slots = [line(caller) for _ in range(2)]
            waiting = Later(hp.get, slots[0], timeout=SOON)
            buffer = hp.create(50_000, name=slots[1])
            assert not waiting.done(within=0.05)
            doomed.process.kill()
            with pytest.raises(hoplite.ObjectLost):
                waiting.result()
        eventually(lambda: len(hp.status()["members"]) == 1)
        with pytest.raises(hoplite.ObjectLost):
            hp.put(b"late", name=slots[0])
        with pytest.raises(hoplite.ObjectLost):
            buffer.seal()


@pytest.mark.faults("kills a process, or its node, that fills a slot")
@pytest.mark.parametrize("victim", ["process", "node"])
def test_another_client_fills_the_slot_of_a_killed_filler(victim: str) -> None:
    with (
        Node(listen="127.0.0.1:0") as node,
        testing.node_process("--join", node.address) as other,
        node.client() as hp,
    ):
        eventually(lambda: len(hp.status()["members"]) == 2)
        (slot,) = hp.slots(1)
        waiting = Later(hp.get, slot, timeout=SOON)
        with started(FILLER, other.socket, str(slot)) as filler:
            assert line(filler) == str(slot)
            with pytest.raises(hoplite.NameTaken):
                hp.put(b"mine", name=slot)
            if victim == "process":
                kill(filler)
            else:
                other.process.kill()

            def fills() -> bool:
                try:
                    hp.put(b"mine", name=slot)
                except hoplite.NameTaken:
                    return False
                return True

            eventually(fills)
        assert waiting.result() == b"mine"
