"""Objects with a time to live: they end when it is over, whichever nodes have failed by then."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import testing
from support import SOON, eventually, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support import Array

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SIZES = pytest.mark.parametrize("size", [10, 50_000], ids=["small", "large"])

# Long enough for a prior get on a busy machine, short enough to wait for.
TTL_S = 2.0


def is_gone(client: hoplite.Client, ref: object) -> bool:
    """Returns whether an object was deleted and has no copies; raises any other error."""
    try:
        return not client.locations(str(ref), timeout=SOON)
    except hoplite.ObjectDeleted:
        return True


def has_no_copy(client: hoplite.Client, ref: object) -> bool:
    """Returns whether a client's node has no copy of an object."""
    return str(ref) not in [row["ref"] for row in client.objects()]


def has_members(client: hoplite.Client, count: int) -> bool:
    """Returns whether a client's node has that many members."""
    return len(client.status()["members"]) == count


def got(client: hoplite.Client, ref: object, *, begun: float, ttl: float = TTL_S) -> Array | None:
    """Returns the value of a get before the object ends; None if a busy machine was too late."""
    try:
        value: Array = client.get(str(ref), timeout=SOON)
    except (hoplite.ObjectDeleted, hoplite.Timeout):
        assert time.monotonic() - begun >= ttl, "it ended before its time to live"
        return None
    return value


def ends(clients: list[hoplite.Client], ref: object, *, begun: float, ttl: float = TTL_S) -> None:
    """Asserts that an object ends in time on all nodes."""
    eventually(lambda: is_gone(clients[0], ref))
    assert time.monotonic() - begun >= ttl, "it ended before its time to live"
    for client in clients:
        assert is_gone(client, ref)
        eventually(functools.partial(has_no_copy, client, ref))


@SIZES
@pytest.mark.parametrize("name", [None, "timed/1"])
def test_an_object_ends_after_its_ttl(clients: list[hoplite.Client], size: int, name: str | None) -> None:
    begun = time.monotonic()
    ref = clients[0].put(numbers(size), name=name, ttl=TTL_S)
    value = got(clients[1], ref, begun=begun)
    eventually(lambda: is_gone(clients[0], ref))
    assert time.monotonic() - begun >= TTL_S, "it ended before its time to live"
    assert value is None or (value == numbers(size)).all(), "views must stay valid"
    del value
    ends(clients, ref, begun=begun)
    if name is not None:
        clients[2].put(numbers(size), name=name)
        clients[0].get(name, timeout=SOON)


def test_the_ttl_of_a_buffer_starts_at_its_seal(clients: list[hoplite.Client]) -> None:
    for shape in (10, 50_000):
        with clients[0].create(shape, ttl=TTL_S) as buf:
            buf[:] = 1
            begun = time.monotonic()
        got(clients[1], buf.ref, begun=begun)
        ends(clients, buf.ref, begun=begun)


def test_a_result_ends_after_its_ttl(clients: list[hoplite.Client]) -> None:
    inputs = [client.put(numbers(50_000)) for client in clients]
    begun = time.monotonic()
    total = clients[0].reduce(inputs, ttl=TTL_S)
    got(clients[2], total, begun=begun)
    ends(clients, total, begun=begun)
    for ref in inputs:
        clients[1].get(ref, timeout=SOON)


def test_asyncio_takes_a_ttl_too(clients: list[hoplite.Client]) -> None:
    async def put() -> list[hoplite.Ref]:
        return [await clients[0].put_async(numbers(size), ttl=TTL_S) for size in (10, 50_000)]

    begun = time.monotonic()
    for ref in asyncio.run(put()):
        ends(clients, ref, begun=begun)


def test_objects_without_a_ttl_stay_and_the_listing_has_the_time_left(clients: list[hoplite.Client]) -> None:
    ref = clients[0].put(b"stays", name="lives/on")
    timed = clients[0].put(b"goes", name="lives/short", ttl=3600)
    rows = {row["ref"]: row for row in clients[1].directory("lives/", timeout=SOON)}
    assert rows[str(ref)]["ttl"] is None
    assert 3500 < (rows[str(timed)]["ttl"] or 0) <= 3600
    assert 0 <= rows[str(timed)]["age"] < 100
    assert rows[str(timed)]["owner"] in {member["id"] for member in clients[0].status()["members"]}


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf, -math.inf, "60", b"1", True, [], 1e30, 10**400])
def test_an_invalid_ttl_is_rejected(client: hoplite.Client, ttl: Any) -> None:  # noqa: ANN401 - anything
    for call in (
        lambda: client.put(b"x", ttl=ttl),
        lambda: client.create(3, ttl=ttl),
        lambda: client.reduce(["a"], ttl=ttl),
    ):
        with pytest.raises(hoplite.InvalidArgument, match=r"^ttl "):
            call()
    assert client.objects() == []


@contextlib.contextmanager
def processes(count: int) -> Iterator[list[testing.NodeProcess]]:
    """Starts a cluster of node processes."""
    with contextlib.ExitStack() as stack:
        nodes: list[testing.NodeProcess] = []
        for _ in range(count):
            join = ("--join", nodes[0].address) if nodes else ()
            nodes.append(stack.enter_context(testing.node_process("--capacity", "64MiB", *join)))
        for node in nodes:
            with node.client() as client:
                eventually(functools.partial(has_members, client, count))
        yield nodes


@pytest.mark.faults("the putter's node is killed")
@SIZES
def test_an_object_ends_in_time_although_its_putter_is_killed(size: int) -> None:
    """A keeper still has a pinned copy, and a reader's node a cached one; small objects are at their owners."""
    with processes(3) as nodes:
        clients = [node.client() for node in nodes]
        ttl = 8.0
        begun = time.monotonic()
        ref = clients[0].put(numbers(size), name="kept/1", ttl=ttl, replicas=2)
        got(clients[2], ref, begun=begun, ttl=ttl)
        nodes[0].process.kill()
        nodes[0].process.wait()
        eventually(lambda: len(clients[1].status()["members"]) == 2)
        for client in clients[1:]:
            value = got(client, ref, begun=begun, ttl=ttl)
            assert value is None or np.array_equal(value, numbers(size))
            # Readers keep their values.
            del value
        ends(clients[1:], ref, begun=begun, ttl=ttl)
