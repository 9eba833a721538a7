"""Weights by name from an iterator, whose tensors may use the same memory one after the other."""

from __future__ import annotations

import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights import publishing, streams  # noqa: E402
from support import eventually  # noqa: E402
from torch_weights import SOON, Model, counting, same  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client, Node


def reused(count: int, elements: int) -> Iterator[tuple[str, Any]]:
    """Tensors of 1, 2, 3, all in one piece of memory."""
    one = torch.zeros(elements)
    for number in range(1, count + 1):
        yield f"l{number}", one.fill_(number)


@pytest.mark.parametrize("options", [{}, {"digest": True}, {"bucket": "64KiB"}, {"dtype": torch.float64}])
@pytest.mark.parametrize("elements", [3, 10_000, 3_000_000])
def test_a_reused_buffer_is_published_as_it_was(clients: list[Client], elements: int, options: Any) -> None:
    published = ht.publish(reused(3, elements), "w/1", client=clients[0], timeout=SOON, **options)
    got = ht.fetch("w/", client=clients[1], timeout=SOON)
    for number in (1, 2, 3):
        tensor = got[f"l{number}"]
        assert (tensor.shape, tensor.unique().tolist()) == ((elements,), [number])
    assert published.nbytes >= 3 * elements * 4
    # Neither drafts nor refs that were not used stay.
    names = [row["ref"] for row in clients[0].directory()]
    assert set(names) == {"w/1", "w/.announced/1", *got.manifest.refs()}


@pytest.mark.parametrize("elements", [10_000, 3_000_000])
def test_an_iterator_needs_memory_for_few_tensors(clients: list[Client], elements: int) -> None:
    made: list[Any] = []

    def pairs() -> Iterator[tuple[str, Any]]:
        for number in range(8):
            tensor = torch.full((elements,), float(number))
            made.append(weakref.ref(tensor))
            # The one before is let go when this one is requested.
            assert sum(each() is not None for each in made) <= 2
            yield f"l{number}", tensor
            del tensor

    ht.publish(pairs(), "w/1", client=clients[0], timeout=SOON)
    assert len(ht.fetch("w/", client=clients[1], timeout=SOON)) == 8


def test_tensors_of_all_sizes_share_or_split_objects(clients: list[Client]) -> None:
    tensors = {f"t{index}": counting((size,)) for index, size in enumerate((5, 200_000, 7, 0, 9, 16_384, 16_385, 3))}
    ht.publish(iter(tensors.items()), "w/1", client=clients[0], bucket="64KiB", timeout=SOON)
    got = ht.fetch("w/", client=clients[1], timeout=SOON)
    same(got, tensors)
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    ht.fetch("w/", into=into, client=clients[2], timeout=SOON)
    same(into, tensors)


def test_objects_grow_while_small_tensors_are_gathered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BUCKETS_MAX", 4)
    monkeypatch.setattr(publishing, "BUCKET_BYTES", 64 << 10)
    tensors = {f"t{index}": torch.full((24 << 10,), index, dtype=torch.uint8) for index in range(100)}
    ht.publish(iter(tensors.items()), "w/1", client=client, timeout=SOON)
    got = ht.fetch("w/", client=client, timeout=SOON)
    same(got, tensors)
    sizes = [source.nbytes for source in got.manifest.sources]
    assert max(sizes) > 4 * sizes[0]


@pytest.mark.parametrize("width", [16, 700])
def test_tied_tensors_of_an_iterator_are_stored_once(clients: list[Client], width: int) -> None:
    model = Model(1, width=width)
    pairs = ((name, tensor) for name, tensor in model.state_dict().items())
    streamed = ht.publish(pairs, "stream/1", client=clients[0], bucket="512KiB")
    assert streamed.nbytes == ht.publish(model, "whole/1", client=clients[0]).nbytes
    got = ht.fetch("stream/", client=clients[1], timeout=SOON)
    assert got["head.weight"] is got["embedding.weight"]
    assert got.manifest.entries == ht.fetch("whole/", client=clients[1], timeout=SOON).manifest.entries


def test_memory_of_an_earlier_tensor_with_almost_the_same_bytes_is_another_tensor(clients: list[Client]) -> None:
    one = torch.zeros(100_000)

    def pairs() -> Iterator[tuple[str, Any]]:
        yield "first", one
        # torch does not see this change.
        one.numpy()[-1] = 1
        yield "second", one
        yield "third", one

    published = ht.publish(pairs(), "w/1", client=clients[0], bucket="64KiB")
    got = ht.fetch("w/", client=clients[1], timeout=SOON)
    assert [got[name][-1].item() for name in ("first", "second", "third")] == [0, 1, 1]
    # 400 000 bytes are padded to a multiple of 64, twice.
    assert published.nbytes == 2 * 400_000


def freed(value: float) -> Iterator[tuple[str, Any]]:
    """Equal tensors, each in the memory of the one before."""
    for index in range(4):
        one = torch.full((100_000,), value)
        yield f"norm{index}", one
        del one


def gathered(value: float) -> Iterator[tuple[str, Any]]:
    one = torch.empty(100_000)
    for index in range(4):
        yield f"norm{index}", one.fill_(value)


def inferred(value: float) -> Iterator[tuple[str, Any]]:
    with torch.inference_mode():
        one = torch.empty(100_000)
    for index in range(4):
        with torch.inference_mode():
            one.fill_(value)
        yield f"norm{index}", one


@pytest.mark.parametrize("pairs", [freed, gathered, inferred])
def test_equal_tensors_of_reused_memory_are_not_tied(client: Client, pairs: Any) -> None:
    ht.publish(pairs(1.0), "w/1", client=client)
    got = ht.fetch("w/", client=client, timeout=SOON)
    got["norm0"].add_(5)
    assert [tensor.unique().tolist() for tensor in got.values()] == [[6], [1], [1], [1]]


@pytest.mark.parametrize("view", [lambda one: one, lambda one: one.detach(), lambda one: one.view(-1)])
def test_views_of_one_tensor_are_tied(client: Client, view: Any) -> None:
    one = counting((100_000,))
    ht.publish(((name, view(one)) for name in "ab"), "w/1", client=client)
    got = ht.fetch("w/", client=client, timeout=SOON)
    assert got["a"] is got["b"]


def test_an_iterator_has_a_base(clients: list[Client]) -> None:
    tensors = {name: counting((100_000,), first=first) for first, name in enumerate("abc")}
    ht.publish(tensors, "w/1", client=clients[0])
    served = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    got = ht.fetch("w/", into=served, client=clients[1], timeout=SOON)
    tensors["b"][5] = -1
    published = ht.publish(iter(tensors.items()), "w/2", base="w/1", client=clients[0])
    assert published.sent < 1000
    got = ht.fetch("w/", into=served, after=got, client=clients[1], timeout=SOON)
    same(served, tensors)
    # More, and other, tensors than the base has.
    more = {"b": tensors["b"], "new": counting((300_000,)), "a": tensors["a"], "d": counting((70_001,))}
    ht.publish(iter(more.items()), "w/3", base="w/2", client=clients[0], bucket="128KiB")
    same(ht.fetch("w/", client=clients[1], timeout=SOON), more)


@pytest.mark.parametrize("count", [1, 3])
def test_an_iterator_whose_base_lost_its_data_is_not_published(client: Client, count: int) -> None:
    # One tensor is one object: all of the iterator is read before the base is.
    ht.publish(reused(count, 500_000), "w/1", client=client, bucket="2MiB")
    client.delete(ht.fetch("w/1", client=client, layout={}, timeout=SOON).manifest.refs())
    with pytest.raises(hoplite.ObjectLost, match=r"base 1 of w/2 lost its data .*: publish again without base="):
        ht.publish(reused(count, 500_000), "w/2", base="w/1", client=client, bucket="2MiB", timeout=SOON)
    eventually(lambda: {row["ref"] for row in client.directory()} == {"w/1", "w/.announced/1"})


@pytest.mark.parametrize("is_other", [False, True])
def test_an_iterator_has_patches_if_it_fits_the_base(clients: list[Client], is_other: bool) -> None:
    tensors = {name: torch.zeros(100_000) for name in "ab"}
    ht.publish(tensors, "w/1", client=clients[0], bucket="128KiB")
    served = {name: torch.ones_like(tensor) for name, tensor in tensors.items()}
    got = ht.fetch("w/", into=served, client=clients[1], timeout=SOON)
    tensors["b"][::1000] += 2
    more = {**tensors, "c": torch.ones(100_000)} if is_other else tensors
    published = ht.publish(iter(more.items()), "w/2", base="w/1", client=clients[0], bucket="128KiB")
    assert (published.sent < 10_000) != is_other
    into = {name: served.get(name, torch.zeros(100_000)) for name in more}
    got = ht.fetch("w/", into=into, after=got, client=clients[1], timeout=SOON)
    same(into, more)
    assert (got.manifest.patches is None) == is_other
    refs = {row["ref"] for row in clients[0].directory() if row["ref"].startswith("@")}
    # No patch is left of those that turned out to be useless.
    assert refs == {*got.manifest.refs(), *ht.fetch("w/1", client=clients[1], timeout=SOON).manifest.refs()}


def test_an_iterator_that_fails_leaves_nothing(client: Client) -> None:
    def pairs() -> Iterator[tuple[str, Any]]:
        yield from reused(3, 100_000)
        raise RuntimeError("lost a rank")

    with pytest.raises(RuntimeError, match="lost a rank"):
        ht.publish(pairs(), "w/1", client=client, bucket="64KiB")
    eventually(lambda: client.directory() == [])


KILLED = """
import sys
import torch
import hoplite
import hoplite.torch as ht
def pairs():
    for number in range(9):
        yield f"l{number}", torch.full((100_000,), float(number))
    print("midway", flush=True)
    sys.stdin.read()
ht.publish(pairs(), "w/2", client=hoplite.connect("unix:" + sys.argv[1]), bucket="128KiB")
"""


@pytest.mark.parametrize("number", [2, 3])
def test_what_a_killed_publisher_has_put_is_deleted_by_the_next(node: Node, client: Client, number: int) -> None:
    ht.publish(reused(3, 100_000), "w/1", client=client)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(node.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        with pytest.raises(hoplite.NameTaken, match="another publisher is putting w/2"):
            ht.publish(reused(3, 100_000), "w/2", client=client, bucket="64KiB")
        with pytest.raises(hoplite.NameTaken, match="a publisher is putting w/2"):
            ht.delete("w/", client=client)
        assert ht.fetch("w/", client=client, timeout=SOON).version == 1
        process.kill()
    taken: list[bool] = []

    def publishes() -> bool:
        try:
            ht.publish(reused(3, 100_000), f"w/{number}", client=client, bucket="64KiB", timeout=SOON)
        except hoplite.NameTaken:
            # The node has yet to see the end of the process.
            return False
        taken.append(True)
        return True

    eventually(publishes)
    kept = {ref for each in (1, number) for ref in ht.fetch(f"w/{each}", client=client, timeout=SOON).manifest.refs()}
    eventually(lambda: {row["ref"] for row in client.directory() if row["ref"].startswith("@")} == kept)


def test_shards_can_be_iterators(clients: list[Client]) -> None:
    whole = counting((4, 100_000))

    def publish(rank: int) -> Any:
        boxes = {"w": ((slice(rank * 2, rank * 2 + 2),), tuple(whole.shape))}
        parts = iter([("w", whole[rank * 2 : rank * 2 + 2]), ("same", torch.ones(5))])
        return ht.publish(parts, "w/1", shards=(rank, 2, boxes), client=clients[rank], timeout=SOON)

    with ThreadPoolExecutor() as pool:
        assert [each.version for each in pool.map(publish, range(2))] == [1, 1]
    same(ht.fetch("w/", client=clients[2], timeout=SOON), {"w": whole, "same": torch.ones(5)})
    boxes = {"x": ((slice(0, 1),), (2,))}
    with pytest.raises(hoplite.InvalidArgument, match="shards names 'x', and there is no such tensor"):
        ht.publish(iter([("w", whole)]), "other/1", shards=(0, 1, boxes), client=clients[0], timeout=SOON)
