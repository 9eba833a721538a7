"""Delete: applies to all nodes at once and fails pending gets, but existing views stay valid."""

from __future__ import annotations

import contextlib

import pytest

import hoplite
from hoplite import Client, testing
from support import Later, eventually_empty, numbers, same


def test_a_deleted_object_is_gone_on_every_node(clients: list[Client]) -> None:
    """Also where a copy was, and also if another node than the putter's deletes it."""
    for size in (10, 100_000):
        ref = clients[0].put(numbers(size))
        clients[1].get(ref, timeout=30)
        clients[2].delete(ref)
        for client in clients:
            with pytest.raises(hoplite.ObjectDeleted, match=str(ref)):
                client.get(ref, timeout=30)


def test_delete_frees_copies_on_every_node(clients: list[Client]) -> None:
    refs = [clients[0].put(numbers(100_000, seed=seed)) for seed in range(3)]
    for ref in refs:
        for client in clients:
            client.get(ref, timeout=30)
    clients[0].delete(refs)
    for client in clients:
        eventually_empty(client)


def test_an_object_deleted_during_its_put_counts_as_put(clients: list[Client]) -> None:
    """A reduce takes inputs while they are written, and its caller may delete them before their puts return."""
    buffer = clients[0].create(100_000, name="gradient/0")
    clients[1].delete("gradient/0")
    assert str(buffer.seal(timeout=30)) == "gradient/0"
    for client in clients:
        assert client.locations("gradient/0", timeout=30) == []
    del buffer
    eventually_empty(clients[0])


def test_delete_takes_one_ref_or_many_or_none(clients: list[Client]) -> None:
    refs = [clients[0].put(b"x") for _ in range(3)]
    clients[0].delete(refs[0])
    clients[0].delete(str(ref) for ref in refs[1:])
    clients[0].delete([])
    for ref in refs:
        with pytest.raises(hoplite.ObjectDeleted):
            clients[1].get(ref, timeout=30)


def test_a_second_delete_has_no_effect(clients: list[Client]) -> None:
    ref = clients[0].put(numbers(100_000))
    clients[0].delete(ref)
    clients[0].delete(ref)
    clients[1].delete(ref)


def test_a_store_is_filled_and_emptied_many_times() -> None:
    """A store of 48 MiB takes 20 objects of 16 MiB, one after another."""
    value = numbers(16 << 20, "uint8")
    with testing.cluster(1, capacity="48MiB") as nodes:
        client = nodes[0].client()
        for _ in range(20):
            ref = client.put(value, timeout=30)
            same(client.get(ref), value)
            client.delete(ref)


def test_a_view_keeps_its_memory_until_it_is_freed() -> None:
    with testing.cluster(1, capacity="32MiB") as nodes:
        client = nodes[0].client()
        value = numbers(20 << 20, "uint8")
        ref = client.put(value)
        view = client.get(ref)
        client.delete(ref)
        with pytest.raises(hoplite.StoreFull):
            client.put(value, timeout=0.2)
        same(view, value)
        del view
        client.put(value, timeout=30)


def test_deleting_a_pending_sum_fails_its_gets(clients: list[Client]) -> None:
    """The result of a reduce that waits for inputs is deleted: its pending gets fail on every node."""
    total = clients[0].reduce(["never/1", "never/2"])
    gets = [Later(client.get, total, timeout=30) for client in clients]
    assert not gets[1].done(within=0.2)
    clients[0].delete(total)
    for get in gets:
        with pytest.raises(hoplite.ObjectDeleted):
            get.result()


@pytest.mark.faults("an object is deleted during its transfer")
def test_delete_during_a_transfer(clients: list[Client]) -> None:
    """A reader gets the whole object or an error; the node keeps working either way."""
    for _ in range(10):
        value = numbers(8 << 20, "uint8")
        ref = clients[0].put(value)
        get = Later(clients[1].get, ref, timeout=30)
        clients[0].delete(ref)
        with contextlib.suppress(hoplite.ObjectDeleted):
            same(get.result(), value)
    same(clients[1].get(clients[0].put(numbers(100_000)), timeout=30), numbers(100_000))
