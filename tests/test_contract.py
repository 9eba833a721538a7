"""The contract of put, get, reduce, delete, latest and of a client itself.

It holds for every place and both kinds of verbs.
"""

from __future__ import annotations

import array
import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite.node_status import Status
from support import ARRAY_DTYPES, SOON, Later, eventually, fold, numbers, numpy_dtype, same
from typed import mismatches

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SMALL, LARGE = 100, 50_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])

ARRAYS: dict[str, Any] = {
    "float32": numbers((10, 10)),
    "large float64": numbers((300, 70), "float64"),
    "bfloat16": numbers(7, "bfloat16"),
    "float8": numbers(7, "float8_e4m3fn"),
    "large int4": numbers(100_001, "int4"),
    "large int8": numbers(100_001, "int8"),
    "0-d": np.float32(3),
    "empty": numbers((0, 4)),
    "fortran": np.asfortranarray(numbers((200, 300))),
    "strided": numbers((300, 300))[::2, ::3],
}


def test_arrays_round_trip(crew: Crew) -> None:
    for what, value in ARRAYS.items():
        got = crew.getter.get(crew.putter.put(value), timeout=SOON)
        same(got, np.asarray(value))
        assert not got.flags.writeable, what


def test_bytes_round_trip(crew: Crew) -> None:
    for value in (b"", b"hello", bytearray(b"hello"), memoryview(b"hello"), bytes(100_000) + b"end"):
        got = crew.getter.get(crew.putter.put(value), timeout=SOON)
        assert isinstance(got, memoryview)
        assert got.readonly
        assert got == value


def test_any_object_round_trips(crew: Crew) -> None:
    for value in ({"step": 17, "tags": ("a", "b")}, None, "spam" * 30_000, OrderedDict([("a", 1)])):
        got = crew.getter.get(crew.putter.put(value), timeout=SOON)
        assert got == value
        assert type(got) is type(value)


def test_arrays_inside_an_object_round_trip(crew: Crew) -> None:
    got = crew.getter.get(crew.putter.put({"small": numbers(3), "large": [numbers(LARGE)]}), timeout=SOON)
    same(got["small"], numbers(3))
    same(got["large"][0], numbers(LARGE))


@SIZES
def test_copy_decides_whether_a_value_is_shared_or_private(crew: Crew, size: int) -> None:
    ref = crew.putter.put(numbers(size))
    same(crew.getter.get(ref, copy=False, timeout=SOON), numbers(size))
    shared, again = crew.getter.get(ref, timeout=SOON), crew.getter.get(ref, timeout=SOON)
    own = crew.getter.get(ref, copy=True, timeout=SOON)
    assert own.flags.writeable
    assert not shared.flags.writeable
    assert np.shares_memory(shared, again) or size == SMALL
    own[:] = 9
    same(crew.getter.get(ref, timeout=SOON), numbers(size))
    assert isinstance(crew.getter.get(crew.putter.put(b"abc"), copy=True, timeout=SOON), bytes)


@SIZES
def test_a_name_works_on_every_node_and_can_be_put_once(crew: Crew, size: int) -> None:
    name = crew.name()
    assert crew.putter.put(numbers(size), name=name) == hoplite.Ref(name)
    for client in crew.clients:
        same(client.get(name, timeout=SOON), numbers(size))
        with pytest.raises(hoplite.NameTaken, match="object"):
            client.put(numbers(size), name=name)
        with pytest.raises(hoplite.NameTaken, match="object"):
            client.put(b"", name=name)


@SIZES
def test_exist_ok_returns_the_existing_object(crew: Crew, size: int) -> None:
    name = crew.name()
    for seed, client in enumerate(crew.clients):
        assert client.put(numbers(size, seed=seed), name=name, exist_ok=True) == hoplite.Ref(name)
    same(crew.getter.get(name, timeout=SOON), numbers(size, seed=0))
    crew.putter.delete(name)
    crew.reducer.put(numbers(size, seed=7), name=name, exist_ok=True)
    same(crew.getter.get(name, timeout=SOON), numbers(size, seed=7))
    # Without a name there is no existing object.
    assert crew.putter.put(b"", exist_ok=True) != crew.putter.put(b"", exist_ok=True)


@SIZES
def test_newest_refuses_a_put_below_the_newest_version(crew: Crew, size: int) -> None:
    prefix = crew.name("newest") + "/"
    for client, number in ((crew.putter, 7), (crew.getter, 9), (crew.reducer, 30)):
        client.put(numbers(size), name=f"{prefix}{number}", newest=True, retain=2)
        for other in crew.clients:
            with pytest.raises(
                hoplite.InvalidArgument, match=re.escape(f"{prefix}6 would go back: {prefix}{number} exists")
            ):
                other.put(numbers(size), name=f"{prefix}6", newest=True)
            with pytest.raises(hoplite.NameTaken):
                other.put(numbers(size), name=f"{prefix}{number}", newest=True)
    # An existing object is returned, although it is not the newest.
    assert crew.putter.put(b"", name=f"{prefix}9", newest=True, exist_ok=True) == hoplite.Ref(f"{prefix}9")
    for name in (None, "none"):
        with pytest.raises(hoplite.InvalidArgument, match="newest needs a name that ends in"):
            crew.putter.put(b"", name=name, newest=True)


def test_timeout_0_returns_only_local_objects(crew: Crew) -> None:
    with pytest.raises(hoplite.Timeout, match="nobody"):
        crew.getter.get(crew.name("nobody"), timeout=0)
    ref = crew.putter.put(numbers(LARGE))
    same(crew.putter.get(ref, timeout=0), numbers(LARGE))
    crew.getter.get(ref, timeout=SOON)
    same(crew.getter.get(ref, timeout=0), numbers(LARGE))


def test_a_timeout_names_the_object(crew: Crew) -> None:
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match="nobody") as caught:
        crew.getter.get(crew.name("nobody"), timeout=0.05)
    assert isinstance(caught.value, hoplite.Timeout)
    assert time.monotonic() - begun >= 0.05
    assert crew.getter.status()["waiting"] == 0


@SIZES
def test_a_get_waits_for_a_name_that_is_put_later(crew: Crew, size: int) -> None:
    gets = [Later(client.get, crew.name(), timeout=SOON) for client in crew.clients]
    eventually(lambda: sum(node.client().status()["waiting"] for node in crew.nodes) == 3)
    assert not any(get.done() for get in gets)
    crew.putter.put(numbers(size), name=crew.name())
    for get in gets:
        same(get.result(), numbers(size))


@SIZES
def test_a_list_is_returned_in_order_with_duplicates(crew: Crew, size: int) -> None:
    refs = [crew.clients[seed % 3].put(numbers(size, seed=seed)) for seed in range(5)]
    order = [3, 0, 3, 4, 1, 2, 0]
    got = crew.getter.get([refs[place] for place in order], timeout=SOON)
    assert isinstance(got, list)
    for place, value in zip(order, got, strict=True):
        same(value, numbers(size, seed=place))
    assert crew.getter.get([], timeout=0) == []
    same(crew.getter.get(iter(refs), timeout=SOON)[4], numbers(size, seed=4))


@pytest.mark.parametrize("with_out", [False, True], ids=["views", "out"])
def test_one_failure_in_a_list_fails_the_get_and_releases_the_rest(crew: Crew, with_out: bool) -> None:
    there, gone, never = crew.putter.put(numbers(LARGE)), crew.putter.put(numbers(LARGE)), crew.name("never")
    crew.putter.delete(gone)
    refs: list[hoplite.Ref | str] = [there, gone, never]
    out = [np.zeros(LARGE, "float32") for _ in refs] if with_out else None
    with pytest.raises(hoplite.ObjectDeleted) as caught:
        crew.getter.get(refs, out=out, timeout=SOON)
    # While the error, and with it the frames of its traceback, exists.
    eventually(lambda: crew.getter.status()["waiting"] == 0)
    assert caught.value is not None
    # The failed get did not wait for this object; its first transfer may take longer than the timeout of the get below.
    crew.getter.get(there, timeout=SOON)
    with pytest.raises(hoplite.Timeout, match="never"):
        crew.getter.get([there, never], out=None if out is None else out[:2], timeout=0.05)
    assert crew.getter.status()["waiting"] == 0


@SIZES
def test_out_is_filled_and_returned(crew: Crew, size: int) -> None:
    ref = crew.putter.put(numbers(size))
    out = np.full(size, 9, "float32")
    for _ in range(2):
        assert crew.getter.get(ref, out=out, timeout=SOON) is out
        same(out, numbers(size))
    rows = np.full((3, size), 9, "float32")
    crew.getter.get(ref, out=rows[1], timeout=SOON)
    same(rows[1], numbers(size))
    assert (rows[0] == 9).all()
    assert (rows[2] == 9).all()


@SIZES
def test_out_may_be_any_memory(crew: Crew, size: int) -> None:
    value = numbers(size)
    ref = crew.putter.put(value)
    plain = bytearray(value.nbytes)
    assert crew.getter.get(ref, out=plain, timeout=SOON) is plain
    assert plain == value.tobytes()
    half = memoryview(bytearray(2 * value.nbytes))[value.nbytes :]
    crew.getter.get(ref, out=half, timeout=SOON)
    assert half == value.tobytes()
    typed = array.array("f", [9.0]) * size
    crew.getter.get(ref, out=typed, timeout=SOON)
    assert typed.tobytes() == value.tobytes()
    text = crew.putter.put(b"x" * size * 4)
    crew.getter.get(text, out=plain, timeout=SOON)
    assert plain == b"x" * size * 4


@SIZES
def test_out_is_filled_while_the_object_arrives(crew: Crew, size: int) -> None:
    """The get is requested before the object is created, and the object is sealed late."""
    out = np.full(size, 9, "float32")
    get = Later(crew.getter.get, crew.name(), out=out, timeout=SOON)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    buffer = crew.putter.create(size, name=crew.name())
    buffer[...] = numbers(size)
    assert not get.done(within=0.05)
    buffer.seal()
    assert get.result() is out
    same(out, numbers(size))


@SIZES
def test_a_list_takes_a_list_of_outs(crew: Crew, size: int) -> None:
    names = [crew.name(number) for number in range(3)]
    outs = [np.full(size, 9, "float32") for _ in names]
    get = Later(crew.getter.get, names, out=outs, timeout=SOON)
    # Not in the order of the list.
    for number in (2, 0, 1):
        crew.putter.put(numbers(size, seed=number), name=names[number])
    assert all(got is out for got, out in zip(get.result(), outs, strict=True))
    for number, out in enumerate(outs):
        same(out, numbers(size, seed=number))
    with pytest.raises(hoplite.InvalidArgument, match="2 values for 3"):
        crew.getter.get(names, out=outs[:2], timeout=SOON)


@SIZES
def test_an_out_that_does_not_fit_is_rejected(crew: Crew, size: int) -> None:
    ref = crew.putter.put(numbers(size))
    for out in (np.zeros(size + 1, "float32"), np.zeros(size, "int32"), bytearray(3)):
        with pytest.raises(hoplite.ShapeMismatch) as caught:
            crew.getter.get(ref, out=out, timeout=SOON)
        eventually(lambda: crew.getter.status()["waiting"] == 0)
        # A rejected get leaves no reader behind while the error exists.
        assert not any(row["readers"] for row in crew.getter.objects())
        assert caught.value is not None
    with pytest.raises(hoplite.InvalidArgument):
        crew.getter.get(ref, out=np.zeros(size, "float32")[::-1], timeout=SOON)
    with pytest.raises(hoplite.InvalidArgument):
        crew.getter.get(ref, out=bytes(4 * size), timeout=SOON)


@SIZES
def test_a_get_into_out_respects_its_timeout(crew: Crew, size: int) -> None:
    for limit in (0, 0.05):
        with pytest.raises(hoplite.Timeout, match="never"):
            crew.getter.get(crew.name("never"), out=np.zeros(size, "float32"), timeout=limit)
        assert crew.getter.status()["waiting"] == 0


@SIZES
def test_delete_applies_to_all_nodes_and_values_stay_valid(crew: Crew, size: int) -> None:
    refs = [crew.putter.put(numbers(size, seed=seed)) for seed in range(4)]
    values = crew.getter.get(refs, timeout=SOON)
    crew.reducer.delete(refs[0])
    crew.reducer.delete([refs[1], str(refs[2])])
    crew.reducer.delete(ref for ref in refs[3:])
    crew.reducer.delete([])
    for client in crew.clients:
        for ref in refs:
            with pytest.raises(hoplite.ObjectDeleted):
                client.get(ref, timeout=SOON)
    for seed, value in enumerate(values):
        same(value, numbers(size, seed=seed))


@pytest.mark.faults("an object is deleted while it is fetched")
def test_a_deletion_fails_pending_gets(crew: Crew) -> None:
    buffer = crew.putter.create(LARGE, name=crew.name())
    gets = [Later(client.get, crew.name(), timeout=SOON) for client in crew.clients]
    gets.append(Later(crew.getter.get, crew.name(), out=np.zeros(LARGE, "float32"), timeout=SOON))
    eventually(lambda: sum(node.client().status()["waiting"] for node in crew.nodes) >= 4)
    # The owner of the name knows every node that waits: an unknown one would wait for the next object of this name.
    eventually(lambda: len(crew.getter.locations(crew.name())) == len(crew.nodes))
    crew.getter.delete(crew.name())
    for get in gets:
        with pytest.raises(hoplite.ObjectDeleted):
            get.result()
    buffer.discard()


@SIZES
def test_a_deleted_name_is_free_again(crew: Crew, size: int) -> None:
    for turn in range(4):
        crew.clients[turn % 3].put(numbers(size, seed=turn), name=crew.name())
        same(crew.getter.get(crew.name(), timeout=SOON), numbers(size, seed=turn))
        crew.clients[(turn + 1) % 3].delete(crew.name())


@SIZES
def test_a_reduce_is_the_fold_of_its_inputs(crew: Crew, size: int) -> None:
    """Some inputs exist, others are put later; another node gets the result."""
    names = [crew.name(number) for number in range(4)]
    values = [numbers(size, seed=seed) for seed in range(4)]
    for number in (0, 1):
        crew.clients[number].put(values[number], name=names[number])
    totals = {op: crew.reducer.reduce(names, op) for op in ("sum", "min", "max", "prod", "mean")}
    gets = {op: Later(crew.getter.get, total, timeout=SOON) for op, total in totals.items()}
    for number in (2, 3):
        crew.clients[number % 3].put(values[number], name=names[number])
    for op, get in gets.items():
        same(get.result(), fold(op, values))
        assert sorted(map(str, totals[op].inputs(timeout=SOON))) == names


@SIZES
def test_a_reduce_folds_the_first_count_and_leaves_the_rest(crew: Crew, size: int) -> None:
    names = [crew.name(number) for number in range(5)]
    total = crew.reducer.reduce(names, count=3)
    with pytest.raises(hoplite.Timeout):
        total.inputs(timeout=0)
    for number in (4, 1, 2):
        crew.clients[number % 3].put(numbers(size, "int64", seed=number), name=names[number])
    same(
        crew.getter.get(total, timeout=SOON), fold("sum", [numbers(size, "int64", seed=number) for number in (4, 1, 2)])
    )
    assert {ref.number for ref in total.inputs(timeout=SOON)} == {1, 2, 4}
    crew.putter.put(numbers(size, "int64", seed=9), name=names[0])
    same(crew.getter.get(names[0], timeout=SOON), numbers(size, "int64", seed=9))


def test_a_reduce_takes_a_name_for_its_result(crew: Crew) -> None:
    for number in range(2):
        crew.putter.put(numbers(LARGE, seed=number), name=crew.name(number))
    total = crew.reducer.reduce([crew.name(0), crew.name(1)], name=crew.name("total"))
    assert total == hoplite.Ref(crew.name("total"))
    same(crew.getter.get(crew.name("total"), timeout=SOON), numbers(LARGE, seed=0) + numbers(LARGE, seed=1))


def test_a_reduce_can_not_take_the_name_of_an_object(crew: Crew) -> None:
    crew.putter.put(b"here", name=crew.name())
    with pytest.raises(hoplite.NameTaken, match="object"):
        crew.reducer.reduce([crew.name("never")], name=crew.name())
    assert crew.getter.get(crew.name(), timeout=SOON) == b"here"


def test_the_name_of_a_pending_reduce_is_taken(crew: Crew) -> None:
    crew.reducer.reduce([crew.name("never")], name=crew.name())
    for client in crew.clients:
        with pytest.raises(hoplite.NameTaken, match="object"):
            client.reduce([crew.name("other")], name=crew.name())
        for size in (SMALL, LARGE):
            with pytest.raises(hoplite.NameTaken, match="object"):
                client.put(numbers(size), name=crew.name())
    crew.getter.delete(crew.name())
    crew.settled()
    crew.putter.put(b"free", name=crew.name())
    assert crew.getter.get(crew.name(), timeout=SOON) == b"free"


def test_the_name_of_a_failed_reduce_is_free(crew: Crew) -> None:
    crew.putter.put(numbers(3), name=crew.name(0))
    crew.putter.put(numbers(4), name=crew.name(1))
    try:
        total = crew.reducer.reduce([crew.name(0), crew.name(1)], name=crew.name("total"))
        with pytest.raises(hoplite.ShapeMismatch):
            crew.getter.get(total, timeout=SOON)
    except hoplite.ShapeMismatch:
        pass
    crew.putter.put(b"free", name=crew.name("total"))
    assert crew.reducer.get(crew.name("total"), timeout=SOON) == b"free"


def test_the_timeout_of_a_reduce_names_the_missing_inputs(crew: Crew) -> None:
    crew.putter.put(numbers(SMALL), name=crew.name("came"))
    total = crew.reducer.reduce([crew.name("came"), crew.name("missing")], timeout=0.1)
    get = Later(crew.getter.get, total, timeout=SOON)
    with pytest.raises(hoplite.Timeout, match="missing"):
        get.result()
    with pytest.raises(hoplite.Timeout, match="missing"):
        total.inputs(timeout=SOON)
    assert crew.reducer.status()["reduces"] == 0


def test_a_deleted_input_or_result_ends_a_reduce(crew: Crew) -> None:
    for which in ("input", "result"):
        input_name = crew.name(which)
        total = crew.reducer.reduce([input_name, crew.name("never")])
        get = Later(crew.getter.get, total, timeout=SOON)
        eventually(lambda: crew.getter.status()["waiting"] > 0)
        crew.putter.put(numbers(SMALL), name=input_name)
        crew.putter.delete(input_name if which == "input" else total)
        with pytest.raises(hoplite.ObjectDeleted):
            get.result()


def test_inputs_are_available_for_reduces_of_this_node(crew: Crew) -> None:
    with pytest.raises(hoplite.InvalidArgument):
        crew.putter.put(b"").inputs(timeout=SOON)
    ref = crew.putter.put(numbers(3))
    total = crew.reducer.reduce([ref])
    assert hoplite.Ref(str(total), crew.reducer).inputs(timeout=SOON) == [ref]


def test_latest_returns_the_highest_number_above_after(crew: Crew) -> None:
    prefix = crew.name("")
    with pytest.raises(hoplite.Timeout):
        crew.getter.latest(prefix, timeout=0)
    for number in (2, 10, 9):
        crew.clients[number % 3].put(b"x", name=crew.name(number))
    for client in crew.clients:
        assert client.latest(prefix, timeout=SOON).number == 10
        assert client.latest(prefix, after=9, timeout=SOON).number == 10
        with pytest.raises(hoplite.Timeout):
            client.latest(prefix, after=10, timeout=0.02)
    newest = Later(crew.getter.latest, prefix, after=10, timeout=SOON)
    eventually(lambda: crew.getter.status()["waiting"] > 0)
    crew.putter.put(numbers(LARGE), name=crew.name(11))
    assert newest.result() == hoplite.Ref(crew.name(11))
    crew.putter.delete(crew.name(11))
    assert crew.getter.latest(prefix, timeout=SOON).number == 10


def test_status_and_objects_agree(crew: Crew) -> None:
    value = numbers(LARGE)
    large, small = crew.putter.put(value), crew.putter.put(b"x", name=crew.name())
    status = crew.putter.status()
    rows = {row["ref"]: row for row in crew.putter.objects()}
    assert rows.keys() == {str(large), str(small)}
    assert rows[str(large)]["bytes"] == value.nbytes
    assert rows[str(large)]["pinned"]
    assert status["id"] == crew.nodes[0].id
    assert status["address"] == crew.nodes[0].address
    (member,) = [member for member in status["members"] if member["id"] == status["id"]]
    assert member == {
        **{name: dict(status)[name] for name in ("id", "address", "rack", "place", "carries")},
        "suspected": None,
        "blocks_corrupt": 0,
        "via": None,
        "rtt_us": None,
        "bytes_per_second": None,
    }
    assert mismatches(status, Status) == []
    assert status["lost"] == []
    assert len(status["members"]) == 3
    assert status["objects"] == 2
    assert status["waiting"] == status["reduces"] == 0
    assert status["store"]["used"] >= value.nbytes
    assert status["store"]["capacity"] == 128 << 20
    assert all(isinstance(number, int) for number in (*status["store"].values(), *status["counters"].values()))
    assert status["counters"].keys() >= {"bytes_direct", "bytes_relayed", "fetches", "serves"}
    held = crew.putter.get(large, timeout=SOON)
    assert next(row["readers"] for row in crew.putter.objects() if row["ref"] == str(large)) > 0
    same(held, value)


def test_calls_of_a_closed_client_raise_client_closed(crew: Crew) -> None:
    client = crew.another()
    ref = client.put(numbers(LARGE))
    value = client.get(ref, timeout=SOON)
    assert not client.closed
    client.close()
    client.close()
    assert client.closed
    calls: list[Any] = [
        lambda: client.put(b""),
        lambda: client.put(numbers(LARGE)),
        lambda: client.get(ref),
        lambda: client.get([ref]),
        lambda: client.get(ref, out=np.zeros(LARGE, "float32")),
        lambda: client.create(LARGE),
        lambda: client.create(SMALL),
        lambda: client.wait([ref]),
        lambda: client.reduce([ref]),
        lambda: hoplite.Ref(str(ref), client).inputs(),
        lambda: client.delete(ref),
        lambda: client.latest("a/"),
        lambda: client.locations(ref),
        lambda: next(iter(client.watch_locations(ref))),
        lambda: client.status(),
        lambda: client.objects(),
    ]
    for call in calls:
        with pytest.raises(hoplite.ClientClosed, match="closed"):
            call()
    same(value, numbers(LARGE))
    same(crew.getter.get(ref, timeout=SOON), numbers(LARGE))


@pytest.mark.parametrize("others", [0, 2])
def test_close_ends_every_pending_call(crew: Crew, others: int) -> None:
    """Other threads wait too: one of them reads the node's replies, the others sleep."""
    client, missing = crew.another(), crew.name("missing")
    sleepers = [Later(client.get, crew.name(f"other/{number}")) for number in range(others)]
    total = client.reduce([missing])
    space = np.zeros(LARGE, "float32")
    waits = [
        Later(client.get, missing),
        Later(client.get, missing, timeout=1000),
        Later(client.get, [missing, crew.name("second")]),
        Later(client.get, missing, out=space),
        Later(client.get, [missing], out=[space]),
        Later(client.wait, [missing]),
        Later(client.latest, crew.name("missing/")),
        Later(total.inputs),
        Later(lambda: next(iter(client.watch_locations(missing)))),
    ]
    pending = len(sleepers) + len(waits)
    eventually(lambda: sum(node.client().status()["waiting"] for node in crew.nodes) >= pending)
    assert not any(wait.done() for wait in [*sleepers, *waits])
    client.close()
    for wait in [*sleepers, *waits]:
        with pytest.raises(hoplite.ClientClosed, match="this client is closed"):
            wait.result()
    crew.putter.delete(total)


def test_closing_during_a_put_that_waits_for_capacity_leaves_no_object(crew: Crew) -> None:
    client = crew.another()
    held = client.put(np.zeros(100 << 20, "uint8"))
    put = Later(client.put, np.zeros(100 << 20, "uint8"), name=crew.name("late"))
    eventually(lambda: client.status()["waiting"] > 0)
    client.close()
    with pytest.raises(hoplite.ClientClosed, match="this client is closed"):
        put.result()
    crew.putter.delete(held)
    crew.settled()
    with pytest.raises(hoplite.Timeout, match="late"):
        crew.getter.get(crew.name("late"), timeout=0)


def test_a_buffer_of_a_closed_client_leaves_no_object(crew: Crew) -> None:
    client = crew.another()
    buffers = [client.create(size, name=crew.name(size)) for size in (SMALL, LARGE)]
    client.close()
    for buffer in buffers:
        buffer[:] = numbers(len(buffer))
        with pytest.raises(hoplite.ClientClosed, match="this client is closed"):
            buffer.seal()
        buffer.discard()
    eventually(lambda: crew.putter.objects() == [])


def test_a_with_block_closes_its_client(crew: Crew) -> None:
    with crew.another() as client:
        ref = client.put(b"x")
        assert not client.closed
    assert client.closed
    assert crew.getter.get(ref, timeout=SOON) == b"x"
    with pytest.raises(KeyError), crew.another() as client:
        raise KeyError
    assert client.closed


def test_every_dtype_round_trips(crew: Crew) -> None:
    for dtype in ARRAY_DTYPES:
        same(crew.getter.get(crew.putter.put(numbers(5, dtype)), timeout=SOON), numbers(5, dtype))
        assert crew.getter.get(crew.putter.put(numbers((), dtype)), timeout=SOON).dtype == numpy_dtype(dtype)
