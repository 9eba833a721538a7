"""Copies of received bytes into tensors: which bytes of the flat space each tensor needs, and where they go.

Bytes arrive in any pieces, and those of what changed are not whole tensors. A piece of a tensor that is not contiguous,
or of which a receiver wants a box that is not whole rows, is copied as a few boxes. Does not know clients.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from hoplite.torch.weights import patches
from hoplite.torch.weights.boxes import common, slices
from hoplite.torch.weights.manifest import ManifestInvalid
from hoplite.torch.weights.memory import Typed, carrier, copy_all, copyable, element_sizes, strides, synchronize
from hoplite.torch.weights.modes import copying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hoplite.torch.weights.boxes import Box
    from hoplite.torch.weights.manifest import Entry, Manifest

# Elements that change are copied as integers of their size: exact, also the bits of a NaN, and for any dtype.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# Every page is read once before a switch, so that the switch does not wait for the kernel to map it.
PAGE_BYTES = 4096


class Segment(NamedTuple):
    """A piece of an object, and its place in the flat space.

    Attributes:
        start: first byte in the object.
        at: first byte in the flat space.
        nbytes: length in bytes.
    """

    start: int
    at: int
    nbytes: int


class Target(NamedTuple):
    """Memory that a range of the flat space is copied into.

    Attributes:
        first: first byte of the range.
        last: its end, exclusive.
        dtype: dtype as which its elements are copied.
        item: size of an element in bytes.
        shape: shape of the elements in the range.
        stride: their strides, in elements.
        inner: the wanted indexes on all axes but the first; None for all.
        out: the tensor.
        is_linear: whether the elements of `out` are in the order of the range.
    """

    first: int
    last: int
    dtype: Any
    item: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    inner: tuple[slice, ...] | None
    out: Any
    is_linear: bool


class Elements(NamedTuple):
    """Elements of a tensor that change.

    Attributes:
        out: the tensor.
        places: their indexes, on each axis.
        values: their new values.
    """

    out: Any
    places: tuple[Any, ...]
    values: Any


class Placement:
    """The tensors of a fetch, and which bytes of a version they need.

    Attributes:
        tensors: the tensors by name, as the caller receives them.
        boxes: what is wanted of each whole tensor; None for all of it.
        is_touched: whether anything was copied into them.
        staged_bytes: bytes in host memory that wait for `switch`.
        keeps_objects: whether the objects stay in the store until `switch`.

    Args:
        manifest: the version.
        tensors: a tensor for each name that is wanted, of the shape that is wanted.
        boxes: what is wanted of each whole tensor; None for all of it.
        stages: whether to leave the tensors as they are until `switch`.
        touch: called before the first copy into the tensors.
    """

    def __init__(
        self,
        manifest: Manifest,
        tensors: dict[str, Any],
        boxes: dict[str, Box | None],
        *,
        stages: bool,
        touch: Callable[[], None],
    ) -> None:
        self.tensors = tensors
        self.boxes = boxes
        self.is_touched = False
        self.staged_bytes = 0
        self._stages = stages
        self._touch = touch
        found = {}
        for entry in manifest.entries:
            if entry.name in tensors and entry.nbytes:
                target = _target(entry, copyable(tensors[entry.name]), boxes[entry.name])
                if target is not None:
                    # Tied tensors of a module are one.
                    found[target.first, target.last, target.out.data_ptr(), target.out.stride()] = target
        self._targets = sorted(found.values(), key=lambda target: target.first)
        self._firsts = [target.first for target in self._targets]
        # The highest end of each target and those before it: tied tensors can have different slices of one range.
        self._ends = list(accumulate((target.last for target in self._targets), max))
        self._devices = {target.out.device for target in self._targets} - {torch.device("cpu")}
        self.keeps_objects = stages and not self._devices
        self._pinned: Any = None
        self._staged: tuple[list[Any], list[Any]] = ([], [])
        self._staged_elements: list[Elements] = []

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges of the flat space that the tensors need, in order."""
        merged: list[tuple[int, int]] = []
        for target in self._targets:
            if merged and target.first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], target.last))
            else:
                merged.append((target.first, target.last))
        return merged

    def take(self, memory: Any, segments: Sequence[Segment]) -> None:
        """Copies the bytes of an object, or keeps its memory until `switch`.

        Raises:
            HopliteError: torch can't copy them.
        """
        with copying():
            self._take(memory, segments)

    def _take(self, memory: Any, segments: Sequence[Segment]) -> None:
        source = Typed(memory)
        if self._devices:
            source = self._on_host(source)
        outs: list[Any] = []
        values: list[Any] = []
        for segment in segments:
            self._pairs(source, segment, outs, values)
        if self._stages:
            # The values keep the memory of the object.
            self._staged[0].extend(outs)
            self._staged[1].extend(values)
            self.staged_bytes += source.data.numel()
            source.data[::PAGE_BYTES].sum()
        else:
            self._copy(outs, values)

    def patch(self, memory: Any, origin: int) -> None:
        """Copies the elements of a patch, or keeps them until `switch`. The tensors have the version before.

        Args:
            memory: the patch.
            origin: place in the flat space of the object in place of which it came.

        Raises:
            ManifestInvalid: the bytes are not a patch of this version.
            HopliteError: torch can't copy the elements.
        """
        with copying():
            found: list[Elements] = []
            for section in patches.read(memoryview(memory)):
                moved = section._replace(first=origin + section.first, last=origin + section.last)
                found += self._elements(moved)
            if self._stages:
                self._staged_elements += found
                self.staged_bytes += sum(part.nbytes for each in found for part in (*each.places, each.values))
            else:
                self._copy([], [], found)

    def _elements(self, section: patches.Section) -> Iterator[Elements]:
        """Yields what a section of a patch changes in each tensor. It begins at its place in the flat space."""
        first, last, item, places, values = section
        targets = self._targets[self._first_after(first) : bisect_left(self._firsts, last)]
        # In elements of the section.
        begins = [(target.first - first) // item for target in targets]
        ends = [-((first - target.last) // item) for target in targets]
        lows, highs = np.searchsorted(places, begins).tolist(), np.searchsorted(places, ends).tolist()
        new, at = torch.from_numpy(values.view(np.uint8).copy()), torch.from_numpy(places)
        for target, begin, low, high in zip(targets, begins, lows, highs, strict=True):
            if low >= high:
                continue
            if target.item != item:
                raise ManifestInvalid(
                    f"a patch has elements of {item} bytes for a tensor of {target.item}: publish a new version"
                )
            replacement = new[low * item : high * item].view(target.dtype)
            if target.is_linear:
                yield Elements(target.out.view(-1), (at[low:high] - begin,), replacement)
            else:
                yield from _placed(target, places[low:high] - begin, replacement)

    def switch(self) -> None:
        """Copies what `take` has kept, and frees it. After an error it can be called again.

        Raises:
            HopliteError: torch can't copy it.
        """
        # What was copied into the tensors between two calls changes too.
        self.is_touched = False
        with copying():
            self._copy(*self._staged, self._staged_elements, in_threads=True)
        self._staged, self._staged_elements = ([], []), []

    def _copy(
        self, outs: list[Any], values: list[Any], elements: Sequence[Elements] = (), *, in_threads: bool = False
    ) -> None:
        if not self.is_touched:
            self.is_touched = True
            self._touch()
        copy_all(outs, values, in_threads=in_threads)
        for out, places, replacement in elements:
            found, integer = replacement.to(out.device, out.dtype), INTEGERS.get(out.element_size())
            if integer is not None and not (out.is_complex() or out.is_neg()):
                out, found = out.view(integer), found.view(integer)
            out.index_put_(tuple(each.to(out.device) for each in places), found)
        for device in self._devices:
            synchronize(device)

    def _on_host(self, source: Typed) -> Typed:
        """Copies the bytes into pinned memory, from which a device copies at the speed of the bus."""
        nbytes = source.data.numel()
        if self._pinned is None or self._pinned.numel() < nbytes or self._stages:
            self._pinned = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available())
        pinned = self._pinned[:nbytes]
        copy_all([pinned], [source.data])
        return Typed(pinned)

    def _pairs(self, source: Typed, segment: Segment, outs: list[Any], values: list[Any]) -> None:
        """Appends the copies that a segment allows."""
        start, at, nbytes = segment
        last = at + nbytes
        for index in range(self._first_after(at), len(self._targets)):
            target = self._targets[index]
            if target.first >= last:
                break
            if target.last <= at:
                continue
            _, _, dtype, item, shape, stride, inner, out, is_linear = target
            if target.first >= at and target.last <= last:
                value = source.view(dtype, item, shape, stride, start + target.first - at)
                outs.append(out)
                values.append(value if inner is None else value[(slice(None), *inner)])
                continue
            begin, end = max(target.first, at), min(target.last, last)
            if is_linear:
                count = (end - begin) // item
                place = (begin - target.first) // item
                outs.append(out.view(-1)[place : place + count])
                values.append(source.view(dtype, item, (count,), (1,), start + begin - at))
                continue
            place = start + begin - at
            for box in _boxes(shape, (begin - target.first) // item, (end - target.first) // item):
                lengths = tuple(high - low for low, high in box)
                value = source.view(dtype, item, lengths, strides(lengths), place)
                place += math.prod(lengths) * item
                _pair(target, box, value, outs, values)

    def _first_after(self, at: int) -> int:
        """Index of the first target that can have bytes from here on."""
        index = bisect_right(self._firsts, at)
        while index and self._ends[index - 1] > at:
            index -= 1
        return index


def _placed(target: Target, places: Any, values: Any) -> Iterator[Elements]:
    """Yields the elements that change of a target whose elements are not in the order of its range.

    Args:
        target: the memory.
        places: indexes in its range of the flat space.
        values: the values.
    """
    indexes = np.unravel_index(places, target.shape)
    if target.inner is not None:
        inner = list(zip(indexes[1:], target.inner, strict=True))
        is_wanted = np.logical_and.reduce([(at >= box.start) & (at < box.stop) for at, box in inner])
        if not is_wanted.any():
            return
        indexes = (indexes[0][is_wanted], *(at[is_wanted] - box.start for at, box in inner))
        values = values[torch.from_numpy(is_wanted)]
    yield Elements(target.out, tuple(map(torch.from_numpy, indexes)), values)


def _boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[Box]:
    """Yields boxes that are a range of the elements of a shape, in order: at most two for each axis, and one.

    Args:
        shape: the shape.
        begin: first element, of a contiguous tensor.
        end: the last one, exclusive; it is behind the first.
    """
    row = math.prod(shape[1:])
    first, last = -(-begin // row), end // row
    if begin % row:
        at = begin // row
        yield from ([(at, at + 1), *box] for box in _boxes(shape[1:], begin % row, min(end - at * row, row)))
    if first < last:
        yield [(first, last), *((0, length) for length in shape[1:])]
    if end % row and last >= first:
        yield from ([(last, last + 1), *box] for box in _boxes(shape[1:], 0, end % row))


def _pair(target: Target, box: Box, value: Any, outs: list[Any], values: list[Any]) -> None:
    """Appends the copy of the wanted part of a box of a target."""
    inner = target.inner or tuple(slice(0, length) for length in target.shape[1:])
    wanted = [(0, target.shape[0]), *((at.start, at.stop) for at in inner)]
    both = common(box, wanted)
    if all(low < high for low, high in both):
        outs.append(target.out[slices(both, wanted)])
        values.append(value[slices(both, box)])


def _target(entry: Entry, out: Any, box: Box | None) -> Target | None:
    """Returns what a tensor takes of an entry; None if they have no element in common."""
    dtype, item, shape = carrier(entry.dtype), element_sizes()[entry.dtype], entry.shape
    if box is None and entry.begin is None:
        is_linear = out.is_contiguous()
        stride = out.stride() if is_linear else strides(shape)
        return Target(entry.offset, entry.offset + entry.nbytes, dtype, item, shape, stride, None, out, is_linear)
    begin = entry.begin or (0,) * len(shape)
    wanted = box if box is not None else [(0, length) for length in entry.full]
    both = common([(first, first + length) for first, length in zip(begin, shape, strict=True)], wanted)
    if any(start >= stop for start, stop in both):
        return None
    out = out[slices(both, wanted)]
    here = [(low - first, high - first) for (low, high), first in zip(both, begin, strict=True)]
    (low, high), *others = here or [(0, 1)]
    row = math.prod(shape[1:]) * item
    is_whole = all((start, stop) == (0, length) for (start, stop), length in zip(others, shape[1:], strict=True))
    inner = None if is_whole else tuple(slice(start, stop) for start, stop in others)
    rows = (high - low, *shape[1:]) if shape else ()
    return Target(
        entry.offset + low * row,
        entry.offset + high * row,
        dtype,
        item,
        rows,
        strides(rows),
        inner,
        out,
        inner is None and out.is_contiguous(),
    )
