"""Patches of published weights: the elements that changed since the base, brought in place of their blocks."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch

torch: Any = pytest.importorskip("torch", reason="needs PyTorch")

import hoplite  # noqa: E402 - torch must be there
import hoplite.torch as ht  # noqa: E402
from hoplite.torch.weights import patches  # noqa: E402
from hoplite.torch.weights.manifest import Entry, Manifest, Source  # noqa: E402
from hoplite.torch.weights.memory import dtype_name, element_sizes  # noqa: E402
from torch_weights import SOON, counting, recorded, same  # noqa: E402

if TYPE_CHECKING:
    from hoplite import Client

ALL = slice(None)

DTYPES = [
    torch.uint8,
    torch.bool,
    torch.int16,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.int64,
    torch.float64,
    torch.complex64,
    torch.complex128,
    *([torch.float8_e4m3fn] if hasattr(torch, "float8_e4m3fn") else []),
    *([torch.uint16] if hasattr(torch, "uint16") else []),
]


def bits(tensor: Any) -> Any:
    """The bytes of a tensor, which are the same for the same NaN only."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def bits_equal(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(bits(found[name]), bits(tensor)), name


def random(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """A tensor of random bits; for bool, of random values."""
    generator = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
    item = torch.empty((), dtype=dtype).element_size()
    data = torch.randint(0, 256, (count * item,), generator=generator, dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def change(tensor: Any, share: float, seed: int) -> None:
    """Writes other bits into a share of the elements, at random places."""
    flat = bits(tensor).clone().view(-1, tensor.element_size())
    generator = np.random.default_rng(seed)
    places = generator.choice(len(flat), max(1, int(share * len(flat))), replace=False)
    flat[torch.from_numpy(places)] ^= 1
    tensor.copy_(flat.view(-1).view(tensor.dtype).view(tensor.shape))


class Receiver:
    """Tensors of a receiver, which fetches each version with what it has."""

    def __init__(self, client: Client, into: dict[str, Any], **options: Any) -> None:
        self.client, self.into, self.options = client, into, options
        self.got: Any = None

    def fetch(self, monkeypatch: pytest.MonkeyPatch, *, stage: bool = False) -> int:
        """Brings the newest version; returns the bytes of data that came."""
        with recorded(monkeypatch) as sizes:
            options = {"client": self.client, "timeout": SOON, **self.options}
            self.got = ht.fetch("p/", into=self.into, after=self.got, stage=stage, **options)
        if stage:
            self.got.switch()
            self.got = self.got.weights
        return sum(sizes)


@pytest.mark.parametrize("stage", [False, True])
def test_a_receiver_of_the_base_brings_the_elements_that_changed(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch, *, stage: bool
) -> None:
    """A publication of 16 MiB, of which 0.3 % change: at most 1.2 % of the bytes."""
    tensors = {f"layers.{index}": random((1024, 1024), torch.bfloat16, index) for index in range(8)}
    ht.publish(tensors, "p/1", client=clients[0])
    receiver = Receiver(clients[1], {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    assert receiver.fetch(monkeypatch) == 16 << 20
    for version in (2, 3):
        for index, tensor in enumerate(tensors.values()):
            change(tensor, 0.003, 100 * version + index)
        published = ht.publish(tensors, f"p/{version}", base=f"p/{version - 1}", client=clients[0])
        assert published.sent == receiver.fetch(monkeypatch, stage=stage) < 0.012 * (16 << 20)
        bits_equal(receiver.into, tensors)
    # Without the base, the whole version arrives.
    bits_equal(ht.fetch("p/", client=clients[2], timeout=SOON), tensors)


@pytest.mark.parametrize("share", [0.0001, 0.02, 0.2])
def test_every_dtype_and_layout_is_patched_bit_for_bit(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    tensors = {dtype_name(dtype): random((300, 211), dtype, at) for at, dtype in enumerate(DTYPES)}
    tensors["scalar"] = torch.tensor(float("nan"))
    tensors["turned"] = random((400, 300), torch.float32, 77).t()
    tensors["empty"] = torch.zeros(0, 3)
    ht.publish(tensors, "p/1", client=clients[0], bucket="100KiB", digest=True)
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    # Not contiguous here, although it was there.
    into["float64"] = torch.zeros(211, 300, dtype=torch.float64).t()
    receiver = Receiver(clients[1], into)
    receiver.fetch(monkeypatch)
    for version in range(2, 5):
        for index, tensor in enumerate(tensors.values()):
            if tensor.numel() > 1 and tensor.dtype is not torch.bool:
                change(tensor, share, 100 * version + index)
        tensors["bool"][version, 7] ^= True
        tensors["scalar"] = tensors["scalar"].view(torch.int32).add(1).view(torch.float32)
        options: dict[str, Any] = {"base": f"p/{version - 1}", "bucket": f"{version}00KiB", "digest": True}
        sent = ht.publish(tensors, f"p/{version}", client=clients[0], **options).sent
        assert receiver.fetch(monkeypatch) == sent
        bits_equal(receiver.into, tensors)


@pytest.mark.parametrize("count", [500, 100_000])
def test_slices_and_other_dtypes_get_what_changed(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """As patches, or as blocks: a piece of a tensor is not whole rows."""
    tensors = {"w": counting((640, 500)), "cube": counting((64, 50, 80), torch.float32, first=3)}
    ht.publish(tensors, "p/1", client=clients[0])
    layout = {"w": (ALL, slice(100, 200)), "cube": (slice(3, 60), ALL, slice(10, 20))}
    into = {"w": torch.zeros(640, 100, dtype=torch.float64), "cube": torch.zeros(57, 50, 10, dtype=torch.float64)}
    receiver = Receiver(clients[1], into, layout=layout, dtype=torch.float64)
    receiver.fetch(monkeypatch)
    for version in (2, 3):
        for index, tensor in enumerate(tensors.values()):
            generator = np.random.default_rng(10 * version + index)
            tensor.view(-1)[torch.from_numpy(generator.choice(tensor.numel(), count, replace=False))] += version
        ht.publish(tensors, f"p/{version}", base=f"p/{version - 1}", client=clients[0])
        came = receiver.fetch(monkeypatch, stage=version == 3)
        assert came < 20_000 or count > 500
        expected = {"w": tensors["w"][:, 100:200], "cube": tensors["cube"][3:60, :, 10:20]}
        same(receiver.into, {name: tensor.double() for name, tensor in expected.items()})


def test_a_dense_change_is_brought_as_blocks(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bucket by itself: one has a patch, the other would save nothing, and the third did not change."""
    tensors = {name: counting((1 << 18,)) for name in ("sparse", "dense", "same")}
    ht.publish(tensors, "p/1", client=clients[0], bucket="1MiB")
    receiver = Receiver(clients[1], {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    receiver.fetch(monkeypatch)
    tensors["sparse"][5] += 1
    tensors["dense"] += 1
    published = ht.publish(tensors, "p/2", base="p/1", client=clients[0], bucket="1MiB")
    assert 1 << 20 < published.sent < (1 << 20) + 1000
    assert receiver.fetch(monkeypatch) == published.sent
    same(receiver.into, tensors)
    # A receiver that skipped a version brings the blocks that changed in both.
    late = Receiver(clients[2], {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
    late.fetch(monkeypatch)
    for version in (3, 4):
        tensors["sparse"][version * 40_000] += 1
        ht.publish(tensors, f"p/{version}", base=f"p/{version - 1}", client=clients[0], bucket="1MiB")
    assert late.fetch(monkeypatch) == 2 * (64 << 10)
    same(late.into, tensors)


def test_tied_tensors_are_patched_once_or_in_both_places(
    clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = counting((1 << 18,))
    tensors = {"a": tensor, "b": tensor}
    ht.publish(tensors, "p/1", client=clients[0])
    for into in ({"a": (shared := torch.zeros(1 << 18)), "b": shared}, {name: torch.zeros(1 << 18) for name in "ab"}):
        receiver = Receiver(clients[1], into)
        receiver.fetch(monkeypatch)
        tensor[5] += 1
        newest = receiver.got.version + 1
        ht.publish(tensors, f"p/{newest}", base=f"p/{newest - 1}", client=clients[0])
        assert receiver.fetch(monkeypatch) < 1000
        same(receiver.into, tensors)


def test_shards_have_patches_of_their_own(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"columns": counting((512, 600)), "rows": counting((600, 512), first=7), "norm": counting((5,))}

    def publish(rank: int, version: int) -> Any:
        here = slice(200 * rank, 200 * (rank + 1))
        parts = {"columns": whole["columns"][:, here], "rows": whole["rows"][here], "norm": whole["norm"]}
        boxes = {"columns": ((ALL, here), (512, 600)), "rows": (here, (600, 512))}
        base = f"p/{version - 1}" if version > 1 else None
        shards = (rank, 3, boxes)
        return ht.publish(parts, f"p/{version}", client=clients[rank], shards=shards, base=base, timeout=SOON)

    receiver = Receiver(clients[1], {name: torch.zeros_like(tensor) for name, tensor in whole.items()})
    for version in (1, 2, 3):
        for index, tensor in enumerate(whole.values()):
            generator = np.random.default_rng(10 * version + index)
            tensor.view(-1)[torch.from_numpy(generator.choice(tensor.numel(), 5, replace=False))] += version
        with ThreadPoolExecutor() as pool:
            published = list(pool.map(publish, range(3), [version] * 3))
        came = receiver.fetch(monkeypatch)
        same(receiver.into, whole)
        assert came == sum(each.sent for each in published)
        assert version == 1 or came < 5000


def test_patches_are_for_their_base_alone() -> None:
    def manifest(identity: str, base: str | None) -> Manifest:
        entries = [Entry("w", "uint8", (64,), 0, 64, None, (64,))]
        patched = None if base is None else (base, {0: Source("x", 8)})
        return Manifest(1, identity, 64, entries, [], [], patches=patched)

    assert manifest("b", "a").patches_for(manifest("a", None)) == {0: Source("x", 8)}
    assert manifest("b-c", "a-").patches_for(manifest("a-z", None)) == {0: Source("x", 8)}
    for identity, base, other in (("b", None, "a"), ("b", "a", "z"), ("b-c", "a-d", "a-z"), ("b-c", "a-d", "a")):
        assert manifest(identity, base).patches_for(manifest(other, None)) == {}
    unlike = manifest("a", None)
    unlike.entries = []
    assert manifest("b", "a").patches_for(unlike) == {}


def encoded(item: int, count: int, places: Any, first: int = 0) -> tuple[bytes, bytes, Any]:
    """A patch of random data, its new bytes, and the places that differ."""
    dtype = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}[item]
    new = np.random.default_rng(item).integers(0, 256, -(-count * item // 64) * 64, dtype=np.uint8)
    old = new.copy()
    for place in places:
        old[place * item + place % item] ^= 1 + place % 255
    words = np.flatnonzero(new.view("i8") != old.view("i8"))
    entries = [Entry("w", dtype, (count,), first, count * item, None, (count,))]
    runs = patches.Runs(element_sizes()).within(entries, first, first + len(new))
    found = patches.write(new, first, words, new.view("i8")[words] ^ old.view("i8")[words], runs, 1 << 30)
    assert found is not None
    return found, new.tobytes(), places


@pytest.mark.parametrize("item", patches.ITEMS)
@pytest.mark.parametrize("every", [1, 3, 20, 70_000])
def test_a_patch_reads_back(item: int, every: int) -> None:
    patch, new, places = encoded(item, 150_001, range(every // 2, 150_001, every), first=640)
    (section,) = patches.read(memoryview(patch))
    assert (section.first, section.last, section.item) == (0, 150_001 * item, item)
    assert section.places.tolist() == list(places)
    assert section.values.tobytes() == b"".join(new[place * item : (place + 1) * item] for place in places)
    # A bitmap where that is less.
    assert len(patch) <= len(places) * item + min(150_001 / 8, 2 * len(places) + 12) + 64


def test_a_patch_that_is_changed_is_refused_or_has_places_in_range() -> None:
    generator = np.random.default_rng(5)
    for every in (3, 400):
        patch, *_ = encoded(2, 10_000, range(1, 10_000, every))
        for _ in range(2000):
            data = bytearray(patch[: int(generator.integers(0, len(patch)))] if generator.random() < 0.3 else patch)
            for _ in range(int(generator.integers(0, 4))):
                if data:
                    data[int(generator.integers(0, min(len(data), 200)))] = int(generator.integers(0, 256))
            try:
                for section in patches.read(memoryview(data)):
                    count = (section.last - section.first) // section.item
                    assert len(section.places) == len(section.values)
                    assert not len(section.places) or 0 <= section.places[0] <= section.places[-1] < count
            except ht.ManifestInvalid:
                pass


@pytest.mark.parametrize(
    ("first", "count", "item", "is_bitmap", "changed"),
    [
        (0, 1 << 60, 2, 0, 1),
        (0, 1 << 60, 2, 1, 1),
        (0, 10, 3, 0, 1),
        (0, 10, 2, 0, 11),
        (0, 1 << 63, 16, 0, 1 << 62),
        # Its elements would begin in the middle of others, or there are none.
        (2, 10, 4, 0, 1),
        (0, 10, 2, 0, 0),
    ],
)
def test_a_patch_that_is_impossible_takes_no_memory(
    first: int, count: int, item: int, is_bitmap: int, changed: int
) -> None:
    data = struct.pack("<QQIIQ", first, count, item, is_bitmap, changed) + bytes(64)
    with pytest.raises(ht.ManifestInvalid, match="not a patch of published weights"):
        list(patches.read(memoryview(data)))


def test_a_patch_has_each_range_once() -> None:
    """Otherwise a small patch could list many sections of all tensors."""
    patch, *_ = encoded(2, 1000, [5])
    with pytest.raises(ht.ManifestInvalid, match="a section begins at byte 0, and the one before ends at 2000"):
        list(patches.read(memoryview(patch + patch)))


def test_a_patch_of_other_elements_changes_nothing(clients: list[Client]) -> None:
    """Its publisher wrote another size of elements than that of the tensor."""
    tensors = {"w": counting((1 << 18,))}
    ht.publish(tensors, "p/1", client=clients[0])
    into = {"w": torch.zeros(1 << 18)}
    got = ht.fetch("p/", into=into, client=clients[1], timeout=SOON)
    before = into["w"].clone()
    tensors["w"][5] += 1
    write: Any = patches.write
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            patches, "write", lambda *given: write(*given).replace(struct.pack("<II", 4, 0), struct.pack("<II", 2, 0))
        )
        ht.publish(tensors, "p/2", base="p/1", client=clients[0])
    with pytest.raises(hoplite.Timeout, match="no version of p/ above 1"):
        ht.fetch("p/", into=into, after=got, client=clients[1], timeout=1)
    assert torch.equal(into["w"], before)
    same(ht.fetch("p/", client=clients[2], timeout=SOON), tensors)


def test_an_iterator_with_other_shapes_than_the_base_is_published_whole(clients: list[Client]) -> None:
    first, last = torch.ones(5 << 20, dtype=torch.bfloat16), torch.ones(1_000_000, dtype=torch.bfloat16)
    ht.publish({"first": first, "last": last}, "p/1", client=clients[0])
    shorter = {"first": first, "last": last[:999_997].clone()}
    ht.publish(iter(shorter.items()), "p/2", base="p/1", client=clients[0])
    same(ht.fetch("p/", client=clients[1], timeout=SOON), shorter)


def test_a_negated_view_is_patched(clients: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"w": counting((1 << 18,))}
    ht.publish(tensors, "p/1", client=clients[0])
    out = torch.zeros(1 << 18, dtype=torch.complex64).conj().imag
    assert out.is_neg()
    receiver = Receiver(clients[1], {"w": out})
    for version in (2, 3):
        receiver.fetch(monkeypatch)
        same(receiver.into, tensors)
        tensors["w"][version] += 1
        ht.publish(tensors, f"p/{version}", base=f"p/{version - 1}", client=clients[0])
    assert receiver.fetch(monkeypatch) < 1000
    same(receiver.into, tensors)


@pytest.mark.parametrize(("share", "patched"), [(0.05, [2]), (0.002, [2, 3, 4])])
def test_patches_take_the_room_that_a_version_leaves(
    caplog: pytest.LogCaptureFixture, share: float, patched: list[int]
) -> None:
    """With the two versions that are retained, there is room for a third, and for patches of 600 KiB."""
    with hoplite.Node(capacity=25200 << 10) as node, node.client() as client:
        tensors = {"w": counting((2 << 20,))}
        for version in range(1, 5):
            change(tensors["w"], share, version)
            base = None if version == 1 else f"p/{version - 1}"
            sent = ht.publish(tensors, f"p/{version}", base=base, client=client, timeout=SOON).sent
            assert (sent < 2 << 20) == (version in patched)
        warned = [line.partition(":")[0] for line in caplog.messages if "no room for all elements" in line]
        assert warned == [f"p/{version}" for version in range(2, 5) if version not in patched]
        same(ht.fetch("p/", client=client, timeout=SOON), tensors)
