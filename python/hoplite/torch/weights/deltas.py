"""Publications that share data with an earlier one: which blocks and elements of the flat space differ.

A version with a base is a whole version: its extents refer to objects of the base where no element of a block changed.
No version needs another one to be read. A receiver that has the base brings the patch of an object in place of it.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hoplite import ObjectDeleted, ObjectLost
from hoplite.torch.weights import patches
from hoplite.torch.weights.encoding import parse
from hoplite.torch.weights.manifest import EXTENTS_MAX, Extent, Manifest, ManifestInvalid, Source
from hoplite.torch.weights.memory import Typed, element_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hoplite import Client
    from hoplite.torch.weights.manifest import Entry
    from hoplite.torch.weights.names import Deadline, Version
    from hoplite.torch.weights.sources import Sources
    from hoplite.torch.weights.streams import Stream

logger = logging.getLogger("hoplite.torch")

# Objects have blocks of this size.
BLOCK_BYTES = 64 << 10
BLOCK_WORDS = BLOCK_BYTES // patches.WORD_BYTES

# A patch of more than this share of its object is left out: to apply it takes more processor time than to receive the
# object. So is one if more than this share of the words of 8 bytes changed: the search for elements takes too long.
PATCH_SHARE_MAX = 0.25
WORDS_SHARE_MAX = 0.5

# Objects of earlier versions stay while a block of them is used. Above this multiple of the tensors, all is put anew.
GARBAGE_FACTOR = 2


class Change(NamedTuple):
    """What a range of the flat space has in common with the base.

    Attributes:
        extent: its place, in an object of the base.
        is_changed: whether the bytes of the two differ.
        words: indexes in the range of the words of 8 bytes that differ; None if there are none or too many, or if the
            base has no such range.
        differences: the exclusive or of these words.
    """

    extent: Extent
    is_changed: bool
    words: Any = None
    differences: Any = None


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

    def compare(self, data: Typed, first: int) -> Iterator[Change]:
        """Compares the next range of the flat space with the base. Ranges come in order, and may be behind its end.

        Args:
            data: the new bytes.
            first: first byte of the range.

        Yields:
            Pieces of the range, in order.
        """
        last = first + data.data.numel()
        end = max(first, min(last, self.manifest.nbytes))
        for extent in self._cut(first, end):
            at = extent.at - first
            yield from _compared(extent, data.data[at : at + extent.nbytes], self._bytes(extent))
        if end < last:
            yield Change(Extent(end, last - end, -1, 0), True)

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
    """The extents of a publication that has a base, and the patches of its objects, while it is put.

    Attributes:
        sources: the data objects, those of the base that it uses among them.
        extents: map of the flat space.
        patches: the patch of each new object that has one, by index in `sources`.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self._places: dict[str, int] = {}
        self._found: list[Change] = []
        self._runs = patches.Runs(element_sizes())
        # Whether the tensors so far are those of the base, and their number.
        self._is_same = True
        self._known = 0
        self.sources: list[Source] = []
        self.extents: list[Extent] = []
        self.patches: dict[int, Source] = {}

    def pieces(self, data: Typed, first: int) -> list[Any]:
        """Compares a range; returns the pieces that changed. Call `add` with an object of their bytes."""
        self._found = list(self._base.compare(data, first))
        pieces = [change.extent for change in self._found if change.is_changed]
        return [data.data[extent.at - first : extent.at - first + extent.nbytes] for extent in pieces]

    def patch(self, data: memoryview, first: int, entries: Sequence[Entry]) -> bytes | None:
        """Returns the patch of the range that was compared; None if it would save little.

        Args:
            data: bytes of the range.
            first: first byte of the range.
            entries: all tensors up to the range.
        """
        # Tensors that come one by one can turn out to be others, which a receiver of the base can't patch.
        self._is_same &= entries[self._known :] == self._base.manifest.entries[self._known : len(entries)]
        self._known = len(entries)
        changed = [change for change in self._found if change.is_changed]
        if not self._is_same or any(change.words is None for change in changed):
            return None
        origin, end = changed[0].extent.at, first + len(data)
        words = [change.words + (change.extent.at - origin) // patches.WORD_BYTES for change in changed]
        differences = [change.differences for change in changed]
        found = self._runs.within(entries, origin, end)
        limit = PATCH_SHARE_MAX * sum(change.extent.nbytes for change in changed)
        return patches.write(
            data[origin - first :], origin, np.concatenate(words), np.concatenate(differences), found, limit
        )

    def add(self, new: Source | None, patch: Source | None = None) -> None:
        """Adds the extents of the range that was compared; None if nothing in it changed."""
        start = 0
        for extent, is_changed, *_ in self._found:
            if is_changed:
                assert new is not None
                self._append(extent._replace(start=start), new)
                start += extent.nbytes
            else:
                self._append(extent, self._base.manifest.sources[extent.source])
        if new is not None and patch is not None:
            self.patches[self._places[new.ref]] = patch

    def _append(self, extent: Extent, source: Source) -> None:
        index = self._places.setdefault(source.ref, len(self.sources))
        if index == len(self.sources):
            self.sources.append(source)
        last = self.extents[-1] if self.extents else None
        if last is not None and last.source == index and last.start + last.nbytes == extent.start:
            self.extents[-1] = last._replace(nbytes=last.nbytes + extent.nbytes)
        else:
            self.extents.append(extent._replace(source=index))


def _compared(extent: Extent, new: Any, old: Any) -> Iterator[Change]:
    """Yields runs of blocks that changed, and of runs that did not."""
    # All lengths are multiples of 64 bytes.
    new, old = new.view(torch.int64), old.view(torch.int64)
    if torch.equal(new, old):
        yield Change(extent, is_changed=False)
        return
    new, old = new.numpy(), old.numpy()
    do_differ = new != old
    whole = len(new) // BLOCK_WORDS * BLOCK_WORDS
    blocks = do_differ[:whole].reshape(-1, BLOCK_WORDS).any(1).tolist()
    if whole < len(new):
        blocks.append(bool(do_differ[whole:].any()))
    begin = 0
    for is_changed, run in itertools.groupby(blocks):
        end = min(begin + BLOCK_WORDS * len(list(run)), len(new))
        at, nbytes = begin * patches.WORD_BYTES, (end - begin) * patches.WORD_BYTES
        part = Extent(extent.at + at, nbytes, extent.source, extent.start + at)
        words = differences = None
        if is_changed and np.count_nonzero(do_differ[begin:end]) <= WORDS_SHARE_MAX * (end - begin):
            words = np.flatnonzero(do_differ[begin:end])
            differences = new[begin:end][words] ^ old[begin:end][words]
        yield Change(part, is_changed, words, differences)
        begin = end


def _read(client: Client, name: str, deadline: Deadline) -> Manifest:
    return parse(client.get(name, timeout=deadline.left()), name, element_sizes())
