"""Weights by name in parts: slices that receivers want, shards of several publishers, and what changed since a base."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights import choosing, names, ordering, placing, shards, transfer, writing  # noqa: E402
from hoplite.torch.weights.manifest import Entry, Extent, Manifest, Source  # noqa: E402
from torch_weights import SOON, counting, recorded, same  # noqa: E402

if TYPE_CHECKING:
    from hoplite import Client

ALL = slice(None)


@pytest.mark.parametrize("bucket", [None, "64KiB"])
def test_layout_brings_the_slices_of_a_rank(clients: list[Client], bucket: Any) -> None:
    tensors = {
        "rows": counting((640, 300)),
        "columns": counting((300, 640), torch.bfloat16),
        "cube": counting((9, 50, 80), torch.int64),
        "norm": counting((3,)),
        "scalar": torch.tensor(5.0),
        "other": counting((1000,)),
    }
    ht.publish(tensors, "tp/1", client=clients[0], bucket=bucket)
    layout = {
        "cube": (slice(2, 7), ALL, slice(10, 20)),
        "columns": (ALL, slice(160, 320)),
        "rows": slice(160, 320),
        "norm": ...,
        "scalar": None,
    }
    expected = {
        "cube": tensors["cube"][2:7, :, 10:20],
        "columns": tensors["columns"][:, 160:320],
        "rows": tensors["rows"][160:320],
        "norm": tensors["norm"],
        "scalar": tensors["scalar"],
    }
    same(ht.fetch("tp/", layout=layout, client=clients[1], timeout=SOON), expected)
    into = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in expected.items()}
    into["cube"] = torch.zeros(50, 5, 10, dtype=torch.int64).transpose(0, 1)
    staged = ht.fetch("tp/", into=into, layout=layout, stage=True, client=clients[2], timeout=SOON)
    staged.switch()
    same(into, expected)
    with pytest.raises(hoplite.ShapeMismatch, match=r"norm is float32 \[3\] in tp/1, but float32 \[4\]"):
        ht.fetch("tp/", into={**into, "norm": torch.zeros(4)}, layout=layout, client=clients[2], timeout=SOON)


def test_a_rank_does_not_bring_objects_of_other_ranks(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    ht.publish({"w": counting((64, 1 << 14))}, "tp/1", client=clients[0], bucket="256KiB")
    with recorded(monkeypatch) as sizes:
        got = ht.fetch("tp/", layout={"w": slice(32, 48)}, client=clients[1], timeout=SOON)
    assert torch.equal(got["w"], counting((64, 1 << 14))[32:48])
    assert sizes == [1 << 18] * 4


def test_a_rank_brings_only_its_rows_of_a_large_object(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"w": counting((64, 1 << 14)), "v": counting((1 << 18,), torch.int64)}
    ht.publish(tensors, "tp/1", client=clients[0], bucket="1GiB")
    layout = {"w": slice(8, 16), "v": slice(3, 1003)}
    every: tuple[dict[str, Any], ...] = ({}, {"stage": True})
    for options in every:
        into = {"w": torch.zeros(8, 1 << 14), "v": torch.zeros(1000, dtype=torch.int64)}
        with recorded(monkeypatch) as sizes:
            got = ht.fetch("tp/", into=into, layout=layout, client=clients[1], timeout=SOON, **options)
        if options:
            got.switch()
        same(into, {"w": tensors["w"][8:16], "v": tensors["v"][3:1003]})
        # A range begins at a multiple of 64 bytes.
        assert sizes == [8 << 16, 24 + 8000]


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ({"v": slice(1)}, hoplite.InvalidArgument, "layout has no place for tp/1 .*1 unknown, such as 'v'"),
        ({"w": slice(0, 8, 2)}, hoplite.InvalidArgument, "step of 2"),
        ({"w": (ALL, ALL, ALL)}, hoplite.InvalidArgument, "pass up to 2 slices"),
        ({"w": 3}, hoplite.InvalidArgument, "pass up to 2 slices"),
    ],
)
def test_layouts_that_do_not_fit(clients: list[Client], layout: Any, error: Any, message: str) -> None:
    ht.publish({"w": torch.zeros(8, 8)}, "tp/1", client=clients[0])
    with pytest.raises(error, match=message):
        ht.fetch("tp/", layout=layout, client=clients[1], timeout=SOON)


def test_shards_of_several_publishers_are_one_version(clients: list[Client]) -> None:
    whole = {"columns": counting((512, 600)), "rows": counting((600, 512), first=7), "norm": counting((5,))}

    def publish(rank: int) -> Any:
        here = slice(200 * rank, 200 * (rank + 1))
        parts = {"columns": whole["columns"][:, here], "rows": whole["rows"][here], "norm": whole["norm"]}
        boxes = {"columns": ((ALL, here), (512, 600)), "rows": (here, (600, 512))}
        return ht.publish(parts, "tp/3", client=clients[rank], shards=(rank, 3, boxes), bucket="64KiB", timeout=SOON)

    into = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(ht.fetch, "tp/", into=into, client=clients[1], timeout=SOON)
        assert [each.version for each in pool.map(publish, range(3))] == [3, 3, 3]
        waiting.result(SOON)
    same(into, whole)
    same(ht.fetch("tp/3", client=clients[2], timeout=SOON), whole)
    # Other ranks than those that published.
    layout = {"columns": (ALL, slice(150, 450)), "rows": (slice(190, 410), slice(3, 500))}
    same(
        ht.fetch("tp/", layout=layout, client=clients[0], timeout=SOON),
        {"columns": whole["columns"][:, 150:450], "rows": whole["rows"][190:410, 3:500]},
    )


def test_an_older_version_of_several_shards_is_whole(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer version exists, but the older one was complete before."""
    for version in (1, 2):
        with ThreadPoolExecutor() as pool:
            list(
                pool.map(
                    lambda rank, version=version: ht.publish(
                        {"w": torch.full((1,), float(version))},
                        f"tp/{version}",
                        client=clients[rank],
                        shards=(rank, 3, {"w": (slice(rank, rank + 1), (3,))}),
                        timeout=SOON,
                    ),
                    range(3),
                )
            )

    async def until_replaced(*_: Any) -> bool:
        return True

    monkeypatch.setattr(choosing, "until_replaced", until_replaced)
    assert ht.fetch("tp/1", client=clients[0], timeout=SOON)["w"].tolist() == [1] * 3


def test_a_version_without_all_shards_does_not_exist(clients: list[Client]) -> None:
    ht.publish({"w": torch.zeros(2)}, "tp/1", client=clients[0])
    box = {"w": (slice(2), (4,))}
    with pytest.raises(hoplite.Timeout):
        ht.publish({"w": torch.ones(2)}, "tp/2", client=clients[0], shards=(0, 2, box), timeout=1)
    assert ht.fetch("tp/", client=clients[1], timeout=SOON).version == 1
    ht.publish({"w": torch.ones(4)}, "tp/2", client=clients[1])
    assert ht.fetch("tp/", client=clients[0], timeout=SOON)["w"].tolist() == [1] * 4


def test_a_shard_joins_the_next_attempt_of_rank_0(clients: list[Client]) -> None:
    def publish(rank: int, value: int, timeout: float) -> Any:
        box = {"w": (slice(rank, rank + 1), (2,))}
        tensors = {"w": torch.full((1,), value)}
        return ht.publish(tensors, "tp/1", client=clients[rank], shards=(rank, 2, box), timeout=timeout)

    with ThreadPoolExecutor() as pool:
        with pytest.raises(hoplite.Timeout):
            publish(0, 1, 0.5)
        second = pool.submit(publish, 1, 5, SOON)
        assert publish(0, 3, SOON).version == 1
        second.result(SOON)
    assert ht.fetch("tp/", client=clients[2], timeout=SOON)["w"].tolist() == [3, 5]


@pytest.mark.parametrize(
    ("shards", "boxes", "message"),
    [
        ((0, 0, {}), None, "shards is"),
        ((2, 2, {}), None, "shards is"),
        ("01", None, "shards is"),
        (None, {"v": (slice(2), (4,))}, "no such tensor"),
        (None, {"w": slice(2)}, "pass its slices and the shape of the whole"),
        (None, {"w": (slice(3), (4,))}, r"w has the shape \[2\]"),
    ],
)
def test_shards_that_do_not_fit(clients: list[Client], shards: Any, boxes: Any, message: str) -> None:
    with pytest.raises((hoplite.InvalidArgument, hoplite.ShapeMismatch), match=message):
        ht.publish({"w": torch.zeros(2)}, "tp/1", client=clients[0], shards=shards or (0, 2, boxes))


def test_shards_with_holes_are_refused(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    def publish(rank: int, timeout: float) -> Any:
        box = {"w": (slice(rank, rank + 1), (3,))}
        return ht.publish({"w": torch.zeros(1)}, "tp/1", client=clients[rank], shards=(rank, 2, box), timeout=timeout)

    with ThreadPoolExecutor() as pool:
        other = pool.submit(publish, 1, 2)
        with pytest.raises(ht.ManifestInvalid, match="do not have each element of w once"):
            publish(0, SOON)
        # Rank 0 might publish again.
        with pytest.raises(hoplite.Timeout, match="tp/1 was not complete in time"):
            other.result(SOON)
        # Receivers do not rely on the check of publishers.
        monkeypatch.setattr(writing, "merged", lambda *_: None)
        list(pool.map(publish, range(2), [SOON] * 2))
    with pytest.raises(ht.ManifestInvalid, match="do not have each element of w once"):
        ht.fetch("tp/1", client=clients[2], timeout=SOON)


def test_a_delta_sends_what_changed(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"frozen": counting((1 << 20,)), "trained": counting((1 << 20,), first=3), "bias": counting((100,))}
    ht.publish(tensors, "policy/1", client=clients[0], bucket="1MiB")
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    got = ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
    for version in range(2, 6):
        tensors["trained"][version * 1000] += 1
        tensors["bias"] += 1
        published = ht.publish(
            tensors, f"policy/{version}", client=clients[0], base=f"policy/{version - 1}", bucket="1MiB"
        )
        assert published.sent < 1000
        with recorded(monkeypatch) as sizes:
            got = ht.fetch("policy/", into=into, after=got, client=clients[1], timeout=SOON)
        assert got.version == version
        assert sum(sizes) == published.sent
        same(into, tensors)
    # Without the base, the whole version arrives, though the versions that it shares data with are pruned.
    same(ht.fetch("policy/", client=clients[2], timeout=SOON), tensors)
    # A receiver that skipped versions gets what changed in all of them.
    for version in (6, 7):
        tensors["trained"][version * 100000] += 1
        ht.publish(tensors, f"policy/{version}", client=clients[0], base=f"policy/{version - 1}")
    with recorded(monkeypatch) as sizes:
        ht.fetch("policy/", into=into, after=got, client=clients[1], timeout=SOON)
    assert sum(sizes) == 2 * (64 << 10)
    same(into, tensors)


@pytest.mark.parametrize("stage", [False, True])
def test_what_changed_of_a_tensor_in_other_strides_is_copied(clients: list[Client], *, stage: bool) -> None:
    """Its blocks are pieces of rows, also if the receiver has columns, and no other bytes come."""
    tensors = {"turned": counting((700, 1000)), "columns": counting((500, 600), torch.bfloat16), "w": counting((99,))}
    ht.publish(tensors, "policy/1", client=clients[0])
    layout = {"turned": ..., "columns": (ALL, slice(100, 250)), "w": ...}
    into = {"turned": torch.zeros(1000, 700).t(), "columns": torch.zeros(500, 150), "w": torch.zeros(99)}
    options: dict[str, Any] = {"into": into, "layout": layout, "dtype": torch.float32, "client": clients[1]}
    got = ht.fetch("policy/", timeout=SOON, **options)
    for version in (2, 3):
        for tensor in tensors.values():
            tensor[10 * version : 20 * version, ...] += version
        ht.publish(tensors, f"policy/{version}", base=f"policy/{version - 1}", client=clients[0])
        got = ht.fetch("policy/", after=got, stage=stage, timeout=SOON, **options)
        if stage:
            got.switch()
            got = got.weights
        columns = tensors["columns"][:, 100:250].float()
        same(into, {"turned": tensors["turned"], "columns": columns, "w": tensors["w"]})


def test_boxes_are_the_elements_of_a_range_in_order() -> None:
    for shape in ((7,), (3, 5), (4, 1, 6), (1, 1, 9), (3, 4, 5, 2)):
        numbers = torch.arange(math.prod(shape)).reshape(shape)
        for begin in range(numbers.numel()):
            for end in range(begin + 1, numbers.numel() + 1):
                boxes = list(placing._boxes(shape, begin, end))
                found = [number for box in boxes for number in numbers[tuple(slice(*each) for each in box)].flatten()]
                assert found == list(range(begin, end))
                assert len(boxes) <= 2 * len(shape)


def test_a_delta_stages_only_what_changed(clients: list[Client]) -> None:
    tensors = {"w": counting((1 << 20,))}
    ht.publish(tensors, "policy/1", client=clients[0])
    into = {"w": torch.zeros(1 << 20)}
    got = ht.fetch("policy/", into=into, client=clients[1], timeout=SOON)
    tensors["w"][5] += 1
    ht.publish(tensors, "policy/2", client=clients[0], base="policy/1")
    staged = ht.fetch("policy/", into=into, after=got, stage=True, client=clients[1], timeout=SOON)
    assert staged.nbytes < 1000
    staged.switch()
    same(into, tensors)


def test_many_deltas_do_not_keep_old_objects_forever(clients: list[Client]) -> None:
    tensors = {"w": counting((1 << 18,))}
    ht.publish(tensors, "policy/0", client=clients[0], bucket="256KiB")
    for version in range(1, 16):
        # Each version changes another block, so that all objects of the past are in use.
        tensors["w"][(version % 8) * 32768] += 1
        ht.publish(tensors, f"policy/{version}", client=clients[0], base=f"policy/{version - 1}", bucket="256KiB")
    stored = sum(row["bytes"] for row in clients[0].directory() if row["ref"].startswith("@"))
    assert stored <= 2 * 2 * (1 << 20) + (1 << 20)
    same(ht.fetch("policy/", client=clients[1], timeout=SOON), tensors)


def test_other_tensors_than_those_of_the_base_are_sent_whole(clients: list[Client]) -> None:
    ht.publish({"w": counting((1 << 18,))}, "policy/1", client=clients[0])
    larger = {"w": counting((1 << 19,))}
    assert ht.publish(larger, "policy/2", client=clients[0], base="policy/1").sent == 2 << 20
    assert ht.publish(larger, "policy/3", client=clients[0], base="policy/0").sent == 2 << 20
    same(ht.fetch("policy/", client=clients[1], timeout=SOON), larger)
    for base in ("policy/4", "policy/9", "other/1"):
        with pytest.raises(hoplite.InvalidArgument, match="pass an earlier version under policy/"):
            ht.publish(larger, "policy/4", client=clients[0], base=base)


def test_changed_ranges_are_those_with_another_place() -> None:
    def manifest(identity: str, *extents: tuple[int, int, str, int]) -> Manifest:
        refs = list(dict.fromkeys(extent[2] for extent in extents))
        sources = [Source(ref, 1 << 20) for ref in refs]
        places = [Extent(at, nbytes, refs.index(ref), start) for at, nbytes, ref, start in extents]
        entries = [Entry("w", "uint8", (512,), 0, 512, None, (512,))]
        return Manifest(1, identity, 512, entries, sources, places)

    base = manifest("a", (0, 256, "x", 0), (256, 256, "y", 0))
    assert transfer.changed(base, base) == []
    assert transfer.changed(manifest("b", (0, 512, "z", 0)), base) == [(0, 512)]
    split = manifest("b", (0, 64, "x", 0), (64, 128, "z", 0), (192, 64, "x", 192), (256, 256, "y", 64))
    assert transfer.changed(split, base) == [(64, 192), (256, 512)]
    assert transfer.changed(base, split) == [(64, 192), (256, 512)]
    segments = {need.source: need.segments for need in transfer.needs(split, [(0, 100), (180, 300)], base)}
    assert segments == {1: [(0, 64, 36), (116, 180, 12)], 2: [(64, 256, 44)]}
    assert names.Version.of("a/b/3") == ("a/b/", 3)


def merged(publishers: int, objects: int, *, plain: int = 0) -> Manifest:
    """A version whose publishers have rows of one tensor each, in objects of 64 bytes; rank 0 also a plain tensor."""
    parts = []
    for rank in range(publishers):
        rows = 64 * objects
        entries = [Entry("w", "uint8", (rows,), 0, rows, (rank * rows,), (publishers * rows,))]
        if rank == 0 and plain:
            entries.append(Entry("norm", "uint8", (64 * plain,), rows, 64 * plain, None, (64 * plain,)))
        count = objects + (plain if rank == 0 else 0)
        sources = [Source(f"{rank}.{number}", 64) for number in range(count)]
        extents = [Extent(64 * number, 64, number, 0) for number in range(count)]
        parts.append(Manifest(1, f"{rank}", 64 * count, entries, sources, extents, rank, publishers))
    return shards.merged("policy/1", parts)


def order(whole: Manifest, wanted: list[int], boxes: dict[str, Any]) -> list[int]:
    needs = [need for need in transfer.needs(whole, [(0, whole.nbytes)]) if need.source in wanted]
    return [need.source for need in ordering.apart(whole, needs, boxes)]


def rank_of(rank: int, ranks: int, whole: Manifest) -> dict[str, Any]:
    length = whole.shapes["w"][0]
    return {"w": [(rank * length // ranks, (rank + 1) * length // ranks)]}


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 12, 32])
def test_ranks_that_want_as_much_of_all_publishers_begin_with_one_each(ranks: int) -> None:
    # As columns of a matrix, whose rows the publishers have. They share the first object of each.
    whole = merged(ranks, 1 + ranks)
    begun = set()
    for rank in range(ranks):
        wanted = [part * (1 + ranks) + each for part in range(ranks) for each in (0, 1 + rank)]
        found = order(whole, wanted, rank_of(rank, ranks, whole))
        assert sorted(found) == wanted
        place = wanted.index(found[0])
        assert found == [*wanted[place:], *wanted[:place]]
        begun.add(found[0] // (1 + ranks))
    assert begun == set(range(ranks))


def test_a_receiver_begins_with_the_publisher_of_most_of_its_bytes() -> None:
    whole = merged(4, 8)
    boxes = rank_of(0, 4, whole)
    assert order(whole, [0, 8, 16, 24, 25], boxes) == [24, 25, 0, 8, 16]
    assert order(whole, [3, 8, 9, 23, 31], boxes) == [8, 9, 23, 31, 3]
    assert order(whole, [9], boxes) == [9]
    assert order(whole, [], {}) == []
    # The plain tensors of rank 0 are few, and change nothing.
    plain = merged(4, 8, plain=1)
    wanted = [*range(9), *range(9, 33)]
    starts = [order(plain, wanted, {**rank_of(rank, 4, plain), "norm": None})[0] for rank in range(4)]
    assert starts == [17, 25, 0, 9]
    # All want all, and relay; publishers without objects, and a single one.
    assert order(whole, [*range(32)], {"w": None}) == [*range(32)]
    alone = merged(1, 4)
    nothing = [Manifest(1, f"{rank}", 0, [], [], [], rank, 3) for rank in (1, 2)]
    uneven = shards.merged("policy/1", [dataclasses.replace(alone, shards=3), *nothing])
    assert uneven.firsts == [0, 4, 4]
    for each in (alone, uneven):
        assert order(each, [1, 3], {"w": None}) == [1, 3]


def test_stages_of_a_pipeline_begin_with_one_publisher_each() -> None:
    names_ = [f"layer.{number}" for number in range(8)]
    parts = [
        Manifest(
            1,
            f"{rank}",
            64 * 8,
            [Entry(name, "uint8", (64,), 64 * place, 64, (64 * rank,), (256,)) for place, name in enumerate(names_)],
            [Source(f"{rank}.{place}", 64) for place in range(8)],
            [Extent(64 * place, 64, place, 0) for place in range(8)],
            rank,
            4,
        )
        for rank in range(4)
    ]
    whole = shards.merged("policy/1", parts)
    starts = []
    for stage in range(4):
        wanted = [8 * rank + 2 * stage + each for rank in range(4) for each in (0, 1)]
        starts.append(order(whole, wanted, dict.fromkeys(names_[2 * stage : 2 * stage + 2]))[0] // 8)
    assert starts == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("copies", "order"),
    [
        # Complete and partial copies of each object: at the start of a publication, for the others in time, and late.
        ([(0, 0), (0, 0), (0, 0), (0, 0)], "abcd"),
        ([(1, 0), (0, 0), (0, 0), (0, 0)], "abcd"),
        ([(1, 2), (1, 3), (0, 0), (0, 0)], "abcd"),
        ([(1, 0), (1, 0), (1, 3), (1, 1)], "cdab"),
        ([(2, 0), (1, 1), (0, 1), (0, 0)], "bcda"),
        ([(2, 0), (0, 1), (0, 0), (0, 0)], "abcd"),
        ([(3, 0), (3, 0), (3, 0), (3, 0)], "abcd"),
    ],
)
def test_a_late_receiver_begins_with_what_the_others_receive(copies: list[tuple[int, int]], order: str) -> None:
    class Directory:
        async def locations_async(self, ref: str, *, timeout: float | None) -> list[hoplite.Location]:  # noqa: ASYNC109 - as of a client
            assert timeout is None
            complete, partial = copies["abcd".index(ref)]
            return [hoplite.Location(f"{number}", None, number < complete) for number in range(complete + partial)]

    wanted = [transfer.Part(Source(ref, 64), None, print) for ref in "abcd"]
    found = asyncio.run(ordering.flowing_first(cast("Client", Directory()), wanted, names.Deadline(None)))
    assert "".join(part.source.ref for part in found) == order


def test_tied_tensors_with_slices_of_their_own_are_filled_whole(clients: list[Client]) -> None:
    table = counting((1024, 512))
    ht.publish({"embed": table, "head": table}, "tied/1", client=clients[0], bucket="1MiB")
    got = ht.fetch("tied/", layout={"embed": slice(0, 1024), "head": slice(0, 100)}, client=clients[1], timeout=SOON)
    same(got, {"embed": table, "head": table[:100]})


@pytest.mark.parametrize("boxes", [((0, 2), (1, 3)), ((0, 3), (1, 2))])
def test_shards_that_overlap_are_refused(clients: list[Client], monkeypatch: pytest.MonkeyPatch, boxes: Any) -> None:
    monkeypatch.setattr(writing, "merged", lambda *_: None)
    with ThreadPoolExecutor() as pool:
        shards = [
            pool.submit(
                ht.publish,
                {"w": torch.ones(stop - start)},
                "lap/1",
                client=clients[rank],
                shards=(rank, 2, {"w": (slice(start, stop), (4,))}),
                timeout=SOON,
            )
            for rank, (start, stop) in enumerate(boxes)
        ]
        for shard in shards:
            shard.result()
    with pytest.raises(ht.ManifestInvalid, match="do not have each element of w once"):
        ht.fetch("lap/1", client=clients[0], timeout=SOON)


def test_one_shard_of_a_larger_tensor_is_refused(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    box = {"w": (slice(0, 4), (1 << 30,))}
    with pytest.raises(ht.ManifestInvalid, match="do not have each element of w once"):
        ht.publish({"w": torch.ones(4)}, "lone/1", client=clients[0], shards=(0, 1, box))
    monkeypatch.setattr(writing, "merged", lambda *_: None)
    ht.publish({"w": torch.ones(4)}, "lone/1", client=clients[0], shards=(0, 1, box))
    with pytest.raises(ht.ManifestInvalid, match="do not have each element of w once"):
        ht.fetch("lone/1", client=clients[0], timeout=SOON)


def test_weights_of_other_tensors_bring_everything(clients: list[Client]) -> None:
    tensors = {"a": torch.ones(1 << 19), "b": torch.ones(1 << 19)}
    ht.publish(tensors, "other/1", client=clients[0])
    got = ht.fetch("other/", client=clients[1], timeout=SOON)
    tensors["b"] += 1
    ht.publish(tensors, "other/2", base="other/1", client=clients[0])
    replica = {name: torch.zeros(1 << 19) for name in tensors}
    ht.fetch("other/", into=replica, after=got, client=clients[1], timeout=SOON)
    same(replica, tensors)
