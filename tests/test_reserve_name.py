"""Reserved names: they belong to a client before their objects exist, and are lost with it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from programs import kill, line, started
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("size", [100, 50_000], ids=["small", "large"])

# Reserves names for ever.
PRODUCER = """
import sys, time
import hoplite
hp = hoplite.connect(sys.argv[1])
for name in sys.argv[2:]:
    print(hp.reserve(name=name, timeout=60), flush=True)
time.sleep(600)
"""

# Fills a buffer of a reserved name for ever.
WRITER = """
import sys, time
import hoplite
hp = hoplite.connect(sys.argv[1])
name = hp.reserve(name=sys.argv[2], timeout=60)
buffer = hp.create(50_000, "float32", name=name)
print(buffer.ref, flush=True)
time.sleep(600)
"""


@SIZES
def test_a_get_of_a_reserved_name_waits_for_its_put(crew: Crew, size: int) -> None:
    name = crew.name()
    before = Later(crew.getter.get, name, timeout=SOON)
    assert not before.done(within=0.05)
    assert crew.putter.reserve(name=name, timeout=SOON) == hoplite.Ref(name)
    assert crew.putter.reserve(name=name) == hoplite.Ref(name), "it may reserve it again"
    after = Later(crew.getter.get, name, timeout=SOON)
    assert not after.done(within=0.05)
    assert crew.putter.put(numbers(size), name=name) == hoplite.Ref(name)
    for waiting in (before, after):
        same(waiting.result(), numbers(size))


@SIZES
def test_a_buffer_can_have_a_reserved_name(crew: Crew, size: int) -> None:
    ref = crew.putter.reserve(name=crew.name())
    with crew.putter.create(size, name=ref) as buffer:
        assert buffer.ref == ref
        buffer[...] = 5
    same(crew.getter.get(ref, timeout=SOON), np.full(size, 5, "float32"))


def test_a_discarded_buffer_leaves_its_name_reserved(crew: Crew) -> None:
    ref = crew.putter.reserve(name=crew.name())
    for size in (100, 50_000):
        crew.putter.create(size, name=ref).discard()
        with crew.another() as other, pytest.raises(hoplite.NameTaken):
            other.put(b"mine", name=ref)
    crew.putter.put(b"kept", name=ref)
    assert crew.getter.get(ref, timeout=SOON) == b"kept"


def test_a_reduce_takes_reserved_names_for_its_result_and_inputs(crew: Crew) -> None:
    inputs = [crew.putter.reserve(name=crew.name(f"input/{place}")) for place in range(3)]
    ref = crew.reducer.reserve(name=crew.name())
    waiting = Later(crew.getter.get, ref, timeout=SOON)
    assert crew.reducer.reduce(inputs, name=ref) == ref
    for place, reserved in enumerate(inputs):
        crew.putter.put(np.full(50_000, float(place)), name=reserved)
    same(waiting.result(), np.full(50_000, 3.0))


def test_a_reserved_name_is_taken_until_it_is_deleted(crew: Crew) -> None:
    ref = crew.putter.reserve(name=crew.name())
    waiting = Later(crew.getter.get, ref, timeout=SOON)
    assert not waiting.done(within=0.05)
    with crew.another() as other:
        for attempt in (
            lambda: other.reserve(name=str(ref)),
            lambda: other.put(b"mine", name=ref),
            lambda: other.create(50_000, name=ref),
            lambda: other.reduce(["never/1"], name=ref),
        ):
            with pytest.raises(hoplite.NameTaken, match=r"reserved by a client .* delete it first or choose another"):
                attempt()
        crew.getter.delete(ref)
        with pytest.raises(hoplite.ObjectDeleted):
            waiting.result()
        assert other.reserve(name=str(ref)) == ref
        other.put(b"mine", name=ref)
    assert crew.getter.get(ref, timeout=SOON) == b"mine"


def test_an_existing_name_can_not_be_reserved(crew: Crew) -> None:
    ref = crew.putter.put(b"here", name=crew.name())
    for client in (crew.putter, crew.getter):
        with pytest.raises(hoplite.NameTaken, match=re.escape(str(ref))):
            client.reserve(name=str(ref))


def test_a_reserved_name_is_lost_with_its_client(crew: Crew) -> None:
    """Also if a view of the client, which keeps the attachment open, still exists."""
    large, name = crew.putter.put(numbers(50_000)), crew.name()
    with crew.another() as other:
        view = other.get(large, timeout=SOON)
        other.reserve(name=name)
        waiting = Later(crew.getter.get, name, timeout=SOON)
        assert not waiting.done(within=0.05)
    with pytest.raises(hoplite.ObjectLost, match="reserved it and was closed before the put"):
        waiting.result()
    with pytest.raises(hoplite.ObjectLost, match=re.escape(name)):
        crew.putter.get(name, timeout=SOON)
    same(view, numbers(50_000))
    # Then another may make the object.
    crew.putter.reserve(name=name)
    waiting = Later(crew.getter.get, name, timeout=SOON)
    assert not waiting.done(within=0.05)
    crew.putter.put(b"here", name=name)
    assert waiting.result() == b"here"


@pytest.mark.parametrize("name", ["", "@5c0e9f0d27a1b384.1f", "x" * 2000], ids=["empty", "generated", "long"])
def test_a_text_that_is_no_name_is_not_reserved(crew: Crew, name: str) -> None:
    with pytest.raises(hoplite.InvalidArgument):
        crew.putter.reserve(name=name)


@pytest.mark.faults("kills a process that has reserved a name")
@pytest.mark.parametrize("script", [PRODUCER, WRITER], ids=["reserved", "filling"])
def test_readers_learn_which_process_died_before_its_put(script: str) -> None:
    with testing.node_process() as node, node.client() as hp:
        early = Later(hp.get, "grad/1", timeout=SOON)
        with started(script, node.socket, "grad/1") as producer:
            assert line(producer) == "grad/1"
            with pytest.raises(hoplite.NameTaken):
                hp.put(b"mine", name="grad/1")
            total = hp.reduce(["grad/1", "grad/2"], count=1, timeout=SOON)
            waiting = Later(hp.get, "grad/1", timeout=SOON)
            assert not waiting.done(within=0.05)
            kill(producer)
            for each in (early, waiting):
                with pytest.raises(hoplite.ObjectLost, match=rf"process {producer.pid} on node \w+"):
                    each.result()
        eventually(lambda: total.lost() == [hoplite.Ref("grad/1")])
        hp.put(np.ones(4), name="grad/2")
        same(hp.get(total, timeout=SOON), np.ones(4))
        assert hp.reserve(name="grad/1") == hoplite.Ref("grad/1")
        hp.put(b"mine", name="grad/1")
        assert hp.get("grad/1", timeout=SOON) == b"mine"


@pytest.mark.faults("kills a node")
def test_a_first_k_reduce_goes_on_without_the_names_of_a_killed_node() -> None:
    names = [f"grad-{number}/1" for number in range(8)]  # of several owners
    with (
        Node(listen="127.0.0.1:0") as safe,
        testing.node_process("--join", safe.address) as doomed,
        safe.client() as hp,
    ):
        eventually(lambda: len(hp.status()["members"]) == 2)
        early = [Later(hp.get, name, timeout=SOON) for name in names]
        with started(PRODUCER, doomed.socket, *names) as producer:
            assert [line(producer) for _ in names] == names
            total = hp.reduce([*names, "mine/1", "mine/2"], count=2, timeout=SOON)
            everything = hp.reduce([*names, "mine/1"], timeout=SOON)
            hp.put(np.ones(50_000), name="mine/1")
            doomed.process.kill()
            for each in early:
                with pytest.raises(hoplite.ObjectLost, match=rf"node \w+ \({doomed.address}\), which had reserved"):
                    each.result()
        with pytest.raises(hoplite.ObjectLost, match="grad-"):
            hp.get(everything, timeout=SOON)
        hp.put(np.ones(50_000), name="mine/2")
        same(hp.get(total, timeout=SOON), np.full(50_000, 2.0))
        for name in names:
            with pytest.raises(hoplite.ObjectLost):
                hp.get(name, timeout=SOON)
            hp.put(os.urandom(8), name=hp.reserve(name=name))
            assert len(hp.get(name, timeout=SOON)) == 8
