"""Parts: `get(part=...)` returns rows or bytes of an object, and only these cross the network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import hoplite
from hoplite import Client, InvalidArgument, Node, ShapeMismatch, testing
from hoplite.capabilities import grant
from support import SOON, Later, eventually, fold, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
ROWS = 1000

SLICES = [
    slice(0, 10),
    slice(3, 5),
    slice(-7, None),
    slice(None, -990),
    slice(500, 500),
    slice(5, 3),
    slice(995, 10**30),
    slice(-(10**30), 2),
    slice(None),
    slice(np.int64(1), np.int8(2), 1),
]


def received(client: Client) -> int:
    count: int = client.status()["counters"]["bytes_received"]
    return count


def used(client: Client) -> int:
    count: int = client.status()["store"]["used"]
    return count


@pytest.mark.parametrize("rows", SLICES, ids=str)
def test_rows_of_an_array_on_another_host(clients: list[Client], rows: slice) -> None:
    """Of two holders, the reader and a host in between none gets more than the rows."""
    value = numbers((ROWS, 251))
    ref = clients[0].put(value)
    part = clients[1].get(ref, part=rows, timeout=SOON)
    same(part, value[rows])
    assert not part.flags.writeable
    assert received(clients[1]) == part.nbytes
    assert received(clients[2]) == 0


@pytest.mark.parametrize("rows", SLICES, ids=str)
def test_bytes_of_an_object(clients: list[Client], rows: slice) -> None:
    value = bytes(range(250)) * 1000
    ref = clients[0].put(value)
    for client in clients[:2]:
        part = client.get(ref, part=rows, timeout=SOON)
        assert isinstance(part, memoryview)
        assert part.readonly
        assert bytes(part) == value[rows]
        assert clients[0].get(ref, part=rows, copy=True, timeout=SOON) == value[rows]
    assert received(clients[1]) == len(value[rows])


def test_a_part_of_an_object_on_this_host_is_a_view_of_it(clients: list[Client]) -> None:
    value = numbers((ROWS, 251))
    ref = clients[0].put(value)
    whole = clients[0].get(ref, timeout=SOON)
    part = clients[0].get(ref, part=slice(10, 20), timeout=0)
    same(part, value[10:20])
    assert np.shares_memory(whole[10:20], part)
    # A host that has fetched the whole needs no transfer either.
    fetched = clients[1].get(ref, timeout=SOON)
    assert np.shares_memory(fetched[-3:], clients[1].get(ref, part=slice(-3, None), timeout=0))
    assert received(clients[1]) == value.nbytes


def test_small_objects_and_parts_of_them(clients: list[Client]) -> None:
    """Small objects travel whole, inside messages."""
    ref = clients[0].put(numbers((10, 3), "int16"))
    for client in clients:
        same(client.get(ref, part=slice(-2, None), timeout=SOON), numbers((10, 3), "int16")[-2:])
        assert received(client) == 0


def test_a_part_is_no_copy_of_the_object(clients: list[Client]) -> None:
    """It is not in the directory, serves nobody, and its memory is free after the release."""
    value = numbers((ROWS, 1000))
    ref = clients[0].put(value)
    before = used(clients[1])
    part = clients[1].get(ref, part=slice(100, 200), timeout=SOON)
    assert before + part.nbytes <= used(clients[1]) < before + value.nbytes
    assert [location.node for location in clients[2].locations(ref)] == [clients[0].status()["id"]]
    same(clients[2].get(ref, timeout=SOON), value)
    assert clients[1].status()["counters"]["bytes_relayed"] == 0
    # It is valid after the object is gone, and does not become it.
    clients[0].delete(ref, timeout=SOON)
    same(part, value[100:200])
    del part
    eventually(lambda: used(clients[1]) == before)


def test_out_is_filled_with_the_part(clients: list[Client]) -> None:
    value = numbers((ROWS, 251), "int32")
    ref = clients[0].put(value)
    for client in clients:
        out = np.zeros((40, 251), np.int32)
        assert client.get(ref, part=slice(7, 47), out=out, timeout=SOON) is out
        same(out, value[7:47])
        room = bytearray(251 * 4)
        assert asyncio.run(client.get_async(ref, part=slice(-1, None), out=room, timeout=SOON)) is room
        assert room == value[-1].tobytes()
        with pytest.raises(ShapeMismatch, match=r"int32 \[5, 251\], but out is int32 \[40, 251\]"):
            client.get(ref, part=slice(5), out=out, timeout=SOON)
    eventually(lambda: used(clients[1]) == used(clients[2]) == 0)


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_part_of_an_object_that_does_not_exist_yet(clients: list[Client], size: int) -> None:
    gets = [Later(client.get, "late/1", part=slice(2, 4), timeout=SOON) for client in clients]
    assert not gets[0].done(within=0.1)
    clients[1].put(numbers(size), name="late/1")
    for get in gets:
        same(get.result(), numbers(size)[2:4])


def test_a_part_of_a_sum(clients: list[Client]) -> None:
    values = [numbers(MIB, "int32", seed=seed) for seed in range(3)]
    total = clients[0].reduce([client.put(value) for client, value in zip(clients, values, strict=True)])
    expected = fold("sum", values)
    for client in clients:
        same(client.get(total, part=slice(-1000, None), timeout=SOON), expected[-1000:])


def test_parts_come_from_all_holders() -> None:
    """Two of four hosts have the object. The owner sends readers to the host that it predicts to be idle first."""
    value = numbers((64, MIB), "uint8")
    with testing.cluster(4, capacity="128MiB") as nodes:
        clients = [node.client() for node in nodes]
        ref = clients[0].put(value)
        same(clients[1].get(ref, timeout=SOON), value)

        def sent() -> list[int]:
            counters = [client.status()["counters"] for client in clients]
            return [counter["bytes_direct"] + counter["bytes_relayed"] for counter in counters]

        begun = sent()

        def have_both_sent() -> bool:
            gets = [Later(client.get, ref, part=slice(0, 8), timeout=SOON) for client in clients[2:]]
            for get in gets:
                same(get.result(), value[:8])
            return all(now > before for now, before in zip(sent()[:2], begun[:2], strict=True))

        eventually(have_both_sent)
        assert sent()[2:] == [0, 0]


def test_parts_of_one_object_together_are_the_object(clients: list[Client]) -> None:
    value = numbers((ROWS, 1000), "uint8")
    ref = clients[0].put(value)

    async def all_parts() -> list[Any]:
        parts = [slice(at, at + 100) for at in range(0, ROWS, 100)]
        return await asyncio.gather(*(clients[1].get_async(ref, part=part, timeout=SOON) for part in parts))

    same(np.concatenate(asyncio.run(all_parts())), value)
    assert received(clients[1]) == value.nbytes


def test_a_digest_covers_only_whole_objects(nodes: list[Node]) -> None:
    with nodes[0].client(digest=True) as maker, nodes[1].client() as reader:
        ref = maker.put(numbers((ROWS, 251)))
        same(reader.get(ref, part=slice(3, 9), timeout=SOON), numbers((ROWS, 251))[3:9])
        assert reader.status()["counters"]["copies_corrupt"] == 0


OTHERS: dict[str, Callable[[], Any]] = {
    "a pickled object": lambda: {"step": 1},
    "a pickled object ": lambda: {"weights": np.zeros(MIB)},
    "Arrow data": lambda: pa.array([1, 2, 3]),
    "an array without axes": lambda: np.float32(1),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_objects_have_no_parts(clients: list[Client], what: str) -> None:
    ref = clients[0].put(OTHERS[what]())
    for client in clients:
        with pytest.raises(InvalidArgument, match=f"is {what.strip()}: get the whole object"):
            client.get(ref, part=slice(0, 1), timeout=SOON)
        assert received(client) == 0


BAD: dict[str, tuple[Any, str]] = {
    "int": (3, "part must be a slice, not an int: write slice"),
    "tuple": ((0, 3), "part must be a slice, not a tuple"),
    "step": (slice(0, 10, 2), "part has a step of 2: use step 1"),
    "backwards": (slice(10, 0, -1), "part has a step of -1"),
    "float": (slice(0, 1.5), "the stop of part must be an integer or None, not a float"),
    "text": (slice("a", None), "the start of part must be an integer or None, not a str"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_slices_are_rejected(clients: list[Client], bad: str) -> None:
    part, message = BAD[bad]
    ref = clients[0].put(numbers(10))
    with pytest.raises(InvalidArgument, match=message):
        clients[0].get(ref, part=part)
    with pytest.raises(InvalidArgument, match=message):
        asyncio.run(clients[0].get_async(ref, part=part))


def test_a_list_has_no_parts(clients: list[Client]) -> None:
    with pytest.raises(InvalidArgument, match="part works with a single ref"):
        clients[0].get(["a", "b"], part=slice(0, 1))  # type: ignore[call-overload]


def test_a_timeout_or_cancellation_leaves_nothing(clients: list[Client]) -> None:
    with pytest.raises(hoplite.Timeout, match="a part of object never/1: no client has put it"):
        clients[1].get("never/1", part=slice(0, 1), timeout=0.05)
    with pytest.raises(hoplite.Timeout, match="after 0 s"):
        clients[1].get("never/1", part=slice(0, 1), timeout=0)

    async def cancelled() -> None:
        got = asyncio.ensure_future(clients[1].get_async("never/2", part=slice(0, 1)))
        await asyncio.sleep(0)
        got.cancel()
        done, _ = await asyncio.wait({got}, timeout=SOON)
        assert done

    asyncio.run(cancelled())
    eventually(lambda: clients[1].status()["waiting"] == 0)
    assert used(clients[1]) == 0


def test_deleted_and_lost_objects_raise_as_for_get(clients: list[Client], nodes: list[Node]) -> None:
    ref = clients[0].put(numbers(MIB))
    clients[0].delete(ref, timeout=SOON)
    with pytest.raises(hoplite.ObjectDeleted):
        clients[1].get(ref, part=slice(0, 1), timeout=SOON)
    lost = clients[2].put(numbers(MIB))
    nodes[2].close(0)
    with pytest.raises(hoplite.ObjectLost):
        clients[1].get(lost, part=slice(0, 1), timeout=SOON)


def test_a_part_that_exceeds_the_capacity_is_rejected() -> None:
    """A part of an object that is larger than the store of the reader fits, unless the part is larger too."""
    value = numbers((40, MIB), "uint8")
    with testing.cluster(1, capacity="64MiB") as (large,), Node(join=[large.address], capacity="16MiB") as node:
        ref, reader = large.client().put(value), node.client()
        same(reader.get(ref, part=slice(10, 20), timeout=SOON), value[10:20])
        with pytest.raises(hoplite.StoreFull):
            reader.get(ref, part=slice(0, 20), timeout=SOON)
        # The next part waits until the view of the first is dropped.
        first = reader.get(ref, part=slice(0, 10), timeout=SOON)
        with pytest.raises(hoplite.StoreFull):
            reader.get(ref, part=slice(10, 20), timeout=0.1)
        second = Later(reader.get, ref, part=slice(10, 20), timeout=SOON)
        same(first, value[:10])
        del first
        same(second.result(), value[10:20])


def test_a_capability_to_get_is_one_for_parts() -> None:
    token = hoplite.new_token()
    with Node(listen="127.0.0.1:0", token=token, capacity="64MiB") as holder:
        maker = holder.client()
        for name in ("team-a/1", "team-b/1"):
            maker.put(numbers(MIB, "uint8"), name=name)
        with (
            Node(join=[holder.address], token=token, capacity="64MiB") as node,
            hoplite.connect(node.socket, capability=grant(token, "team-a/", verbs=["get"])) as reader,
            hoplite.connect(node.socket, capability=grant(token, "team-a/", verbs=["put"])) as other,
        ):
            same(reader.get("team-a/1", part=slice(5, 10), timeout=SOON), numbers(MIB, "uint8")[5:10])
            for client, name in ((reader, "team-b/1"), (other, "team-a/1")):
                with pytest.raises(hoplite.NotAllowed):
                    client.get(name, part=slice(5, 10), timeout=SOON)
