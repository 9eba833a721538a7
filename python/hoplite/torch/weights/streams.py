"""Tensors of a publisher that are there one after the other, each in memory that the next one may reuse.

Each tensor is copied before the next one is requested, so that nothing but the store holds the whole version. What the
tensors are is known at the end. Has the interface of `Sources`. Does not know clients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hoplite.torch.weights.memory import Pinned, Typed
from hoplite.torch.weights.sources import Boxes, Chunk, Sources, check_boxes, pairs, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite.torch.weights.manifest import Entry

# A larger publication has larger buckets, by what came before.
BUCKETS_MAX = 1024

# Tensors in the same memory are compared by this much first, which differs as a rule.
FIRST_BYTES = 4096


class Stream:
    """The flat space of a publication whose tensors come one by one.

    Attributes:
        entries: the tensors so far, for the manifest.
        nbytes: size of the flat space so far.
        is_complete: whether these are all.
        read_back: returns a copy of a range of the flat space, given its first byte and length, of a chunk that was
            taken. It is used for tensors in the memory of an earlier one, to find those that are tied.

    Args:
        source: pairs of a name and a tensor.
        dtype: dtype that floating tensors are converted to while they are copied; None for none.
        boxes: boxes of the tensors that are parts of larger ones.
        grows: whether the ranges grow with the flat space.
    """

    def __init__(self, source: Any, dtype: Any = None, boxes: Boxes | None = None, *, grows: bool = True) -> None:
        self.entries: list[Entry] = []
        self.nbytes = 0
        self.is_complete = False
        self.read_back: Callable[[int, int], Any] | None = None
        self._source = source
        self._dtype = dtype
        self._boxes = boxes or {}
        self._grows = grows
        self._pinned = Pinned()
        # The last entry of each piece of memory, and of each shape.
        self._seen: dict[Any, Entry] = {}
        # Small tensors, until they fill a chunk.
        self._stage = bytearray()
        self._staged = 0

    def chunks(self, bucket: int) -> Iterator[Chunk]:
        """Yields the flat space in ranges of up to a size in bytes. Large tensors have ranges of their own."""
        for name, tensor in pairs(self._source):
            size_max = max(bucket, self.nbytes // BUCKETS_MAX // bucket * bucket) if self._grows else bucket
            boxes = {name: self._boxes[name]} if name in self._boxes else None
            one = Sources(whole({name: tensor}, boxes), dtype=self._dtype, pinned=self._pinned)
            (entry,) = one.entries
            key = _key(tensor, entry)
            tied = None if key is None else self._seen.get(key)
            if tied is not None and self._is_same(one, tied, size_max):
                self.entries.append(entry._replace(offset=tied.offset))
                continue
            # The memory of small tensors grows only when it is empty.
            if self._staged and self._staged + one.nbytes > min(size_max, len(self._stage)):
                yield self._flush()
            entry = entry._replace(offset=self.nbytes if entry.nbytes else 0)
            self.entries.append(entry)
            if key is not None:
                self._seen[key] = entry
            first = self.nbytes
            self.nbytes += one.nbytes
            if one.nbytes > size_max:
                for chunk in one.chunks(size_max):
                    yield chunk._replace(first=first + chunk.first)
            elif one.nbytes:
                self._keep(one, size_max)
        check_boxes(self._boxes, {entry.name for entry in self.entries})
        self.is_complete = True
        if self._staged:
            yield self._flush()

    def _keep(self, one: Sources, size_max: int) -> None:
        if not self._staged and len(self._stage) < size_max:
            self._stage = bytearray(size_max)
        one.copy(memoryview(self._stage)[self._staged : self._staged + one.nbytes], 0)
        self._staged += one.nbytes

    def _flush(self) -> Chunk:
        staged, self._staged = self._staged, 0
        return Chunk(self.nbytes - staged, staged, partial(copy_bytes, memoryview(self._stage)[:staged]))

    def _is_same(self, one: Sources, other: Entry, size_max: int) -> bool:
        """Whether a tensor has the bytes of an earlier one. torch does not see each change, such as one by NumPy."""
        first = 0
        while first < one.nbytes:
            nbytes = min(size_max if first else FIRST_BYTES, one.nbytes - first)
            data = bytearray(nbytes)
            one.copy(data, first)
            if not torch.equal(Typed(data).data, Typed(self._bytes(other.offset + first, nbytes)).data):
                return False
            first += nbytes
        return True

    def _bytes(self, first: int, nbytes: int) -> Any:
        staged = self.nbytes - self._staged
        if first >= staged:
            return memoryview(self._stage)[first - staged : first - staged + nbytes]
        assert self.read_back is not None
        return self.read_back(first, nbytes)


def _key(tensor: Any, entry: Entry) -> Any:
    """What a tensor has in common with those that are tied to it; None if there can be none.

    Memory that was freed and used again is another storage, and memory that torch has changed has another version.
    Equal bytes alone do not make two tensors one: norms start as ones.
    """
    if not entry.nbytes or tensor.is_inference():
        # Tensors of the inference mode have no version.
        return None
    # A weak reference to a storage does not keep its memory, and no other storage is equal to it.
    storage = StorageWeakRef(tensor.untyped_storage())
    place = (storage, tensor._version, tensor.data_ptr(), tensor.stride(), tensor.dtype)
    return (*place, tensor.is_neg(), tensor.is_conj(), entry.dtype, entry.shape)


def copy_bytes(data: Any, memory: Any) -> None:
    """Copies bytes into memory of their length."""
    memory[:] = data
