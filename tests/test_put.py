"""Put: values round-trip on the same node and to another one."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, testing
from hoplite.values import DTYPES
from support import ARRAY_DTYPES, SOON, Array, Later, numbers, same


@pytest.fixture
def nodes(shared_nodes: list[Node]) -> list[Node]:
    """Three nodes that all tests of this module share."""
    return shared_nodes


SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (3, 0, 2),
    (1,),
    (7,),
    (5, 3, 2),
    (1,) * 12,
    (65_537,),
    (1_000_003,),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_round_trips(clients: list[Client], shape: tuple[int, ...]) -> None:
    """Scalars, empty arrays, and odd lengths below and above the inline limit."""
    value = numbers(shape)
    ref = clients[0].put(value)
    same(clients[0].get(ref, timeout=30), value)
    same(clients[1].get(ref, timeout=30), value)


def test_only_torch_has_packed_float4() -> None:
    assert set(DTYPES) - set(ARRAY_DTYPES) == {"float4_e2m1fn_x2"}


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_every_dtype_round_trips(clients: list[Client], dtype: str) -> None:
    small, large = numbers((3, 5), dtype), numbers(50_001, dtype)
    for value in (small, large):
        same(clients[2].get(clients[0].put(value), timeout=30), value)


ARRANGED: dict[str, Array] = {
    "transposed": numbers((300, 200)).T,
    "every other": numbers(100_000)[::2],
    "backwards": numbers(100_000)[::-1],
    "fortran": np.asfortranarray(numbers((30, 20, 10))),
    "broadcast": np.broadcast_to(numbers(7), (5, 7)),
}


@pytest.mark.parametrize("value", ARRANGED.values(), ids=ARRANGED.keys())
def test_every_memory_layout_round_trips(clients: list[Client], value: Array) -> None:
    same(clients[1].get(clients[0].put(value), timeout=30), value)


def test_big_endian_arrays_become_little_endian(clients: list[Client]) -> None:
    value = np.array([1, 2, 258], ">i4")
    same(clients[0].get(clients[0].put(value)), value.astype("<i4"))


def test_a_read_only_array_can_be_put(clients: list[Client]) -> None:
    value = numbers(10)
    value.flags.writeable = False
    same(clients[0].get(clients[0].put(value)), value)


def test_a_result_of_get_can_be_put_again(clients: list[Client]) -> None:
    value = numbers(100_000)
    copy = clients[1].get(clients[0].put(value), timeout=30)
    same(clients[2].get(clients[1].put(copy), timeout=30), value)


def test_a_numpy_scalar_is_a_0d_array(clients: list[Client]) -> None:
    same(clients[0].get(clients[0].put(np.float32(1.5))), np.array(1.5, np.float32))


BYTES: dict[str, bytes | bytearray | memoryview] = {
    "bytes": b"hello",
    "empty": b"",
    "large": bytes(range(256)) * 1000,
    "bytearray": bytearray(b"hello"),
    "memoryview": memoryview(b"hello"),
    "strided memoryview": memoryview(b"h-e-l-l-o")[::2],
    "empty memoryview": memoryview(b""),
}


@pytest.mark.parametrize("value", BYTES.values(), ids=BYTES.keys())
def test_bytes_round_trip(clients: list[Client], value: bytes | bytearray | memoryview) -> None:
    ref = clients[0].put(value)
    assert clients[0].get(ref, timeout=30) == bytes(value)
    assert clients[1].get(ref, timeout=30) == bytes(value)


def test_a_memoryview_of_numbers_is_an_array(clients: list[Client]) -> None:
    value = np.arange(3, dtype=np.int32)
    same(clients[0].get(clients[0].put(memoryview(value.data))), value)


def test_the_object_is_a_copy(clients: list[Client]) -> None:
    value = numbers(100_000)
    before = value.copy()
    ref = clients[0].put(value)
    value += 1
    same(clients[0].get(ref), before)
    same(clients[1].get(ref, timeout=30), before)


PICKLED: dict[str, Any] = {
    "object": np.array([None]),
    "str": np.array(["x"]),
    "longdouble": np.array([1], np.longdouble),
    "record": np.zeros(1, [("a", "f4"), ("b", "i4")]),
}


@pytest.mark.parametrize("value", PICKLED.values(), ids=PICKLED.keys())
def test_an_array_of_another_dtype_is_pickled(nodes: list[Node], clients: list[Client], value: Array) -> None:
    same(clients[1].get(clients[0].put(value), timeout=30), value)
    careful = nodes[0].client(allow_pickle=False)
    with pytest.raises(hoplite.UnsupportedDtype) as caught:
        careful.put(value)
    assert str(value.dtype) in str(caught.value)


@pytest.mark.parametrize("value", [None, 1, 1.5, "text", [1, 2], {"a": 1}], ids=repr)
def test_other_values_are_pickled(nodes: list[Node], clients: list[Client], value: object) -> None:
    ref = clients[0].put(value)
    assert clients[1].get(ref, timeout=30) == value
    careful = nodes[0].client(allow_pickle=False)
    with pytest.raises(hoplite.UnsupportedDtype, match=type(value).__qualname__):
        careful.put(value)
    with pytest.raises(hoplite.DecodeError, match="allow_pickle"):
        careful.get(ref)


def test_a_masked_array_is_rejected(clients: list[Client]) -> None:
    with pytest.raises(hoplite.UnsupportedDtype, match="mask"):
        clients[0].put(np.ma.masked_array([1.0, 2.0], [True, False]))


def test_put_fails_when_the_store_stays_full() -> None:
    """A pinned object leaves too little capacity for a second one."""
    with testing.cluster(1, capacity="32MiB") as nodes:
        client = nodes[0].client()
        client.put(numbers(6 << 20, "uint8"))
        client.put(numbers(16 << 20, "uint8"))
        with pytest.raises(hoplite.StoreFull):
            client.put(numbers(16 << 20, "uint8"), timeout=0.2)
        with pytest.raises(hoplite.StoreFull):
            client.put(numbers(16 << 20, "uint8"), timeout=0)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_exist_ok_needs_no_capacity_for_an_existing_object(how: str) -> None:
    with testing.cluster(2, capacity="16MiB") as nodes:
        here, far = (node.client() for node in nodes)
        for client, name in ((here, "here/1"), (far, "far/1")):
            client.put(numbers(12 << 20, "uint8"), name=name)
        for name in ("here/1", "far/1"):
            if how == "sync":
                ref = here.put(numbers(12 << 20, "uint8"), name=name, exist_ok=True, timeout=SOON)
            else:
                ref = asyncio.run(here.put_async(numbers(12 << 20, "uint8"), name=name, exist_ok=True, timeout=SOON))
            assert ref == hoplite.Ref(name)


def test_an_object_larger_than_the_store_fails_at_once() -> None:
    with testing.cluster(1, capacity="16MiB") as nodes, pytest.raises(hoplite.StoreFull) as raised:
        nodes[0].client().put(numbers(32 << 20, "uint8"))
    assert str(32 << 20) in str(raised.value)
    assert "larger capacity" in str(raised.value)
    assert "delete" not in str(raised.value)


def test_put_waits_for_capacity() -> None:
    """The second put continues as soon as the first object is deleted."""
    with testing.cluster(1, capacity="32MiB") as nodes:
        client = nodes[0].client()
        value = numbers(20 << 20, "uint8")
        first = client.put(value)
        second = Later(client.put, value, timeout=30)
        assert not second.done(within=0.2)
        client.delete(first)
        same(client.get(second.result()), value)


def test_threads_can_put_concurrently(nodes: list[Node]) -> None:
    client = nodes[0].client()
    values = [numbers(20_000, seed=seed) for seed in range(16)]
    puts = [Later(client.put, value) for value in values]
    for put, value in zip(puts, values, strict=True):
        same(nodes[1].client().get(put.result(), timeout=30), value)


@pytest.mark.long
def test_more_than_4_gib_round_trip_to_another_node() -> None:
    value = np.arange((4 << 30) // 8 + 12_345, dtype=np.uint64)
    with testing.cluster(2, capacity="5GiB") as nodes:
        ref = nodes[0].client().put(value)
        same(nodes[1].client().get(ref, timeout=300), value)
