"""Names: chosen by users, unique while the object exists, free after a delete, and numbered for `latest`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Client, Ref
from support import Later, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_name_is_a_ref_on_every_node(clients: list[Client]) -> None:
    ref = clients[0].put(numbers(100_000), name="policy/1")
    assert str(ref) == "policy/1"
    assert ref == Ref("policy/1")
    for client in clients:
        same(client.get("policy/1", timeout=30), numbers(100_000))


def test_an_existing_name_is_taken_whatever_the_bytes(clients: list[Client]) -> None:
    clients[0].put(numbers(10), name="policy/1")
    for client in clients:
        for value in (numbers(10), numbers(20)):
            with pytest.raises(hoplite.NameTaken, match="policy/1"):
                client.put(value, name="policy/1")
    same(clients[2].get("policy/1", timeout=30), numbers(10))


def test_a_name_is_free_immediately_after_delete(clients: list[Client]) -> None:
    for turn in range(10):
        putter, reader = clients[turn % 3], clients[(turn + 1) % 3]
        putter.put(numbers(30_000, seed=turn), name="policy/1")
        same(reader.get("policy/1", timeout=30), numbers(30_000, seed=turn))
        reader.delete("policy/1")


def test_one_of_many_putters_gets_the_name(clients: list[Client]) -> None:
    """Each node puts the same names at the same time: one put succeeds, and its bytes are stored."""
    for number in range(10):
        name = f"race/{number}"
        puts = [Later(client.put, numbers(1000, seed=seed), name=name) for seed, client in enumerate(clients)]
        winners = []
        for seed, put in enumerate(puts):
            try:
                put.result()
                winners.append(seed)
            except hoplite.NameTaken:
                pass
        assert len(winners) == 1
        for client in clients:
            same(client.get(name, timeout=30), numbers(1000, seed=winners[0]))


def test_latest_returns_the_highest_number(clients: list[Client]) -> None:
    """By number, not by text or time. Other prefixes and names without a number don't count."""
    for number in (2, 10, 9):
        clients[number % 3].put(b"x", name=f"policy/{number}")
    clients[0].put(b"x", name="policy/best")
    clients[0].put(b"x", name="policy/old/99")
    clients[0].put(b"x", name="value/50")
    for client in clients:
        ref = client.latest("policy/", timeout=30)
        assert ref == Ref("policy/10")
        assert ref.number == 10
        assert client.latest("policy/", after=9, timeout=30).number == 10
        assert client.latest("policy/", after=None, timeout=30).number == client.latest("policy/", timeout=30).number


def test_latest_waits_for_a_newer_one(clients: list[Client]) -> None:
    clients[0].put(b"x", name="policy/16")
    latest = [Later(client.latest, "policy/", after=16, timeout=30) for client in clients]
    assert not latest[0].done(within=0.2)
    clients[1].put(b"y", name="policy/17")
    for found in latest:
        assert found.result() == Ref("policy/17")


def test_latest_starts_at_0(clients: list[Client]) -> None:
    clients[0].put(b"x", name="policy/0")
    assert clients[1].latest("policy/", timeout=30).number == 0
    with pytest.raises(hoplite.Timeout):
        clients[1].latest("policy/", after=0, timeout=0.1)


def test_latest_ignores_deleted_objects(clients: list[Client]) -> None:
    clients[0].put(b"x", name="policy/1")
    clients[0].put(b"x", name="policy/2")
    clients[0].delete("policy/2")
    assert clients[1].latest("policy/", timeout=30).number == 1
    clients[0].delete("policy/1")
    with pytest.raises(hoplite.Timeout, match="policy/"):
        clients[1].latest("policy/", timeout=0.2)


def test_a_number_with_too_many_digits_is_rejected_by_every_verb(clients: list[Client]) -> None:
    """A 20-digit number, as `strftime("%Y%m%d%H%M%S%f")` creates, exceeds the largest version."""
    name = "policy/20261125133000123456"
    calls: list[Callable[[], object]] = [
        lambda: clients[0].put(b"x", name=name),
        lambda: clients[0].put(b"x", name=name, retain=2),
        lambda: clients[0].get(name, timeout=0),
        lambda: clients[0].reduce([name]),
        lambda: Ref(name).number,
    ]
    for call in calls:
        with pytest.raises(hoplite.InvalidArgument, match="at most 18 digits"):
            call()
    largest = f"policy/{2**63 - 1}"
    assert clients[0].put(b"x", name=largest, retain=2).number == 2**63 - 1
    assert str(clients[1].latest("policy/", after=2**63 - 2, timeout=30)) == largest


@pytest.mark.parametrize("size", [10, 100_000], ids=["small", "large"])
def test_requests_after_a_deletion_wait_for_the_next_put(clients: list[Client], size: int) -> None:
    """Also if the owners remember the deletion; get, wait and reduce behave alike."""
    for turn in range(3):
        value = numbers(size, seed=turn)
        gets = [Later(client.get, "run/weights", timeout=30) for client in clients]
        waits = [Later(client.wait, ["run/weights"], timeout=30) for client in clients]
        sums = [client.reduce(["run/weights", "run/bias"], name=f"run/sum-{at}") for at, client in enumerate(clients)]
        with pytest.raises(hoplite.Timeout):
            clients[0].get("run/weights", timeout=0.05)
        clients[turn].put(value, name="run/weights")
        clients[turn].put(value, name="run/bias")
        for get in gets:
            same(get.result(), value)
        for wait in waits:
            ready, rest = wait.result()
            assert ([str(ref) for ref in ready], rest) == (["run/weights"], [])
        for at, client in enumerate(clients):
            same(clients[0].get(f"run/sum-{at}", timeout=30), value + value)
            assert len(sums[at].inputs(timeout=30)) == 2
            client.delete([f"run/sum-{at}"])
        clients[0].delete(["run/weights", "run/bias"])
        for client in clients:
            assert client.locations("run/weights", timeout=30) == []


def test_a_get_of_a_pruned_version_raises_object_deleted(clients: list[Client]) -> None:
    for number in range(4):
        clients[0].put(numbers(10), name=f"policy/{number}", retain=2)
    with pytest.raises(hoplite.ObjectDeleted):
        clients[1].get("policy/0", timeout=30)


def test_latest_does_not_wait_with_timeout_0(clients: list[Client]) -> None:
    with pytest.raises(hoplite.Timeout):
        clients[0].latest("policy/", timeout=0)


@pytest.mark.faults("objects are deleted that a reader may be fetching")
def test_a_reader_follows_a_publisher(clients: list[Client]) -> None:
    """Numbers only increase, and a found version can be read until two newer ones have pruned it."""

    def follow() -> list[int]:
        seen = [-1]
        while seen[-1] < 30:
            newest = clients[1].latest("policy/", after=seen[-1], timeout=30)
            try:
                value = clients[1].get(newest, timeout=30)
                assert value[0] == newest.number
            except hoplite.ObjectDeleted:
                pass
            seen.append(newest.number)
        return seen

    reader = Later(follow)
    for number in range(31):
        clients[0].put(numbers(40_000, "int32") * 0 + number, name=f"policy/{number}", retain=2)
    seen = reader.result()
    assert seen == sorted(set(seen))


def test_only_numbered_refs_have_a_number() -> None:
    assert Ref("a/b/007").number == 7
    for text in ("policy/x", "17", "policy/", "policy/+1"):
        with pytest.raises(hoplite.InvalidArgument):
            _ = Ref(text).number
