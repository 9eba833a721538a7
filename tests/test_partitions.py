"""Names put in two clusters that merge, or on both sides of a partition: one of the two objects remains."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from faults.crew import Crew
from hoplite import testing
from hoplite_bench.lab import Lab
from labs import needs_lab
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

NAMES = 24
CALL_S = 30.0


@contextlib.contextmanager
def bridge(*joined: hoplite.Node) -> Iterator[hoplite.Node]:
    """Starts a node that joins several separate clusters."""
    with tempfile.TemporaryDirectory(prefix="hoplite-") as folder:
        node = hoplite.Node(
            listen="127.0.0.1:0",
            join=[node.address for node in joined],
            cluster="default",
            capacity="1GiB",
            socket=Path(folder) / "bridge.sock",
        )
        with contextlib.closing(node):
            yield node


def put_all(side: int, putter: Client, reader: Client, names: list[str], size: int, copies: int) -> None:
    """Puts every name with bytes that identify the side, and reads it on another node of that side."""
    for name in names:
        putter.put(bytes([side]) * size, name=name, replicas=copies)
        assert reader.get(name, timeout=SOON)[0] == side


def is_the_same_for(clients: list[Client], name: str) -> bool:
    """Returns whether all clients get the same object under a name."""
    return len({client.get(name, timeout=SOON)[0] for client in clients}) == 1


@pytest.mark.faults("the object that loses its name is deleted while it is read")
@pytest.mark.parametrize(("size", "copies"), [(100_000, 1), (100_000, 2), (100, 1)], ids=["large", "copies", "small"])
def test_one_object_remains_per_name_after_two_clusters_merge(size: int, copies: int) -> None:
    names = [f"halves{number % 8}/{number}" for number in range(NAMES)]
    with testing.cluster(2) as left, testing.cluster(2) as right:
        for side, (one, other) in enumerate((left, right)):
            with one.client() as putter, other.client() as reader:
                put_all(side, putter, reader, names, size, copies)
        with bridge(left[0], right[1]) as middle:
            nodes = [*left, *right, middle]
            testing.wait_for_members(nodes, 5)
            with contextlib.ExitStack() as stack:
                clients = [stack.enter_context(node.client()) for node in nodes]
                for name in names:
                    # A node that has not received the other object yet returns its own.
                    eventually(functools.partial(is_the_same_for, clients, name))
                for name in names:
                    with pytest.raises(hoplite.NameTaken):
                        clients[4].put(b"third", name=name)
                clients[2].delete(names, timeout=SOON)
                for client in clients:
                    assert [copy["ref"] for copy in client.objects() if copy["ref"] in names] == []


def is_the_same_on(crew: Crew, name: str) -> bool:
    """Returns whether all hosts get the same object under a name."""
    gets = [actor.send("get", ref=name, timeout=CALL_S) for actor in crew.actors]
    replies = [reply.result(CALL_S) for reply in gets]
    assert [reply.message for reply in replies] == [""] * len(replies)
    return len({reply.facts["first"] for reply in replies}) == 1


@pytest.mark.faults("hosts are cut off")
@needs_lab
@pytest.mark.lab
def test_one_object_remains_per_name_after_a_partition_heals() -> None:
    with Lab(racks=[2, 2]) as lab, Crew(lab, capacity="256MiB", detection_s=1.0) as crew:
        lab.racks[0].cut()
        sides = [crew.actors[:2], crew.actors[2:]]
        # Each side has declared the other dead before it puts.
        missed = [
            actor.send("miss", member=gone.id, timeout=CALL_S)
            for here, there in (sides, sides[::-1])
            for actor in here
            for gone in there
        ]
        assert [reply.result(CALL_S).error for reply in missed] == [""] * 8
        names = [f"cut{number % 8}/{number}" for number in range(NAMES)]
        puts = [
            side[number % 2].send("put", ref=name, count=2**14, seed=seed)
            for number, name in enumerate(names)
            for seed, side in enumerate(sides)
        ]
        assert [put.result(CALL_S).message for put in puts] == [""] * len(puts)
        lab.racks[0].heal()
        crew.wait_until_met()
        for name in names:
            eventually(functools.partial(is_the_same_on, crew, name))
