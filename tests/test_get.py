"""Get: waits for objects that do not exist yet, copies nothing, and its results stay valid."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

import hoplite
from hoplite import Client, Node, Ref, testing
from support import SOON, Later, eventually, numbers, same


def test_an_array_is_read_only(clients: list[Client]) -> None:
    value = clients[0].get(clients[0].put(numbers(100_000)))
    assert not value.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        value.flags.writeable = True


def test_bytes_are_a_read_only_memoryview(clients: list[Client]) -> None:
    value = clients[0].get(clients[0].put(b"hello"))
    assert isinstance(value, memoryview)
    assert value.readonly
    assert bytes(value) == b"hello"


def test_two_gets_share_memory(clients: list[Client]) -> None:
    ref = clients[0].put(numbers(100_000))
    assert np.shares_memory(clients[0].get(ref), clients[0].get(ref))


def test_a_ref_can_be_replaced_by_its_text_or_pickle(clients: list[Client]) -> None:
    ref = clients[0].put(numbers(10))
    for other in (str(ref), Ref(str(ref)), pickle.loads(pickle.dumps(ref))):
        same(clients[1].get(other, timeout=30), numbers(10))


def test_get_waits_for_a_later_put(clients: list[Client]) -> None:
    """On the putter's node and on others, for a small and a large object."""
    for size in (10, 300_000):
        name = f"late/{size}"
        gets = [Later(client.get, name, timeout=30) for client in clients]
        assert not gets[0].done(within=0.1)
        clients[1].put(numbers(size), name=name)
        for get in gets:
            same(get.result(), numbers(size))


def test_a_bytes_out_takes_any_object_of_its_size_except_a_pickle(clients: list[Client]) -> None:
    here, far = clients[:2]
    for value in (bytes(range(24)), np.arange(3.0).reshape(3, 1), numbers(24, "uint8")):
        out = bytearray(24)
        far.get(here.put(value), out=out, timeout=SOON)
        assert out == (value if isinstance(value, bytes) else value.tobytes())
    short, pickled = here.put(bytes(23)), here.put({"a": 1})
    with pytest.raises(hoplite.ShapeMismatch, match=f"{short} has 23 bytes, but out has 24: pass an out of that size"):
        far.get(short, out=bytearray(24), timeout=SOON)
    with pytest.raises(hoplite.ShapeMismatch, match=f"{pickled} is a pickled object, which can't be copied into out"):
        far.get(pickled, out=bytearray(24), timeout=SOON)


def test_an_object_of_another_dtype_or_shape_does_not_fit(clients: list[Client]) -> None:
    here, far = clients[:2]
    out = np.zeros((2, 3), np.float32)
    values = {
        "float32 [3, 2]": np.zeros((3, 2), np.float32),
        "float32 [6]": np.zeros(6, np.float32),
        "float32 []": np.float32(1),
        "int32 [2, 3]": np.zeros((2, 3), np.int32),
        "24 bytes": bytes(24),
    }
    for described, value in values.items():
        ref = here.put(value)
        with pytest.raises(hoplite.ShapeMismatch) as caught:
            far.get(ref, out=out, timeout=SOON)
        assert f"{ref} is {described}, but out is float32 [2, 3]: pass an out of the same dtype" in str(caught.value)


def test_concurrent_readers_get_the_same_value(nodes: list[Node]) -> None:
    value = numbers(2_000_003)
    ref = nodes[0].client().put(value)
    gets = [Later(node.client().get, ref, timeout=30) for node in nodes * 4]
    for get in gets:
        same(get.result(), value)


def test_receivers_relay_bytes() -> None:
    """Five nodes get 32 MiB from one at the same time: some bytes are relayed."""
    value = numbers(32 << 20, "uint8")
    with testing.cluster(6, capacity="128MiB") as nodes:
        clients = [node.client() for node in nodes]
        ref = clients[0].put(value)
        gets = [Later(client.get, ref, timeout=30) for client in clients[1:]]
        for get in gets:
            same(get.result(), value)
        counters = [client.status()["counters"] for client in clients]
        assert sum(counter["bytes_relayed"] for counter in counters) > 0
        assert counters[0]["bytes_relayed"] == 0
        sent = sum(counter["bytes_direct"] + counter["bytes_relayed"] for counter in counters)
        assert sent >= 5 * value.nbytes


def test_timeout_0_returns_only_local_objects(clients: list[Client]) -> None:
    ref = clients[0].put(numbers(100_000))
    same(clients[0].get(ref, timeout=0), numbers(100_000))
    with pytest.raises(hoplite.Timeout):
        clients[1].get(ref, timeout=0)
    with pytest.raises(hoplite.Timeout):
        clients[0].get("nobody/1", timeout=0)
    clients[1].get(ref, timeout=30)
    same(clients[1].get(ref, timeout=0), numbers(100_000))


def test_a_timeout_names_the_object(clients: list[Client]) -> None:
    start = time.monotonic()
    with pytest.raises(hoplite.Timeout, match="nobody/1") as caught:
        clients[0].get("nobody/1", timeout=0.3)
    assert time.monotonic() - start >= 0.3
    assert isinstance(caught.value, TimeoutError)


def test_other_threads_run_while_one_waits(clients: list[Client]) -> None:
    """A waiting get has released the GIL: otherwise this thread would continue only after it."""
    get = Later(clients[0].get, "late/1", timeout=SOON)
    eventually(lambda: clients[0].status()["waiting"] > 0)
    assert sum(range(1_000_000)) == 499_999_500_000
    assert not get.done()
    clients[0].put(b"", name="late/1")
    get.result()


def test_a_view_outlives_delete_and_client_and_node() -> None:
    value = numbers(1_000_000)
    with testing.cluster(2) as nodes:
        client = nodes[0].client()
        ref = client.put(value)
        here = client.get(ref)
        there = nodes[1].client().get(ref, timeout=30)
        client.delete(ref)
        same(here, value)
        client.close()
        same(here, value)
    same(here, value)
    same(there, value)


def test_a_closed_client_raises_client_closed(nodes: list[Node]) -> None:
    with nodes[0].client() as client:
        ref = client.put(b"x")
    assert client.closed
    client.close()
    with pytest.raises(hoplite.ClientClosed):
        client.get(ref)


def test_copies_are_evicted_for_new_ones() -> None:
    """A store of 12 MiB receives ten objects of 4 MiB that all exist elsewhere: old copies are evicted."""
    with testing.cluster(2, capacity="256MiB") as nodes:
        putter = nodes[0].client()
        refs = [putter.put(numbers(4 << 20, "uint8", seed=seed)) for seed in range(10)]
        with Node(join=[nodes[0].address], capacity="12MiB") as small:
            getter = small.client()
            for seed, ref in enumerate(refs):
                same(getter.get(ref, timeout=30), numbers(4 << 20, "uint8", seed=seed))


@pytest.mark.parametrize("size", [10, 100_000])
def test_out_is_filled_at_once_if_the_object_has_arrived_before(clients: list[Client], size: int) -> None:
    """On every node, including one that received it inline and keeps no copy."""
    for name in (None, "a/1", "b/1", "c/1", "d/1"):
        ref = clients[0].put(numbers(size), name=name)
        for client in clients:
            out = np.zeros(size, np.float32)
            # With a timeout, because a hanging call would never return.
            got = Later(client.get, ref, out=out)
            assert got.result() is out
            same(out, numbers(size))
