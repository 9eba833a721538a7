"""Versions that are stored by who wants them: receivers with layouts bring what they want, and no more."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import hoplite.torch as ht  # noqa: E402
from hoplite import InvalidArgument  # noqa: E402
from hoplite.torch.weights.arranging import arranged  # noqa: E402
from hoplite.torch.weights.sources import whole  # noqa: E402
from torch_weights import SOON  # noqa: E402

if TYPE_CHECKING:
    import hoplite

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

RANKS = 4
WIDTH = 512


def model(step: int) -> dict[str, Any]:
    """Returns layers as of a transformer, of other values in each step."""
    torch.manual_seed(0)
    found = {}
    for layer in range(6):
        for name in ("up", "down", "qkv"):
            found[f"{layer}.{name}"] = torch.randint(1000, (WIDTH, 2 * WIDTH), dtype=torch.int32)
        found[f"{layer}.norm"] = torch.randint(1000, (WIDTH,), dtype=torch.int32)
    found["head"] = found["0.qkv"]
    for tensor in list(found.values())[:-1]:
        tensor.view(-1)[:: 400 + step] += step
    return found


def layout(rank: int) -> dict[str, Any]:
    """Returns what a rank of tensor parallelism wants: columns of the second matrix of each pair, and rows else."""
    rows, columns = (slice(rank * length // RANKS, (rank + 1) * length // RANKS) for length in (WIDTH, 2 * WIDTH))
    places = {"norm": ..., "down": (slice(None), columns)}
    return {name: places.get(name.rpartition(".")[2], rows) for name in model(0)}


def part(name: str, tensor: Any, rank: int) -> Any:
    place = layout(rank)[name]
    return tensor if place is ... else tensor[place]


def brought(client: hoplite.Client) -> int:
    return int(client.status()["counters"]["bytes_received"])


def check(got: Any, step: int, rank: int) -> None:
    for name, tensor in model(step).items():
        assert torch.equal(got[name], part(name, tensor, rank)), name


def test_a_receiver_brings_what_it_wants(nodes: list[hoplite.Node]) -> None:
    with nodes[0].client() as source, nodes[1].client() as receiver:
        options: dict[str, Any] = {"bucket": "256KiB", "client": source}
        ht.publish(model(1), "plain/1", **options)
        ht.publish(model(1), "tp/1", layouts=[layout(rank) for rank in range(RANKS)], **options)
        whole_bytes = ht.fetch("tp/1", layout={}, client=receiver, timeout=SOON).manifest.nbytes
        shares = []
        for prefix in ("plain", "tp"):
            before = brought(receiver)
            got = ht.fetch(f"{prefix}/1", layout=layout(1), client=receiver, timeout=SOON)
            check(got, 1, 1)
            shares.append((brought(receiver) - before) / whole_bytes)
        assert shares[0] > 0.5
        assert shares[1] < 1.05 / RANKS
        # Others need not know: the whole, in the order of the publisher, and with tied tensors.
        got = ht.fetch("tp/1", client=receiver, timeout=SOON)
        assert list(got) == list(model(1))
        assert all(torch.equal(got[name], tensor) for name, tensor in model(1).items())


def test_receivers_that_want_the_same_relay_it(nodes: list[hoplite.Node]) -> None:
    """They hold whole objects, which are copies for others. Without layouts, ranges of them would be none."""
    with nodes[0].client() as source, nodes[1].client() as first, nodes[2].client() as second:
        layouts = [layout(rank) for rank in range(RANKS)]
        ht.publish(model(1), "tp/1", layouts=layouts, bucket="256KiB", client=source)
        for receiver in (first, second):
            check(ht.fetch("tp/1", layout=layout(2), client=receiver, timeout=SOON), 1, 2)
        refs = ht.fetch("tp/1", layout={}, client=source).manifest.refs()
        copies = [len(source.locations(ref)) for ref in refs]
        assert set(copies) == {1, 3}
        assert copies.count(3) / len(copies) < 1.5 / RANKS


def test_changed_elements_with_layouts(nodes: list[hoplite.Node]) -> None:
    layouts = [layout(rank) for rank in range(RANKS)]
    with nodes[0].client() as source, nodes[1].client() as receiver:
        ht.publish(model(1), "tp/1", layouts=layouts, client=source)
        into = {name: torch.zeros_like(part(name, tensor, 3)) for name, tensor in model(1).items()}
        del into["head"]
        wanted = {name: place for name, place in layout(3).items() if name != "head"}
        got = ht.fetch("tp/1", into=into, layout=wanted, client=receiver, timeout=SOON)
        for step in (2, 3):
            # The third version is cut in another way, so all of it is new.
            chosen = layouts if step == 2 else layouts[:1] * 2
            published = ht.publish(model(step), f"tp/{step}", base=f"tp/{step - 1}", layouts=chosen, client=source)
            assert (published.sent < published.nbytes / 20) == (step == 2)
            got = ht.fetch("tp/", into=into, layout=wanted, after=got, client=receiver, timeout=SOON)
            for name, tensor in into.items():
                assert torch.equal(tensor, part(name, model(step)[name], 3)), name


def test_any_layouts_give_the_same_tensors(node: hoplite.Node) -> None:
    """Overlaps, elements that nobody wants, replicas, empty tensors and scalars."""
    chance = random.Random(3)
    shapes = [(), (0,), (5,), (7, 6), (3, 4, 5), (8, 1), (6, 0, 2)]
    tensors = {
        str(index): torch.randint(100, shape, dtype=chance.choice([torch.uint8, torch.int16, torch.int64]))
        for index, shape in enumerate(shapes)
    }
    tensors["turned"], tensors["tied"] = tensors["3"].t(), tensors["3"]

    def places(tensor: Any) -> Any:
        if chance.random() < 0.3 or not tensor.dim():
            return ...
        cuts = [sorted(chance.choices(range(length + 1), k=2)) for length in tensor.shape]
        return tuple(slice(low, high) for low, high in cuts[: chance.randint(1, len(cuts))])

    with node.client() as client:
        for number in range(1, 60):
            layouts = [
                {name: places(tensor) for name, tensor in tensors.items() if chance.random() < 0.8}
                for _ in range(chance.randint(0, 3))
            ]
            cut = chance.randint(0, 7)
            layouts += [{"3": slice(cut)}, {"3": slice(cut, 7)}, {"3": slice(cut)}]
            ht.publish(tensors, f"any/{number}", layouts=layouts, bucket=64, client=client)
            for wanted in (None, *layouts):
                got = ht.fetch(f"any/{number}", layout=wanted, client=client, timeout=SOON)
                for name in tensors if wanted is None else wanted:
                    place = ... if wanted is None else wanted[name]
                    assert torch.equal(got[name], tensors[name][place]), (number, name, place)


def test_runs_are_what_the_same_receivers_want() -> None:
    tensors = {name: torch.zeros(4, 4) for name in ("a", "b", "c")}
    halves = [{"a": slice(2), "b": slice(2)}, {"a": slice(2, 4), "b": slice(2, 4)}]
    pieces, runs = arranged(whole(tensors, None), halves, 60)
    assert [(piece.name, piece.box[0]) for piece in pieces] == [
        *(("a", (0, 2)), ("b", (0, 2)), ("a", (2, 4)), ("b", (2, 4)), ("c", (0, 4))),
    ]
    assert runs == [2, 2, 1]


def test_bad_layouts_are_named(node: hoplite.Node) -> None:
    tensors = {"w": torch.ones(4)}
    with node.client() as client:
        for layouts, problem in (
            ({"w": slice(2)}, "layouts is a dict: pass a list with the layout of each receiver"),
            (3, "layouts is a int: pass a list"),
            ([[slice(2)]], "layouts is a list: pass a list"),
            ([{"v": ...}], "layouts names 'v', and there is no such tensor"),
            ([{"w": slice(0, 4, 2)}], "the slices of w have a step of 2"),
            ([{"w": 3}], "the slices of w are 3"),
        ):
            with pytest.raises(InvalidArgument, match=problem):
                ht.publish(tensors, "bad/1", layouts=layouts, client=client)
        with pytest.raises(InvalidArgument, match="layouts works with a module or a mapping"):
            ht.publish(iter(tensors.items()), "bad/1", layouts=[], client=client)
        ht.publish(tensors, "bad/1", layouts=[{"w": slice(2)}, {"w": slice(2, 4)}], client=client)
        assert ht.fetch("bad/1", client=client, timeout=SOON)["w"].tolist() == [1] * 4
