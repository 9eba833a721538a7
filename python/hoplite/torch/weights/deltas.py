"""Publications that share data with an earlier one: which blocks of the flat space differ from its objects.

A version with a base is a whole version: its extents refer to objects of the base where nothing changed. A receiver
that has the base requests only the extents that differ. No version needs another one to be read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from hoplite import ObjectDeleted, ObjectLost
from hoplite.torch.weights.encoding import parse
from hoplite.torch.weights.manifest import EXTENTS_MAX, Extent, Manifest, ManifestInvalid, Source
from hoplite.torch.weights.memory import Typed, copy_all, element_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client
    from hoplite.torch.weights.names import Deadline, Version
    from hoplite.torch.weights.sources import Sources
    from hoplite.torch.weights.streams import Stream

logger = logging.getLogger("hoplite.torch")

# A change of one element sends this much.
BLOCK_BYTES = 64 << 10

# Objects of earlier versions stay while a block of them is used. Above this multiple of the tensors, all is put anew.
GARBAGE_FACTOR = 2


class Base:
    """The data of an earlier version, of which a publication uses what did not change.

    Args:
        client: client to get it with.
        manifest: its manifest.
        deadline: when to give up.
    """

    def __init__(self, client: Client, manifest: Manifest, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._extents = iter(manifest.extents)
        self._extent = next(self._extents)
        self._open: tuple[int, Typed] | None = None
        self.manifest = manifest

    @classmethod
    def find(
        cls, client: Client, name: Version, sources: Sources | Stream, rank: int, deadline: Deadline
    ) -> Base | None:
        """Gets the manifest of a version; returns None if it is gone, or its tensors are others."""
        if not client.wait([name.name], timeout=0)[0]:
            logger.warning("base %s does not exist: all data is put", name.name)
            return None
        try:
            manifest = _read(client, name.name, deadline)
            if rank:
                manifest = _read(client, name.shard(rank, manifest.id), deadline)
        except (ObjectDeleted, ObjectLost, ManifestInvalid):
            return None
        # Tensors that are not known yet are compared while they come.
        is_same = not sources.is_complete or (manifest.entries == sources.entries and manifest.nbytes == sources.nbytes)
        is_lean = sum(source.nbytes for source in manifest.sources) <= GARBAGE_FACTOR * manifest.nbytes
        is_short = len(manifest.extents) <= EXTENTS_MAX // 64
        return cls(client, manifest, deadline) if is_same and is_lean and is_short and not manifest.inline else None

    def compare(self, data: Typed, first: int) -> Iterator[tuple[Extent, bool]]:
        """Compares the next range of the flat space with the base. Ranges come in order, and may be behind its end.

        Args:
            data: the new bytes.
            first: first byte of the range.

        Yields:
            Extents of the base in the range, and whether the bytes changed.
        """
        last = first + data.data.numel()
        end = max(first, min(last, self.manifest.nbytes))
        for extent in self._cut(first, end):
            at = extent.at - first
            for offset, nbytes, is_changed in _blocks(data.data[at : at + extent.nbytes], self._bytes(extent)):
                found = Extent(extent.at + offset, nbytes, extent.source, extent.start + offset)
                yield found, is_changed
        if end < last:
            yield Extent(end, last - end, -1, 0), True

    def read(self, first: int, nbytes: int) -> bytearray:
        """Returns a copy of a range of the flat space of the base. Ranges come in order, as for `compare`."""
        data = bytearray(nbytes)
        out = Typed(data).data
        for extent in self._cut(first, first + nbytes):
            at = extent.at - first
            copy_all([out[at : at + extent.nbytes]], [self._bytes(extent)])
        return data

    def _cut(self, first: int, last: int) -> Iterator[Extent]:
        """Yields the extents of a range."""
        while first < last:
            extent = self._extent
            end = min(last, extent.at + extent.nbytes)
            yield Extent(first, end - first, extent.source, extent.start + first - extent.at)
            if end == extent.at + extent.nbytes:
                self._extent = next(self._extents, extent)
            first = end

    def _bytes(self, extent: Extent) -> Any:
        return self._object(extent.source).data[extent.start : extent.start + extent.nbytes]

    def _object(self, index: int) -> Typed:
        if self._open is None or self._open[0] != index:
            self._open = None
            source = self.manifest.sources[index]
            data = self._client.get(source.ref, timeout=self._deadline.left())
            if not isinstance(data, memoryview) or data.nbytes != source.nbytes:
                raise ManifestInvalid(f"object {source.ref} is not {source.nbytes} bytes, as its manifest states")
            self._open = (index, Typed(data))
        return self._open[1]


class Delta:
    """The extents of a publication that has a base, while it is put."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._places: dict[str, int] = {}
        self.sources: list[Source] = []
        self.extents: list[Extent] = []

    def pieces(self, data: Typed, first: int) -> list[Any]:
        """Compares a range; returns the pieces that changed. Call `add` with an object of their bytes."""
        self._found = list(self._base.compare(data, first))
        return [data.data[e.at - first : e.at - first + e.nbytes] for e, is_changed in self._found if is_changed]

    def add(self, new: Source | None) -> None:
        """Adds the extents of the range that was compared; None if nothing in it changed."""
        start = 0
        for extent, is_changed in self._found:
            if is_changed:
                assert new is not None
                self._append(extent._replace(start=start), new)
                start += extent.nbytes
            else:
                self._append(extent, self._base.manifest.sources[extent.source])

    def _append(self, extent: Extent, source: Source) -> None:
        index = self._places.setdefault(source.ref, len(self.sources))
        if index == len(self.sources):
            self.sources.append(source)
        last = self.extents[-1] if self.extents else None
        if last is not None and last.source == index and last.start + last.nbytes == extent.start:
            self.extents[-1] = last._replace(nbytes=last.nbytes + extent.nbytes)
        else:
            self.extents.append(extent._replace(source=index))


def _blocks(new: Any, old: Any) -> Iterator[tuple[int, int, bool]]:
    """Yields the offset and length of runs of blocks that changed, and of runs that did not."""
    nbytes = new.numel()
    # All lengths are multiples of 64 bytes.
    new, old = new.view(torch.int64), old.view(torch.int64)
    if torch.equal(new, old):
        yield 0, nbytes, False
        return
    count = nbytes // BLOCK_BYTES
    whole = count * BLOCK_BYTES // 8
    differ = (new[:whole] != old[:whole]).view(count, BLOCK_BYTES // 8).any(1).tolist()
    if whole < new.numel():
        differ.append(not torch.equal(new[whole:], old[whole:]))
    begin = 0
    for index in range(1, len(differ) + 1):
        if index == len(differ) or differ[index] != differ[begin]:
            end = min(index * BLOCK_BYTES, nbytes)
            yield begin * BLOCK_BYTES, end - begin * BLOCK_BYTES, differ[begin]
            begin = index


def _read(client: Client, name: str, deadline: Deadline) -> Manifest:
    return parse(client.get(name, timeout=deadline.left()), name, element_sizes())
