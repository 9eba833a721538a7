"""Weights by name and the store: versions are deleted with their data, and what can never fit fails at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights import pruning, publishing, writing  # noqa: E402
from hoplite.torch.weights.names import Deadline  # noqa: E402
from support import eventually  # noqa: E402
from torch_weights import SOON, Model, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite import Client

MIB = 1 << 20


def weights(value: float, mebibytes: int = 4) -> dict[str, Any]:
    return {"w": torch.full((mebibytes * MIB // 4,), float(value))}


def names(client: Client) -> list[str]:
    return [row["ref"] for row in client.directory()]


def test_a_deleted_version_leaves_nothing(clients: list[Client]) -> None:
    for version in (1, 2):
        ht.publish(weights(version), f"m/{version}", client=clients[0])
    ht.fetch("m/2", client=clients[1], timeout=SOON)
    ht.delete(hoplite.Ref("m/2"), client=clients[1], timeout=SOON)
    assert ht.fetch("m/", client=clients[2], timeout=SOON).version == 1
    ht.delete("m/1", client=clients[0], timeout=SOON)
    assert names(clients[0]) == []
    eventually(lambda: all(client.objects() == [] for client in clients))
    # There is nothing to delete any more, and the number can be published again.
    ht.delete("m/1", client=clients[0], timeout=SOON)
    ht.publish(weights(3), "m/1", client=clients[0])
    same(ht.fetch("m/", client=clients[1], timeout=SOON), weights(3))


def test_an_announcement_that_was_deleted_after_it_was_listed_is_passed_over(client: Client) -> None:
    ht.publish(weights(1), "m/1", client=client)
    deadline = Deadline(None)
    assert len(pruning.refs_of(client, "m/.announced/1", deadline)) == 1
    ht.delete("m/1", client=client)
    assert pruning.refs_of(client, "m/.announced/1", deadline) == []
    assert not pruning.is_being_put(client, "m/.announced/1", deadline)
    pruning.drop(client, ["m/.announced/1"], deadline)


def test_data_that_another_version_uses_stays(clients: list[Client]) -> None:
    ht.publish({**weights(1), "v": torch.zeros(MIB)}, "m/1", client=clients[0])
    ht.publish({**weights(2), "v": torch.zeros(MIB)}, "m/2", base="m/1", client=clients[0])
    ht.delete("m/1", client=clients[0], timeout=SOON)
    assert "m/.announced/1" not in names(clients[0])
    same(ht.fetch("m/", client=clients[1], timeout=SOON), {**weights(2), "v": torch.zeros(MIB)})
    ht.delete("m/2", client=clients[0], timeout=SOON)
    assert names(clients[0]) == []


def test_a_prefix_deletes_its_versions_and_nothing_else(clients: list[Client]) -> None:
    for name in ("m/1", "m/2", "m/inner/3", "other/1"):
        ht.publish(weights(1), name, client=clients[0])
    clients[0].put(b"kept", name="m/note")
    clients[0].delete("m/2")
    ht.delete("m/", client=clients[0], timeout=SOON)
    assert {ref for ref in names(clients[0]) if not ref.startswith("@")} == {
        "m/note",
        "m/inner/3",
        "m/inner/.announced/3",
        "other/1",
        "other/.announced/1",
    }
    for name in ("m/inner/", "other/"):
        same(ht.fetch(name, client=clients[1], timeout=SOON), weights(1))


@pytest.mark.parametrize("name", ["m", "@", "m/01", 3])
def test_names_that_are_not_versions_are_not_deleted(client: Client, name: Any) -> None:
    with pytest.raises(hoplite.InvalidArgument):
        ht.delete(name, client=client)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Client]:
    """A node with a capacity of 12 MiB."""
    with hoplite.Node(capacity="12MiB", socket=tmp_path / "small.sock") as node, node.client() as client:
        yield client


@pytest.mark.parametrize("kind", [dict, lambda tensors: iter(tensors.items())])
def test_a_version_above_the_capacity_fails_at_once(small: Client, kind: Any) -> None:
    with pytest.raises(hoplite.StoreFull, match=r"m/1 needs \d+ bytes of the store of this node, whose capacity is"):
        ht.publish(kind({"a": torch.ones(2 * MIB), "b": torch.ones(2 * MIB)}), "m/1", client=small, bucket="1MiB")
    assert names(small) == []


@pytest.mark.parametrize("kind", ["whole", "iterator", "base"])
def test_a_publication_does_not_wait_for_versions_that_it_keeps(small: Client, kind: str) -> None:
    ht.publish(weights(1, 7), "m/1", retain=1, client=small)
    before = names(small)
    source = iter(weights(2, 7).items()) if kind == "iterator" else weights(2, 7)
    base = "m/1" if kind == "base" else None
    message = (
        r"m/2 needs \d+ bytes .*; until it is complete, the node also keeps m/1 \(73\d+ bytes\): set a capacity of at "
        r"least \d+ bytes, retain fewer versions with retain=, or delete versions with hoplite.torch.delete"
    )
    with pytest.raises(hoplite.StoreFull, match=message):
        ht.publish(source, "m/2", retain=1, client=small, base=base, bucket="1MiB")
    eventually(lambda: names(small) == before)
    ht.delete("m/1", client=small)
    ht.publish(weights(2, 7), "m/2", retain=1, client=small)


def test_a_publication_waits_for_memory_that_others_free(small: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHECK_AFTER_S", 0.01)
    other = small.put(torch.zeros(2 * MIB).numpy())
    timer = threading.Timer(0.5, lambda: small.delete(other))
    timer.start()
    try:
        ht.publish(weights(1, 7), "m/1", client=small, timeout=SOON)
    finally:
        timer.join()
    same(ht.fetch("m/", client=small, timeout=SOON), weights(1, 7))


def test_a_publication_that_waits_for_others_ends_with_its_timeout(small: Client) -> None:
    small.put(torch.zeros(2 * MIB).numpy())
    with pytest.raises(hoplite.StoreFull):
        ht.publish(iter(weights(1, 7).items()), "m/1", client=small, bucket="1MiB", timeout=0.3)
    eventually(lambda: len(names(small)) == 1)


def test_memory_that_takes_long_to_allocate_is_waited_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHECK_AFTER_S", 0.0)
    ht.publish(weights(1, 64), "m/1", client=client, bucket="64MiB", timeout=SOON)
    same(ht.fetch("m/", client=client, timeout=SOON), weights(1, 64))


def test_the_disk_counts_as_capacity(tmp_path: Path) -> None:
    with (
        hoplite.Node(
            capacity="12MiB", spill=tmp_path / "spill", spill_limit="100MiB", socket=tmp_path / "small.sock"
        ) as node,
        node.client() as client,
    ):
        for version in (1, 2, 3):
            ht.publish(weights(version, 7), f"m/{version}", retain=2, client=client, bucket="1MiB", timeout=SOON)


def test_a_steady_trainer_needs_one_version_more_than_it_retains(tmp_path: Path) -> None:
    model = Model(0, width=600)
    with hoplite.Node(capacity="64MiB", socket=tmp_path / "big.sock") as node, node.client() as client:
        ht.publish(model, "m/1", client=client)
        each = client.status()["store"]["used"]
    # Also the pages of small objects, and what the store has yet to release.
    with (
        hoplite.Node(capacity=3 * each + (256 << 10), socket=tmp_path / "small.sock") as node,
        node.client() as client,
    ):
        for version in range(1, 8):
            ht.publish(model, f"m/{version}", retain=2, client=client, timeout=SOON)
        assert client.status()["store"]["used"] <= 3 * each


@pytest.mark.parametrize("options", [{}, {"timeout": None}])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_starts_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, rank: int, options: Any
) -> None:
    monkeypatch.setattr(publishing, "SHARDS_TIMEOUT_S", 1.0)
    message = f"rank {1 - rank} of 2 has not announced its part of m/1 within 1 s: check whether it runs"
    with pytest.raises(hoplite.Timeout, match=message):
        ht.publish(weights(1), "m/1", shards=(rank, 2), client=client, **options)
    eventually(lambda: names(client) == [])
