"""Reduce: the result is the fold of exactly `inputs()`, whenever and wherever these are put."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, testing
from hoplite.values import NARROW_DTYPES
from support import ARRAY_DTYPES, FLOATS, OPS, SOON, Array, Later, eventually, eventually_empty, fold, numbers, same


@pytest.fixture
def nodes(shared_nodes: list[Node]) -> list[Node]:
    """Three nodes that all tests of this module share."""
    return shared_nodes


ALL_OPS = ("sum", "min", "max", "prod", "mean", "any", "all")


def check(reader: Client, total: hoplite.Ref, values: dict[str, Array], op: str = "sum") -> list[str]:
    """Asserts that a result is the fold of the refs that `inputs()` returns; returns them."""
    folded = [str(ref) for ref in total.inputs(timeout=SOON)]
    assert len(set(folded)) == len(folded)
    same(reader.get(total, timeout=SOON), fold(op, [values[ref] for ref in folded]))
    return folded


@pytest.mark.parametrize("dtype", [each for each in ARRAY_DTYPES if each not in NARROW_DTYPES])
def test_every_op_reduces_every_supported_dtype(clients: list[Client], dtype: str) -> None:
    """Whole numbers that every dtype represents exactly, one input per node; small and large."""
    for shape in ((5,), (123, 457)):
        for op in ALL_OPS:
            # Three multiples of three also have an exact mean.
            values = [numbers(shape, dtype, seed=seed) for seed in range(3)]
            values = [value * 3 if op == "mean" and op in OPS[dtype] else value for value in values]
            refs = [client.put(value) for client, value in zip(clients, values, strict=True)]
            total = clients[0].reduce(refs, op)
            if op not in OPS[dtype]:
                # The error lists the operations that are supported.
                expected_error = f"by {op} can't fold .* {dtype}.*({'|'.join(OPS[dtype])})"
                with pytest.raises(hoplite.UnsupportedDtype, match=expected_error):
                    clients[0].get(total, timeout=SOON)
            else:
                same(clients[0].get(total, timeout=SOON), fold(op, values))


@pytest.mark.parametrize("size", [5, 100_001])
def test_a_reduce_of_a_narrow_dtype_is_rejected_with_the_reason(clients: list[Client], size: int) -> None:
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint1"):
        refs = [client.put(numbers(size, dtype)) for client in clients]
        for op in ALL_OPS:
            total = clients[0].reduce(refs, op)
            reason = rf"by {op} can't fold .*, which is {dtype}\[{size}\]: no operation .*overflows.*convert .*float32"
            for client in clients:
                with pytest.raises(hoplite.UnsupportedDtype, match=reason):
                    client.get(total, timeout=SOON)


SHAPES: list[tuple[int, ...]] = [
    (),
    (0,),
    (4, 0),
    (1,),
    # Around the inline limit of 32 KiB, and the block size of 64 KiB.
    (8_192,),
    (8_193,),
    (16_383,),
    (16_384,),
    (16_385,),
    (32_769,),
    (7, 11, 13, 17),
    (1_000_003,),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_is_reduced(clients: list[Client], shape: tuple[int, ...]) -> None:
    values = [numbers(shape, seed=seed) for seed in range(3)]
    total = clients[1].reduce([client.put(value) for client, value in zip(clients, values, strict=True)])
    for client in clients:
        same(client.get(total, timeout=SOON), fold("sum", values))


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("before", [0, 1, 3, 6])
def test_inputs_can_be_put_before_and_after_the_call(clients: list[Client], size: int, before: int) -> None:
    values = {f"part/{number}": numbers(size, seed=number) for number in range(6)}
    names = list(values)
    for number, name in enumerate(names[:before]):
        clients[number % 3].put(values[name], name=name)
    total = clients[0].reduce(names)
    get = Later(clients[2].get, total, timeout=SOON)
    for number, name in enumerate(names[before:]):
        assert not get.done(), get.result()
        clients[number % 3].put(values[name], name=name)
    same(get.result(), fold("sum", list(values.values())))
    assert set(check(clients[1], total, values)) == set(names)


def test_inputs_can_be_put_during_the_call_on_all_nodes(clients: list[Client]) -> None:
    """Three nodes put twelve inputs of 2 MB at random times, while three reduces wait for them."""
    values = {f"part/{number}": numbers(500_001, seed=number) for number in range(12)}

    def put(number: int) -> None:
        time.sleep(random.Random(number).random() * 0.2)
        clients[number % 3].put(values[f"part/{number}"], name=f"part/{number}")

    puts = [Later(put, number) for number in range(12)]
    totals = [client.reduce(values) for client in clients]
    for client, total in zip(reversed(clients), totals, strict=True):
        assert len(check(client, total, values)) == 12
    for one in puts:
        one.result()


@pytest.mark.parametrize("places", ["0000", "1111", "0011", "1122", "0122", "2222"])
def test_several_inputs_on_one_node(clients: list[Client], places: str) -> None:
    """All on the caller's node, all on another node, or distributed."""
    for size in (10, 200_000):
        values = [numbers(size, seed=seed) for seed in range(4)]
        refs = [clients[int(place)].put(value) for place, value in zip(places, values, strict=True)]
        same(clients[0].get(clients[0].reduce(refs), timeout=SOON), fold("sum", values))


def test_a_single_input(clients: list[Client]) -> None:
    for place in (0, 1):
        ref = clients[place].put(numbers(100_000))
        same(clients[0].get(clients[0].reduce([ref]), timeout=SOON), numbers(100_000))


def test_concurrent_reduces_share_an_input(clients: list[Client]) -> None:
    values = {f"part/{number}": numbers(300_000, seed=number) for number in range(5)}
    first = clients[0].reduce([f"part/{number}" for number in (0, 1, 2)])
    second = clients[1].reduce([f"part/{number}" for number in (2, 3, 4)], "max")
    for number, (name, value) in enumerate(values.items()):
        clients[number % 3].put(value, name=name)
    check(clients[2], first, values)
    check(clients[2], second, values, "max")


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_reduce_can_take_results_of_reduces(clients: list[Client], size: int) -> None:
    """The inner results are requested before any input exists, each on another node."""
    values = [numbers(size, seed=seed) for seed in range(6)]
    inner = [client.reduce([f"part/{2 * number}", f"part/{2 * number + 1}"]) for number, client in enumerate(clients)]
    outer = clients[0].reduce(inner)
    for number, value in enumerate(values):
        clients[(number + 1) % 3].put(value, name=f"part/{number}")
    same(clients[0].get(outer, timeout=SOON), fold("sum", values))
    assert set(outer.inputs(timeout=SOON)) == set(inner)


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_reduce_takes_the_first_count_of_n(clients: list[Client], size: int, count: int) -> None:
    """Only `count` inputs are ever put; the others are not needed."""
    values = {f"part/{number}": numbers(size, seed=number) for number in range(6)}
    total = clients[0].reduce(values, count=count)
    for number in range(count):
        clients[number % 3].put(values[f"part/{number}"], name=f"part/{number}")
    folded = check(clients[1], total, values)
    assert set(folded) == {f"part/{number}" for number in range(count)}


def test_unused_inputs_are_unchanged(clients: list[Client]) -> None:
    """Seven inputs are put and four are folded. The others are unchanged and go into the next sum."""
    values = {f"part/{number}": numbers(100_000, seed=number) for number in range(7)}
    first = clients[0].reduce(values, count=4)
    for number, (name, value) in enumerate(values.items()):
        clients[number % 3].put(value, name=name)
    folded = check(clients[0], first, values)
    assert len(folded) == 4
    spares = [name for name in values if name not in folded]
    clients[0].delete([first, *folded])
    second = clients[0].reduce(spares)
    assert set(check(clients[0], second, values)) == set(spares)


def test_many_inputs(clients: list[Client]) -> None:
    values = [numbers(1000, seed=seed) for seed in range(60)]
    refs = [clients[number % 3].put(value) for number, value in enumerate(values)]
    same(clients[1].get(clients[1].reduce(refs), timeout=SOON), fold("sum", values))


@pytest.mark.parametrize("nodes", [2, 5, 8])
def test_any_number_of_nodes(nodes: int) -> None:
    """One large input on each node: the tree has positions on nodes other than the caller's."""
    with testing.cluster(nodes, capacity="128MiB") as running:
        clients = [node.client() for node in running]
        values = [numbers(500_000, seed=seed) for seed in range(nodes)]
        refs = [client.put(value) for client, value in zip(clients, values, strict=True)]
        total = clients[0].reduce(refs)
        gets = [Later(client.get, total, timeout=SOON) for client in clients]
        for get in gets:
            same(get.result(), fold("sum", values))


def test_sums_are_folded_on_other_nodes_than_the_callers() -> None:
    with testing.cluster(4, capacity="128MiB") as nodes:
        clients = [node.client() for node in nodes]
        refs = [client.put(numbers(2_000_000)) for client in clients for _ in range(2)]
        clients[0].get(clients[0].reduce(refs), timeout=SOON)
        counters = [client.status()["counters"] for client in clients]
        assert sum(counter["bytes_folded_remote"] for counter in counters) > 0


def test_integers_wrap_around(clients: list[Client]) -> None:
    refs = [client.put(np.array([200, 100], np.uint8)) for client in clients]
    same(clients[0].get(clients[0].reduce(refs), timeout=SOON), np.array([88, 44], np.uint8))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_propagates(clients: list[Client], dtype: str) -> None:
    """Wherever any input has a NaN, every result has one."""
    values = [numbers(40_000, dtype, seed=seed) for seed in range(3)]
    for place, value in enumerate(values):
        value[place * 10_000] = np.nan
    refs = [client.put(value) for client, value in zip(clients, values, strict=True)]
    for op in OPS[dtype]:
        got = clients[0].get(clients[0].reduce(refs, op), timeout=SOON)
        assert np.flatnonzero(np.isnan(got)).tolist() == [0, 10_000, 20_000]


@pytest.mark.parametrize("dtype", ["datetime64", "timedelta64"])
def test_nat_propagates(clients: list[Client], dtype: str) -> None:
    """NaT behaves as NaN does, in every unit."""
    values = [numbers(40_000, dtype, seed=seed).view(f"{dtype}[25us]") for seed in range(3)]
    for place, value in enumerate(values):
        value[place * 10_000] = "NaT"
    refs = [client.put(value) for client, value in zip(clients, values, strict=True)]
    for op in OPS[dtype]:
        got = clients[0].get(clients[0].reduce(refs, op), timeout=SOON)
        assert np.flatnonzero(np.isnat(got)).tolist() == [0, 10_000, 20_000]
        expected = fold(op, values)
        same(got[~np.isnat(got)], expected[~np.isnat(expected)])


@pytest.mark.parametrize("size", [10, 100_000])
def test_inputs_of_two_units_are_named_with_their_units(clients: list[Client], size: int) -> None:
    refs = [
        client.put(numbers(size, "datetime64").view(f"datetime64{unit}"), name=f"when/{unit}")
        for client, unit in zip(clients, ("[ns]", "[25us]"), strict=False)
    ]
    with pytest.raises(hoplite.ShapeMismatch) as caught:
        clients[2].get(clients[2].reduce(refs, "max"), timeout=SOON)
    for unit in ("[ns]", "[25us]"):
        assert f"when/{unit} is datetime64{unit}[{size}]" in str(caught.value)


@pytest.mark.parametrize("size", [10, 100_000])
def test_inputs_of_other_shape_or_dtype_are_named(clients: list[Client], size: int) -> None:
    """The error of `get` names both refs, on every node."""
    ref = clients[0].put(numbers(size))
    for other in (numbers(size + 1), numbers((size, 1)), numbers(size, "float64")):
        second = clients[1].put(other)
        total = clients[2].reduce([ref, second])
        for client in clients:
            with pytest.raises(hoplite.ShapeMismatch) as caught:
                client.get(total, timeout=SOON)
            assert str(ref) in str(caught.value)
            assert str(second) in str(caught.value)


def test_bytes_are_rejected_as_an_input(clients: list[Client]) -> None:
    ref = clients[1].put(b"hello")
    with pytest.raises(hoplite.UnsupportedDtype, match=str(ref)):
        clients[0].get(clients[0].reduce([ref]), timeout=SOON)


def test_a_deleted_input_ends_the_reduce(clients: list[Client]) -> None:
    ref = clients[1].put(numbers(100_000))
    clients[1].delete(ref)
    with pytest.raises(hoplite.ObjectDeleted, match=str(ref)):
        clients[0].get(clients[0].reduce([ref, "never/1"]), timeout=SOON)


def test_a_get_of_a_sum_respects_its_timeout(clients: list[Client]) -> None:
    total = clients[0].reduce(["never/1", "never/2"])
    for client in clients:
        with pytest.raises(hoplite.Timeout):
            client.get(total, timeout=0.2)
    with pytest.raises(hoplite.Timeout):
        total.inputs(timeout=0.2)
    clients[0].delete(total)


def test_a_reduce_ends_with_its_client(clients: list[Client]) -> None:
    """Its client detaches before any input is put: nothing would end it otherwise."""
    node = clients[0].node
    assert node is not None
    with node.client() as caller:
        totals = [str(caller.reduce(["part/1", "part/2"], name=name)) for name in (None, "whole/1")]
    for client, total in itertools.product(clients, totals):
        with pytest.raises(hoplite.ObjectLost, match="started its reduce and ended or detached before the result"):
            client.get(total, timeout=SOON)
    # The name is free again, and a complete result stays.
    for number in (1, 2):
        clients[number].put(numbers(100_000, seed=number), name=f"part/{number}")
    with node.client() as caller:
        caller.wait([caller.reduce(["part/1", "part/2"], name="whole/1")], timeout=SOON)
    same(clients[1].get("whole/1", timeout=SOON), fold("sum", [numbers(100_000, seed=1), numbers(100_000, seed=2)]))


def test_inputs_of_another_object_are_rejected(clients: list[Client]) -> None:
    ref = clients[0].put(b"x")
    with pytest.raises(hoplite.HopliteError):
        ref.inputs(timeout=SOON)


def test_inputs_are_available_on_the_node_of_the_caller(clients: list[Client]) -> None:
    """To each client of that node. Another node rejects the request."""
    refs = [client.put(numbers(100_000)) for client in clients]
    total = clients[0].reduce(refs)
    assert clients[0].node is not None
    with clients[0].node.client() as other, hoplite.connect(clients[0].node.socket) as attached:
        for client in (clients[0], other, attached):
            assert set(hoplite.Ref(str(total), client).inputs(timeout=SOON)) == set(refs)
    with pytest.raises(hoplite.InvalidArgument, match=str(total)):
        hoplite.Ref(str(total), clients[1]).inputs(timeout=SOON)


@pytest.mark.parametrize("caller", [0, 1])
def test_two_chains_in_opposite_order_do_not_deadlock(caller: int) -> None:
    """16 MiB, larger than every buffer: neither reduce may block the other by filling a shared connection.

    The inputs are put in opposite order, so that one chain is 0, 1 and the other 1, 0. Both results are then read on
    both nodes at the same time.
    """
    size = 4 << 20
    with testing.cluster(2, capacity="256MiB") as nodes:
        clients = [node.client() for node in nodes]
        value = numbers(size)
        forth = clients[0].reduce(["a/0", "a/1", "a/2", "a/3"])
        back = clients[caller].reduce(["b/0", "b/1", "b/2", "b/3"])
        for number in range(4):
            puts = [
                Later(clients[number % 2].put, value, name=f"a/{number}"),
                Later(clients[(number + 1) % 2].put, value, name=f"b/{number}"),
            ]
            for put in puts:
                put.result()
        gets = [Later(client.get, total, timeout=SOON) for client in clients for total in (forth, back)]
        for get in gets:
            same(get.result(), value * 4)


@pytest.mark.parametrize(("caller", "inputs"), [("contributes", 1), ("contributes", 2), ("only requests", 1)], ids=str)
def test_a_sum_requested_by_its_contributors_runs_as_a_ring(caller: str, inputs: int) -> None:
    """Three contributors of 32 MiB each, enough for two rounds of parts: all get the same result, and all send sums."""
    with testing.cluster(3 if caller == "contributes" else 4, capacity="512MiB") as nodes:
        clients = [node.client() for node in nodes]
        seats = clients[-3:]
        size = (8 << 20) + 1001
        values = [numbers((size,), "int32", seed=seed) for seed in range(3 * inputs)]
        refs = [seats[number % 3].put(value) for number, value in enumerate(values)]
        total = clients[0].reserve()
        gets = [Later(client.get, total, timeout=SOON) for client in clients]
        # Wait until all gets are registered.
        clients[0].wait(refs, len(refs), timeout=SOON)
        eventually(lambda: all(client.status()["waiting"] > 0 for client in clients))
        # Each reply uses the same connections as the gets, so it arrives after the gets have been processed.
        for client in clients:
            client.directory(timeout=SOON)
        assert clients[0].reduce(refs, name=total) == total
        expected = fold("sum", values)
        for get in gets:
            same(get.result(), expected)
        # Views keep objects in memory.
        del get, gets
        assert set(total.inputs(timeout=SOON)) == set(refs)
        sent = [client.status()["counters"]["bytes_partial"] for client in seats]
        assert sum(sent) == 2 * expected.nbytes
        assert all(count > expected.nbytes // 2 for count in sent), "in a tree the caller would send none"
        clients[1].delete([total, *refs])
        for client in clients:
            eventually_empty(client)


def test_a_deleted_sum_leaves_nothing(clients: list[Client]) -> None:
    refs = [client.put(numbers(100_000)) for client in clients]
    total = clients[0].reduce(refs)
    for client in clients:
        client.get(total, timeout=SOON)
    clients[1].delete([total, *refs])
    for client in clients:
        eventually_empty(client)


@pytest.mark.long
def test_a_sum_of_more_than_4_gib() -> None:
    count = (4 << 30) + 12_345
    with testing.cluster(2, capacity="10GiB") as nodes:
        clients = [node.client() for node in nodes]
        value = np.ones(count, np.uint8)
        refs = [client.put(value) for client in clients]
        # Save memory.
        del value
        total = clients[0].get(clients[0].reduce(refs), timeout=600)
        assert total.shape == (count,)
        assert total.min() == total.max() == 2
