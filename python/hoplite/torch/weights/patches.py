"""Patches: the elements of a data object that differ from those of the base, and their new values.

A patch consists of sections, one for each run of tensors whose elements have the same size. A section is a header, the
places of the elements that changed, and their bytes. Sparse places are 16 bits each, counted in blocks of 65536
elements; dense ones are a bitmap. Each part starts at a multiple of 8 bytes. Values are absolute. Does not know torch
or clients, and whoever may put a name may put any bytes: `read` checks all lengths.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hoplite.torch.weights.manifest import ALIGNMENT, ManifestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hoplite.torch.weights.manifest import Entry

# First byte, number of elements, their size in bytes, whether the places are a bitmap, and the number of elements that
# changed. The byte is counted from the origin, the place of the first byte of the object in the flat space.
HEADER = struct.Struct("<QQIIQ")
BLOCK_ELEMENTS = 1 << 16

# Sizes of elements: complex numbers of two float64 are the largest.
ITEMS = (1, 2, 4, 8, 16)
# Words of this size are compared.
WORD_BYTES = 8


class Section(NamedTuple):
    """Elements of one size that changed.

    Attributes:
        first: first byte of the range, from the origin of the patch on.
        last: its end, exclusive.
        item: size of an element in bytes.
        places: indexes in the range of the elements that changed, in order.
        values: their new values, as opaque elements of that size.
    """

    first: int
    last: int
    item: int
    places: Any
    values: Any


class Run(NamedTuple):
    """A range of the flat space whose elements have the same size. `item` is that size in bytes."""

    first: int
    last: int
    item: int


class Runs:
    """The runs of a flat space, which may still grow.

    Args:
        sizes: size in bytes of an element of each dtype.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes
        self._all: list[Run] = []
        self._count = 0

    def within(self, entries: Sequence[Entry], first: int, last: int) -> Iterator[Run]:
        """Yields the runs in a range of the flat space, in order.

        Args:
            entries: all tensors up to the range, in the order of the publication.
            first: first byte of the range.
            last: its end, exclusive.
        """
        # Layouts of receivers order the flat space in another way.
        for entry in sorted(entries[self._count :], key=lambda entry: entry.offset):
            self._add(entry)
        self._count = len(entries)
        for index in range(bisect_right(self._all, first, key=lambda run: run.last), len(self._all)):
            run = self._all[index]
            if run.first >= last:
                return
            yield Run(max(run.first, first), min(run.last, last), run.item)

    def _add(self, entry: Entry) -> None:
        before = self._all[-1] if self._all else None
        # Tied tensors are in the run of the first.
        if not entry.nbytes or (before is not None and entry.offset < before.last):
            return
        item, end = self._sizes[entry.dtype], entry.offset + entry.nbytes
        if before is not None and before.item == item:
            # The bytes between two tensors are equal in all versions.
            self._all[-1] = before._replace(last=end)
        else:
            self._all.append(Run(entry.offset, end, item))


def write(data: Any, origin: int, words: Any, differences: Any, found: Iterable[Run], limit: float) -> bytes | None:
    """Returns a patch; None if it would have more than `limit` bytes.

    Args:
        data: bytes of the version from `origin` on.
        origin: a byte of the flat space, a multiple of 64.
        words: indexes of the words of 8 bytes, from `origin` on, that differ from the base, in order.
        differences: the exclusive or of each with that of the base.
        found: runs of the elements.
        limit: bytes that it may have.
    """
    parts: list[bytes] = []
    left = limit
    for run in found:
        first, count = run.first - origin, (run.last - run.first) // run.item
        low, high = np.searchsorted(words, (first // WORD_BYTES, -(-(run.last - origin) // WORD_BYTES)))
        is_changed = differences[low:high].view(f"u{min(run.item, WORD_BYTES)}") != 0
        # Before the places take time.
        changed = int(np.count_nonzero(is_changed)) // max(1, run.item // WORD_BYTES)
        left -= changed * run.item + min(2 * changed, count / 8)
        if left < 0:
            return None
        at, each = np.flatnonzero(is_changed), max(1, WORD_BYTES // run.item)
        places = (words[low:high] - first // WORD_BYTES)[at // each] * each + at % each
        # The last word can have bytes behind the run, which are not published.
        places = places[: np.searchsorted(places, count * max(1, run.item // WORD_BYTES))]
        if run.item > WORD_BYTES:
            places = np.unique(places // (run.item // WORD_BYTES))
        if len(places):
            values = np.frombuffer(data, f"V{run.item}", count, first)
            parts += _section(first, count, run.item, places, values[places])
    patch = b"".join(parts)
    return patch if len(patch) <= limit else None


def _section(first: int, count: int, item: int, places: Any, values: Any) -> Iterator[bytes]:
    blocks = -(-count // BLOCK_ELEMENTS)
    is_bitmap = count / 8 < 4 * blocks + 2 * len(places)
    yield HEADER.pack(first, count, item, is_bitmap, len(places))
    if is_bitmap:
        mask = np.zeros(count, np.bool_)
        mask[places] = True
        yield _padded(np.packbits(mask))
    else:
        yield _padded(np.bincount(places // BLOCK_ELEMENTS, minlength=blocks).astype("<u4"))
        yield _padded((places % BLOCK_ELEMENTS).astype("<u2"))
    yield _padded(values)


def _padded(array: Any) -> bytes:
    return bytes(array.tobytes().ljust(-(-array.nbytes // 8) * 8, b"\0"))


def read(patch: memoryview) -> Iterator[Section]:
    """Yields the sections of a patch.

    Raises:
        ManifestInvalid: it is not a patch.
    """
    at = end = 0

    def take(dtype: str, count: int) -> Any:
        nonlocal at
        nbytes = np.dtype(dtype).itemsize * count
        if nbytes > len(patch) - at:
            raise _invalid("it is too short")
        start, at = at, min(at + -(-nbytes // 8) * 8, len(patch))
        return np.frombuffer(patch, dtype, count, start)

    while at < len(patch):
        if len(patch) - at < HEADER.size:
            raise _invalid("it is too short")
        first, count, item, is_bitmap, changed = HEADER.unpack_from(patch, at)
        at += HEADER.size
        if item not in ITEMS or not 0 < changed <= count:
            raise _invalid(f"{changed} of {count} elements of {item} bytes changed")
        if first < end or first % ALIGNMENT:
            raise _invalid(f"a section begins at byte {first}, and the one before ends at {end}")
        end = first + count * item
        if is_bitmap:
            # As booleans, which NumPy searches ten times faster.
            places = np.flatnonzero(np.unpackbits(take("u1", -(-count // 8)), count=count).view(np.bool_))
        else:
            counts, offsets = take("<u4", -(-count // BLOCK_ELEMENTS)), take("<u2", changed)
            if int(counts.sum(dtype=np.uint64)) != changed:
                raise _invalid("its counts are not those of its places")
            places = np.repeat(np.arange(len(counts)) * BLOCK_ELEMENTS, counts) + offsets
        if len(places) != changed or places[-1] >= count or (np.diff(places) <= 0).any():
            raise _invalid("its places are not in order")
        yield Section(first, end, item, places, take(f"V{item}", changed))


def _invalid(why: str) -> ManifestInvalid:
    return ManifestInvalid(f"an object is not a patch of published weights ({why}): publish a new version")
