"""Operations on objects across languages: waits, reduces, versions, reservations, deletions, locations and status."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import node_status
from native.clients import NativeClient
from native.conftest import Pair, paired
from support import SOON, Later, eventually, fold, numbers, same

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.peer import Peer

pytestmark = pytest.mark.native

# One size that travels in messages and one that is transferred in blocks, in elements of 4 bytes.
LENGTHS = (6, 1 << 20)


def sides(pair: Pair) -> Sequence[Any]:
    return pair.python, pair.native


def inputs_of(client: hoplite.Client | NativeClient, ref: object) -> set[str]:
    if isinstance(client, NativeClient):
        return set(client.inputs(ref, timeout=SOON))
    return set(map(str, hoplite.Ref(str(ref), client).inputs(SOON)))


def lost_of(client: hoplite.Client | NativeClient, ref: object) -> set[str]:
    if isinstance(client, NativeClient):
        return set(client.lost(ref, timeout=SOON))
    return set(map(str, hoplite.Ref(str(ref), client).lost(SOON)))


@pytest.mark.parametrize(("length", "op"), [(LENGTHS[0], "mean"), (LENGTHS[1], "sum")])
def test_reduces_fold_inputs_of_both_sides(pair: Pair, op: str, length: int) -> None:
    """Four inputs of whole numbers, two from each side: the result is exact. Both sides call it, and both read it."""
    arrays = [numbers(length, "float32", seed=seed) + 1 for seed in range(4)]
    for number, (one, other) in enumerate([sides(pair), sides(pair)[::-1]]):
        names = [f"{number}/{at}" for at in range(4)]
        total = one.reduce(names, op, name=f"{op}/{number}")
        for at, (name, array) in enumerate(zip(names, arrays, strict=True)):
            sides(pair)[at % 2].put(array, name=name)
        expected = fold(op, arrays)
        same(one.get(total, timeout=SOON), expected)
        same(other.get(str(total), timeout=SOON), expected)
        assert inputs_of(one, total) == set(names)


def test_reduces_of_other_dtypes(pair: Pair) -> None:
    for dtype, op in (
        ("bool", "any"),
        ("bool", "all"),
        ("int64", "prod"),
        ("int64", "min"),
        ("bfloat16", "max"),
        ("complex64", "sum"),
    ):
        arrays = [numbers((3, 5), dtype, seed=seed) for seed in range(2)]
        refs = [str(side.put(array)) for side, array in zip(sides(pair), arrays, strict=True)]
        for one, other in (sides(pair), sides(pair)[::-1]):
            same(other.get(str(one.reduce(refs, op)), timeout=SOON), fold(op, arrays))


def test_a_reduce_folds_the_first_inputs_to_arrive(pair: Pair) -> None:
    """Of four inputs two exist; two suffice. The others are not folded when they come."""
    for number, (one, other) in enumerate([sides(pair), sides(pair)[::-1]]):
        names = [f"{number}/{at}" for at in range(4)]
        arrays = [numbers(1 << 18, "int32", seed=at) for at in range(4)]
        one.put(arrays[3], name=names[3])
        other.put(arrays[1], name=names[1])
        total = one.reduce(names, "sum", count=2)
        same(other.get(str(total), timeout=SOON), arrays[1] + arrays[3])
        one.put(arrays[0], name=names[0])
        other.put(arrays[2], name=names[2])
        assert inputs_of(one, total) == {names[1], names[3]}
        assert lost_of(one, total) == set()
        same(one.get(str(total), timeout=SOON), arrays[1] + arrays[3])


def test_a_reduce_folds_results_of_the_other_side(pair: Pair) -> None:
    refs = [str(side.put(np.full(1000, value, "int64"))) for side, value in zip(sides(pair), (1, 20), strict=True)]
    first = str(pair.native.reduce(refs, "sum"))
    last = str(pair.python.put(np.full(1000, 300, "int64")))
    total = pair.python.reduce([first, last], "sum")
    same(pair.native.get(str(total), timeout=SOON), np.full(1000, 321, "int64"))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_get_waits_for_an_object_that_the_other_side_reserved(pair: Pair, length: int) -> None:
    array = numbers(length, "int32")
    reserved = pair.native.reserve()
    waiting = Later(pair.python.get, reserved, timeout=SOON)
    assert pair.native.put(array, name=reserved) == reserved
    same(waiting.result(), array)
    ref = pair.python.reserve()
    native = Later(pair.native.get, ref, timeout=SOON)
    assert pair.python.put(array, name=ref) == ref
    same(native.result(), array)


def test_a_deletion_ends_the_waits_of_the_other_side(pair: Pair) -> None:
    """The reservation of the deleted object is canceled."""
    ref = pair.python.reserve()
    pending = pair.native.call("get", ref=str(ref), timeout=SOON, **{"async": True})["pending"]
    pair.python.delete(ref)
    with pytest.raises(hoplite.ObjectDeleted):
        pair.peer.call("take", pending=pending)
    reserved = pair.native.reserve()
    waiting = Later(pair.python.get, reserved, timeout=SOON)
    pair.native.delete(reserved)
    with pytest.raises(hoplite.ObjectDeleted):
        waiting.result()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_deleted_object_is_gone_on_both_sides(pair: Pair, length: int) -> None:
    """What the other side holds stays valid. The name can be put again."""
    array = numbers(length, "int32")
    for number, (one, other) in enumerate([sides(pair), sides(pair)[::-1]]):
        ref, name = str(one.put(array)), f"{number}/x"
        one.put(array, name=name)
        held = pair.python.get(ref, timeout=SOON)
        view = pair.native.hold(ref, timeout=SOON)
        other.delete([ref, name])
        for side in (one, other):
            with pytest.raises(hoplite.ObjectDeleted):
                side.get(ref, timeout=SOON)
            with pytest.raises(hoplite.Timeout):
                side.get(name, timeout=0)
        same(held, array)
        assert pair.peer.call("sum", view=view)["sum"] == int(array.view("uint8").sum())
        pair.peer.call("release", view=view)
        other.put(array + 1, name=name)
        same(one.get(name, timeout=SOON), array + 1)


def test_versions_of_both_sides(pair: Pair) -> None:
    """`latest` finds the newest of either side, and `retain` deletes old versions of either side."""
    pair.python.put(b"1", name="policy/1")
    pair.native.put(b"2", name="policy/2")
    for side in sides(pair):
        assert str(side.latest("policy/", timeout=SOON)) == "policy/2"
        with pytest.raises(hoplite.Timeout):
            side.latest("policy/", after=2, timeout=0)
    waiting = Later(pair.python.latest, "policy/", after=2, timeout=SOON)
    pair.native.put(b"3", name="policy/3", retain=2)
    assert str(waiting.result()) == "policy/3"
    native = Later(pair.native.latest, "policy/", after=3, timeout=SOON)
    pair.python.put(b"4", name="policy/4", retain=2)
    assert native.result() == "policy/4"
    for side in sides(pair):
        assert bytes(side.get("policy/3", timeout=SOON)) == b"3"
        for gone in ("policy/1", "policy/2"):
            with pytest.raises(hoplite.ObjectDeleted):
                side.get(gone, timeout=SOON)


def test_newest_refuses_a_version_below_that_of_the_other_side(pair: Pair) -> None:
    for number, (one, other) in enumerate([sides(pair), sides(pair)[::-1]]):
        one.put(b"7", name=f"{number}/7", newest=True)
        with pytest.raises(hoplite.InvalidArgument, match=f"{number}/7 exists"):
            other.put(b"6", name=f"{number}/6", newest=True)
        other.put(b"8", name=f"{number}/8", newest=True)


def test_exist_ok_returns_the_object_of_the_other_side(pair: Pair) -> None:
    for number, (one, other) in enumerate([sides(pair), sides(pair)[::-1]]):
        name = f"{number}/x"
        one.put(b"first", name=name)
        assert str(other.put(b"second", name=name, exist_ok=True)) == name
        assert bytes(other.get(name, timeout=SOON)) == b"first"


def test_replicas_are_counted(pair: Pair) -> None:
    """A put reports how many nodes keep a copy; their number is limited by the cluster."""
    data = pair.peer.file(bytes(1 << 20))
    for wanted in (1, 2, 3):
        reply = pair.native.call("put", data=data, replicas=wanted, timeout=SOON)
        python = pair.python.put(bytes(1 << 20), replicas=wanted, timeout=SOON)
        assert reply["replicas"] == python.replicas == min(wanted, pair.nodes)


def test_wait_returns_what_is_ready_in_order(pair: Pair) -> None:
    pair.python.put(b"1", name="a/1")
    pair.native.put(b"2", name="a/2")
    names = ["a/3", "a/1", "a/2"]
    for side in sides(pair):
        ready, rest = side.wait(names, 2, timeout=SOON)
        assert set(map(str, ready)) == {"a/1", "a/2"}
        assert list(map(str, rest)) == ["a/3"]
        ready, rest = side.wait(names, timeout=0)
        assert set(map(str, ready)) == {"a/1", "a/2"}
    waiting = Later(pair.native.wait, names, timeout=SOON)
    pair.python.put(b"3", name="a/3")
    assert set(waiting.result()[0]) == set(names)


def test_locations_agree(pair: Pair) -> None:
    """Each side sees the same nodes, before and after the other has fetched a copy and announced it."""

    def agree(ref: str, nodes: set[tuple[str, str | None]]) -> bool:
        expected = {(node, address, True) for node, address in nodes}
        python = {(where.node, where.address, where.complete) for where in pair.python.locations(ref)}
        return python == set(pair.native.locations(ref)) == expected

    statuses = [side.status() for side in sides(pair)]
    first, second = [(status["id"], status["address"]) for status in statuses]
    for one, other, home in ((pair.python, pair.native, first), (pair.native, pair.python, second)):
        ref = str(one.put(numbers(1 << 18)))
        eventually(lambda ref=ref, home=home: agree(ref, {home}))  # type: ignore[misc]
        other.get(ref, timeout=SOON)
        eventually(lambda ref=ref: agree(ref, {first, second}))  # type: ignore[misc]


def test_status_has_the_same_fields(pair: Pair) -> None:
    """Same JSON from both sides; from one node, also the same values where nothing moves."""
    python, native = pair.python.status(), pair.native.status()
    assert native.keys() == python.keys() == node_status.Status.__annotations__.keys() | _described()
    assert native["store"].keys() == python["store"].keys()
    assert native["counters"].keys() == python["counters"].keys()
    assert {row["id"] for row in native["members"]} == {row["id"] for row in python["members"]}
    assert native["cluster"] == python["cluster"]
    assert (native["id"] == python["id"]) == (pair.nodes == 1)


def _described() -> set[str]:
    return set(node_status.NodeDescription.__annotations__)


def test_objects_expire_on_both_sides(pair: Pair) -> None:
    """A time to live set by one side deletes the object for the other. All limits pass at once."""
    waits = []
    for number, one in enumerate(sides(pair)):
        one.put(b"x", name=f"{number}/ttl", ttl=0.5)
        waits.append(f"{number}/ttl")
    kept = [str(side.put(b"x", ttl=1000.0)) for side in sides(pair)]
    for side in sides(pair):
        for name in waits:
            eventually(lambda side=side, name=name: not side.locations(name))  # type: ignore[misc]
        for ref in kept:
            assert bytes(side.get(ref, timeout=SOON)) == b"x"


def test_a_lease_of_either_side_keeps_an_object(peer: Peer) -> None:
    """The object is deleted 5 s after the last lease, whichever side had it. In one setup, for the sake of time."""
    with contextlib.ExitStack() as stack:
        pair = paired(peer, stack, "native joins")
        ref = str(pair.python.put(b"x"))
        lease = pair.native.lease(ref, timeout=SOON)
        with pair.python.lease(ref, timeout=SOON):
            peer.call("release", lease=lease)
            assert bytes(pair.native.get(ref, timeout=SOON)) == b"x"
        eventually(lambda: _is_deleted(pair, ref))


def _is_deleted(pair: Pair, ref: str) -> bool:
    try:
        pair.native.get(ref, timeout=SOON)
    except hoplite.ObjectDeleted:
        return True
    return False
