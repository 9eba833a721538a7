"""Gets of lists: lists that fit the store, lists that never will, and the messages in the meantime."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Node, _loop, testing
from hoplite._verbs.several import Several
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
COUNT = 8


@pytest.fixture(params=["15MiB", "16MiB"])
def small(request: pytest.FixtureRequest) -> Iterator[tuple[hoplite.Client, list[hoplite.Ref]]]:
    """A client whose node has capacity for three of eight objects on another node, each a little over 4 MiB."""
    with testing.cluster(1, capacity="64MiB") as (large,):
        putter = large.client()
        refs = [putter.put(numbers(4 * MIB, "uint8", seed=seed)) for seed in range(COUNT)]
        with Node(join=[large.address], capacity=request.param) as node:
            yield node.client(), refs


def check_error(client: hoplite.Client, error: pytest.ExceptionInfo[hoplite.StoreFull]) -> None:
    """Checks the message of a rejected get, and that the error holds none of the objects that arrived."""
    capacity = client.status()["store"]["capacity"]
    assert f"{COUNT} objects of one get exceed the capacity of the store, {capacity} bytes" in str(error.value)
    assert f"the next needs {4 * MIB}" in str(error.value)
    del error
    # Nearly the whole capacity: objects read for the list are evicted.
    client.put(numbers(12 * MIB, "uint8"), timeout=SOON)


@pytest.mark.parametrize("timeout", [None, 10 * SOON], ids=["none", "longer than a test"])
def test_a_list_that_never_fits_is_rejected(
    small: tuple[hoplite.Client, list[hoplite.Ref]], timeout: float | None
) -> None:
    client, refs = small
    with pytest.raises(hoplite.StoreFull) as error:
        client.get(refs, timeout=timeout)
    check_error(client, error)


def test_a_list_that_never_fits_is_rejected_in_a_loop(small: tuple[hoplite.Client, list[hoplite.Ref]]) -> None:
    client, refs = small
    with pytest.raises(hoplite.StoreFull) as error:
        asyncio.run(asyncio.wait_for(client.get_async(refs), SOON))
    check_error(client, error)


def test_a_list_that_blocks_the_put_of_its_own_object_is_rejected(
    small: tuple[hoplite.Client, list[hoplite.Ref]],
) -> None:
    """The put has no capacity because of the list, and the list waits for the put."""
    client, refs = small
    got = Later(lambda: client.get([*refs[:3], "here/1"]))
    # The put starts when the other objects have arrived.
    eventually(lambda: sum(row["readers"] for row in client.objects()) == 3)
    put = Later(lambda: client.put(numbers(4 * MIB, "uint8"), name="here/1", timeout=60))
    with pytest.raises(hoplite.StoreFull):
        got.result(60)
    put.result(60)


def test_a_list_can_be_cancelled_at_any_time(clients: list[hoplite.Client]) -> None:
    async def cancelled(turns: int, client: hoplite.Client) -> None:
        names = [f"come/{turns}", f"never/{turns}"]
        got = asyncio.ensure_future(client.get_async(names))
        await asyncio.sleep(0)
        await client.put_async(b"x", name=names[0])
        # With the reply, a little before it, or a little after it.
        for _ in range(turns):
            await asyncio.sleep(0)
        got.cancel()
        done, _ = await asyncio.wait({got}, timeout=SOON)
        assert done, turns
        assert got.cancelled()

    for turns in range(12):
        asyncio.run(cancelled(turns, clients[0]))


@pytest.fixture
def was_checked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a list that waits for capacity has been checked against the capacity, and was not rejected."""
    event = threading.Event()
    refuse = Several._refuse_if_too_large

    def look(several: Several[Any], held: dict[str, int], lacks: tuple[int, int] | None) -> None:
        refuse(several, held, lacks)
        if lacks is not None:
            event.set()

    monkeypatch.setattr(Several, "_refuse_if_too_large", look)
    return event


def test_a_list_waits_for_capacity_held_by_other_calls(
    small: tuple[hoplite.Client, list[hoplite.Ref]], was_checked: threading.Event
) -> None:
    """Capacity held by another call may be freed: three more objects fit once the views are garbage-collected."""
    client, refs = small
    held = client.get(refs[:2], timeout=30)
    got = Later(lambda: client.get(refs[2:5], timeout=60))
    assert was_checked.wait(SOON)
    assert not got.done()
    del held
    for seed, value in enumerate(got.result(60), start=2):
        same(value, numbers(4 * MIB, "uint8", seed=seed))


def test_the_same_object_counts_once(
    small: tuple[hoplite.Client, list[hoplite.Ref]], was_checked: threading.Event
) -> None:
    client, refs = small
    held = client.get(refs[2:4], timeout=30)
    got = Later(lambda: client.get([refs[0]] * 5 + [refs[1]], timeout=60))
    assert was_checked.wait(SOON)
    assert not got.done()
    del held
    assert len(got.result(60)) == 6


def test_a_list_larger_than_the_store_can_be_read_into_outs(
    small: tuple[hoplite.Client, list[hoplite.Ref]],
) -> None:
    client, refs = small
    outs = [np.zeros(4 * MIB, np.uint8) for _ in refs]
    # With a timeout, because a hanging call would never return.
    Later(lambda: client.get(refs, out=outs)).result(60)
    for seed, out in enumerate(outs):
        same(out, numbers(4 * MIB, "uint8", seed=seed))
    outs = [np.zeros(4 * MIB, np.uint8) for _ in refs]
    asyncio.run(asyncio.wait_for(client.get_async(refs, out=outs), 60))
    for seed, out in enumerate(outs):
        same(out, numbers(4 * MIB, "uint8", seed=seed))


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_long_wait_for_a_list_is_logged(
    clients: list[hoplite.Client],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    into: bool,
    in_loop: bool,
) -> None:
    monkeypatch.setattr("hoplite._loop.FIRST_WORD_AFTER_S", 0.2)
    assert _loop.FIRST_WORD_AFTER_S == 0.2
    client = clients[0]
    client.put(b"here", name="here/1")
    outs = [bytearray(4), bytearray(4)] if into else None
    names = ["here/1", "late/1"]
    with caplog.at_level(logging.WARNING, logger="hoplite"):
        if in_loop:
            got = Later(lambda: asyncio.run(client.get_async(names, out=outs)))
        else:
            got = Later(lambda: client.get(names, out=outs))
        eventually(lambda: any("late/1" in record.getMessage() for record in caplog.records))
        client.put(b"late", name="late/1")
        assert [bytes(value) for value in got.result(30)] == [b"here", b"late"]
    assert any("no client has put it" in record.getMessage() for record in caplog.records), caplog.text


@pytest.mark.parametrize("in_loop", [False, True])
def test_outs_that_share_memory_are_refused_before_a_byte_is_copied(
    clients: list[hoplite.Client], in_loop: bool
) -> None:
    refs = [clients[0].put(np.full(4, value)) for value in (1.0, 2.0, 3.0)]
    one, memory = np.zeros(4), np.zeros(12)

    def get(outs: list[Any]) -> None:
        if in_loop:
            asyncio.run(clients[1].get_async(refs, out=outs, timeout=SOON))
        else:
            clients[1].get(refs, out=outs, timeout=SOON)

    for outs, named in (
        ([one, np.zeros(4), one], (0, 2)),
        ([memory[3:7], memory[:4], memory[8:]], (0, 1)),
    ):
        with pytest.raises(hoplite.InvalidArgument) as error:
            get(outs)
        first, second = named
        text = f"out[{first}] for {refs[first]} and out[{second}] for {refs[second]} share memory"
        assert text in str(error.value)
        assert not one.any()
        assert not memory.any()
    get([memory[:4], memory[4:8], memory[8:]])
    assert memory.tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4
