"""The manifest of published weights: what is valid survives a round trip, and anything else is refused."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights.encoding import HEADER, MAGIC, encode, parse, parse_data  # noqa: E402
from hoplite.torch.weights.manifest import Entry, Extent, Manifest, Source  # noqa: E402
from torch_weights import SOON  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite import Client

SIZES = {"float32": 4, "uint8": 1}


def example() -> Manifest:
    entries = [
        Entry("w", "float32", (4, 4), 0, 64, None, (4, 4)),
        Entry("tied", "float32", (4, 4), 0, 64, None, (4, 4)),
        Entry("part", "uint8", (2, 3), 64, 6, (0, 3), (2, 6)),
        Entry("empty", "float32", (0,), 0, 0, None, (0,)),
        Entry("scalar", "float32", (), 128, 4, None, ()),
    ]
    sources = [Source("@1.2", 128, "ab" * 32), Source("@1.3", 64)]
    extents = [Extent(0, 64, 0, 64), Extent(64, 64, 1, 0), Extent(128, 64, 0, 0)]
    return Manifest(17, "0123456789abcdef", 192, entries, sources, extents)


def texts(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    """The manifest of `example` with changed texts."""
    data = encode(example())
    _, first, second = HEADER.unpack_from(data)
    objects = [json.loads(data[24 : 24 + first]), json.loads(data[24 + first : 24 + first + second])]
    change(*objects)
    parts = [json.dumps(each, separators=(",", ":")).encode() for each in objects]
    return HEADER.pack(MAGIC, *map(len, parts)) + b"".join(parts)


def test_a_manifest_survives_a_round_trip() -> None:
    data = encode(example())
    assert len(data) % 64 == 0
    assert parse(data, "policy/17", SIZES) == example()
    assert parse_data(data, "policy/17").refs() == ["@1.2", "@1.3"]
    assert example().names == ["w", "tied", "part", "empty", "scalar"]
    assert example().shapes["part"] == (2, 6)
    assert example().digests == {"@1.2": "ab" * 32}


def test_data_follows_the_texts() -> None:
    manifest = Manifest(1, "0123456789abcdef", 64, [], [Source("", 64)], [Extent(0, 64, 0, 0)])
    found = parse(bytes(encode(manifest)) + bytes(range(64)), "policy/1", {})
    assert bytes(found.inline[0]) == bytes(range(64))


@pytest.mark.parametrize(
    "change",
    [
        lambda data, _: data.pop("id"),
        lambda data, _: data.update(id="xyz"),
        lambda data, _: data.update(version=-1),
        lambda data, _: data.update(version=True),
        lambda data, _: data.update(version=1.0),
        lambda data, _: data.update(nbytes=1 << 60),
        lambda data, _: data.update(nbytes=256),
        lambda data, _: data.update(nbytes=128),
        lambda data, _: data.update(shard=[1, 1]),
        lambda data, _: data.update(shard=[0, 0]),
        lambda data, _: data.update(objects=[]),
        lambda data, _: data.update(objects=None),
        lambda data, _: data["objects"][0].__setitem__(1, 100),
        lambda data, _: data["objects"][0].__setitem__(0, ""),
        lambda data, _: data["objects"][0].__setitem__(2, "ab"),
        lambda data, _: data["extents"].reverse(),
        lambda data, _: data["extents"].pop(),
        lambda data, _: data["extents"][0].__setitem__(2, -1),
        lambda data, _: data["extents"][0].__setitem__(3, 32),
        lambda data, _: data["extents"][0].__setitem__(1, 0),
        lambda data, _: data["extents"][0].pop(),
        lambda data, _: data.update(patches=["0123456789abcdef", [[7, "@1", 8, None]]]),
        lambda data, _: data.update(patches=["0123456789abcdef", [[0, "@1", 8, None], [0, "@2", 8, None]]]),
        lambda data, _: data.update(patches=["0123456789abcdef", [[0, "", 8, None]]]),
        lambda data, _: data.update(patches=["0123456789abcdef", [["@1", 8, None]]]),
        lambda data, _: data.update(patches=["01", []]),
        lambda _, tensors: tensors["names"].__setitem__(1, "w"),
        lambda _, tensors: tensors["names"].__setitem__(1, 5),
        lambda _, tensors: tensors["names"].pop(),
        lambda _, tensors: tensors["dtypes"].__setitem__(0, "object"),
        lambda _, tensors: tensors["dtypes"].__setitem__(0, ["float32"]),
        lambda _, tensors: tensors["kinds"].__setitem__(0, 7),
        lambda _, tensors: tensors["kinds"].__setitem__(0, -1),
        lambda _, tensors: tensors["axes"].__setitem__(0, 65),
        lambda _, tensors: tensors["lengths"].__setitem__(0, -1),
        lambda _, tensors: tensors["lengths"].__setitem__(0, 1 << 47),
        lambda _, tensors: tensors["lengths"].clear(),
        lambda _, tensors: tensors["offsets"].__setitem__(0, 32),
        lambda _, tensors: tensors["offsets"].__setitem__(0, 192),
        lambda _, tensors: tensors["offsets"].__setitem__(2, 0),
        lambda _, tensors: tensors["offsets"].__setitem__(0, 64.0),
        lambda _, tensors: tensors["boxes"][0].__setitem__(0, 9),
        lambda _, tensors: tensors["boxes"][0].__setitem__(1, [0]),
        lambda _, tensors: tensors["boxes"][0].__setitem__(1, [1, 3]),
        lambda _, tensors: tensors["boxes"][0].__setitem__(2, [2, 5]),
    ],
)
def test_a_changed_manifest_is_refused(change: Any) -> None:
    with pytest.raises(ht.ManifestInvalid, match="policy/17 is not a manifest of published weights"):
        parse(texts(change), "policy/17", SIZES)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HPLWGHT1",
        bytes(100),
        HEADER.pack(MAGIC, 1 << 62, 1 << 62),
        HEADER.pack(MAGIC, 2, 2) + b"[][]",
        HEADER.pack(MAGIC, 2, 2) + b"{}",
        HEADER.pack(MAGIC, 200_000, 2) + b"[" * 200_000 + b"{}",
        HEADER.pack(MAGIC, 4, 2) + b"\xff\xfe\xfd\xfc{}",
        "text",
        None,
        memoryview(bytes(64)).cast("I"),
    ],
)
def test_other_objects_are_refused(data: Any) -> None:
    with pytest.raises(ht.ManifestInvalid):
        parse(data, "policy/17", SIZES)


def test_random_bytes_never_cause_another_error() -> None:
    chance = random.Random(17)
    valid = bytes(encode(example()))
    for _ in range(4000):
        data = bytearray(valid)
        for _ in range(chance.randrange(1, 8)):
            place = chance.randrange(len(data))
            data[place] = chance.choice([chance.randrange(256), *b'0123456789[]{},:"-e.'])
        try:
            found = parse(bytes(data[: chance.choice([len(data), chance.randrange(len(data))])]), "policy/17", SIZES)
        except ht.ManifestInvalid:
            continue
        assert all(entry.offset + entry.nbytes <= found.nbytes for entry in found.entries)
        assert sum(extent.nbytes for extent in found.extents) == found.nbytes


@pytest.mark.parametrize(
    "name", ['quoted "name"', "back\\slash\n", "\x00", "layers[0]],[[", "ümlaut", "\U0001f600" * 4096, "\ud800", ""]
)
def test_any_name_of_a_tensor_survives_a_round_trip(name: str) -> None:
    manifest = example()
    manifest.entries = [entry._replace(name=name) for entry in manifest.entries[:1]]
    assert parse(encode(manifest), "policy/17", SIZES) == manifest


def test_many_rows_survive_a_round_trip() -> None:
    """More than are parsed at once."""
    sources = [Source(f"@{index:032x}", 64, None if index % 2 else "ab" * 32) for index in range(5000)]
    extents = [Extent(64 * index, 64, index, 0) for index in range(5000)]
    entries = [Entry(f"w{index}", "uint8", (8, 8), 64 * index, 64, (8, 0), (16, 8)) for index in range(5000)]
    patches = ("0123456789abcdef", {index: source._replace(nbytes=index) for index, source in enumerate(sources)})
    manifest = Manifest(17, "0123456789abcdef", 64 * 5000, entries, sources, extents, patches=patches)
    assert parse(encode(manifest), "policy/17", SIZES) == manifest


@pytest.mark.parametrize(
    "key", ["objects", "extents", "patches", "names", "dtypes", "kinds", "lengths", "boxes", "other"]
)
@pytest.mark.parametrize("element", [[], {}, [[]], 300, "ab", None])
def test_a_wrong_text_is_refused_before_all_of_it_is_objects(key: str, element: Any) -> None:
    def change(data: dict[str, Any], tensors: dict[str, Any]) -> None:
        (data if key in ("objects", "extents", "patches", "other") else tensors)[key] = [element] * count

    count = (1 << 20) // (len(json.dumps(element)) + 1)
    data = texts(change)
    gc.disable()
    tracemalloc.start()
    try:
        with pytest.raises(ht.ManifestInvalid):
            parse(data, "policy/17", SIZES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()
    # Names are whole objects until they are compared.
    assert peak < (20 if key == "names" and element == "ab" else 4) * len(data)


def put(client: Client, manifest: Manifest, data: bytes = b"") -> None:
    """Puts a version as `publish` does."""
    for name in (f"policy/.announced/{manifest.version}", f"policy/{manifest.version}"):
        client.put(bytes(encode(manifest)) + data, name=name)


def test_other_objects_under_the_names_are_passed_over(clients: list[Client]) -> None:
    ht.publish({"w": torch.ones(2)}, "policy/1", client=clients[0])
    clients[0].put(b"something else", name="policy/.announced/2")
    clients[0].put(b"something else", name="policy/2")
    assert ht.fetch("policy/", client=clients[1], timeout=SOON).version == 1
    with pytest.raises(ht.ManifestInvalid, match="policy/2 is not a manifest"):
        ht.fetch("policy/2", client=clients[1], timeout=SOON)


def test_a_manifest_of_another_version_is_refused(clients: list[Client]) -> None:
    clients[0].put(encode(Manifest(3, "0123456789abcdef", 0, [], [], [])), name="policy/2")
    with pytest.raises(ht.ManifestInvalid, match="policy/2 is the manifest of version 3"):
        ht.fetch("policy/2", client=clients[1], timeout=SOON)


def test_an_object_of_another_size_is_refused(clients: list[Client]) -> None:
    ref = str(clients[0].put(bytes(128)))
    entries = [Entry("w", "uint8", (64,), 0, 64, None, (64,))]
    put(clients[0], Manifest(1, "0123456789abcdef", 64, entries, [Source(ref, 64)], [Extent(0, 64, 0, 0)]))
    with pytest.raises(ht.ManifestInvalid, match=f"object {ref} is not 64 bytes"):
        ht.fetch("policy/1", client=clients[1], timeout=SOON)


@pytest.mark.parametrize("count", [20, 1 << 18])
def test_digests_are_verified_before_a_byte_is_copied(clients: list[Client], count: int) -> None:
    ht.publish({"w": torch.ones(count)}, "policy/1", client=clients[0], digest=True)
    got = ht.fetch("policy/", client=clients[1], timeout=SOON)
    assert len(got.manifest.digests) == 1
    assert got["w"].sum() == count
    manifest = got.manifest
    manifest.version, manifest.id = 2, "fedcba9876543210"
    manifest.sources = [manifest.sources[0]._replace(digest="00" * 32)]
    put(clients[0], manifest, b"".join(map(bytes, manifest.inline.values())))
    into = {"w": torch.zeros(count)}
    with pytest.raises(hoplite.ObjectCorrupt, match="is not the one in the manifest"):
        ht.fetch("policy/2", into=into, client=clients[1], timeout=SOON)
    assert into["w"].sum() == 0
    # The newest that is sound.
    assert ht.fetch("policy/", into=into, client=clients[1], timeout=SOON).version == 1
    assert into["w"].sum() == count


def test_a_claim_of_more_than_the_memory_is_an_error(clients: list[Client]) -> None:
    nbytes = 1 << 47
    entries = [Entry("w", "uint8", (nbytes,), 0, nbytes, None, (nbytes,))]
    put(
        clients[0],
        Manifest(1, "0123456789abcdef", nbytes, entries, [Source("@1.2", nbytes)], [Extent(0, nbytes, 0, 0)]),
    )
    with pytest.raises(hoplite.StoreFull, match="no memory for w, uint8"):
        ht.fetch("policy/1", client=clients[1], timeout=SOON)
