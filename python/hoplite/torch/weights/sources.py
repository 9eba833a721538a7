"""Tensors of a publisher: which there are, where each goes in the flat space, and copies of any range of that space.

A view is published with its own elements only. Tensors with the same elements (tied parameters) get the same offset.
Does not know clients.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from hoplite import InvalidArgument, ShapeMismatch, UnsupportedDtype
from hoplite.torch.weights.manifest import ALIGNMENT, AXES_MAX, NAME_CHARS_MAX, TENSORS_MAX, Entry, aligned
from hoplite.torch.weights.memory import (
    Typed,
    carrier,
    converted,
    copy_all,
    copyable,
    dtype_name,
    element_sizes,
    strides,
    synchronize,
)

# Boxes of tensor-parallel ranks, by name of the tensor: the index of the first element, and the shape of the whole.
Boxes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


def read(source: Any) -> dict[str, Any]:
    """Returns tensors by name.

    Args:
        source: a module, whose `state_dict` is used; a mapping; or pairs of names and tensors.

    Raises:
        InvalidArgument: it is something else, or a name is not text or is there twice.
        UnsupportedDtype: a value is not a dense tensor with elements.
    """
    if isinstance(source, torch.nn.Module):
        source = source.state_dict()
    if isinstance(source, Mapping):
        found = dict(source)
    elif isinstance(source, Iterable) and not isinstance(source, torch.Tensor | str | bytes):
        found = {}
        for pair in source:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InvalidArgument(f"expected pairs of a name and a tensor, got a {type(pair).__name__}")
            if pair[0] in found:
                raise InvalidArgument(f"tensor {pair[0]!r} is there twice: give each a name of its own")
            found[pair[0]] = pair[1]
    else:
        raise InvalidArgument(
            f"expected a module, a mapping or pairs of names and tensors, got a {type(source).__name__}"
        )
    if len(found) > TENSORS_MAX:
        raise InvalidArgument(f"{len(found)} tensors are more than {TENSORS_MAX}: publish them under several names")
    for name, tensor in found.items():
        if not isinstance(name, str) or len(name) > NAME_CHARS_MAX:
            raise InvalidArgument(
                f"the tensor name {str(name)[:100]!r} is not text of up to {NAME_CHARS_MAX} characters"
            )
        _check(name, tensor)
    return found


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedDtype(f"{name} is a {type(tensor).__name__}, not a tensor: leave it out, or make it a tensor")
    if hasattr(tensor, "full_tensor"):
        raise UnsupportedDtype(
            f"{name} is a DTensor, whose elements are on several ranks: pass its to_local() with shards=, or its "
            "full_tensor()"
        )
    if tensor.device.type == "meta":
        raise UnsupportedDtype(f"{name} is on device meta, where tensors have no elements: materialize it first")
    if tensor.layout is not torch.strided or getattr(tensor, "is_nested", False):
        raise UnsupportedDtype(f"{name} is not dense ({tensor.layout}): pass its to_dense(), or its components")
    if dtype_name(tensor.dtype) not in element_sizes():
        raise UnsupportedDtype(f"{name} is quantized ({tensor.dtype}): pass its int_repr() and its scales")
    if tensor.dim() > AXES_MAX:
        raise InvalidArgument(f"{name} has {tensor.dim()} axes: use at most {AXES_MAX}")


class Sources:
    """The flat space of a publication, and where its bytes come from.

    Attributes:
        entries: the tensors for the manifest.
        nbytes: size of the flat space.

    Args:
        tensors: tensors by name, from `read`.
        dtype: dtype that floating tensors are converted to while they are copied; None for none.
        boxes: boxes of the tensors that are parts of larger ones.

    Raises:
        InvalidArgument: a box has no tensor.
        ShapeMismatch: a tensor does not fit its box.
    """

    def __init__(self, tensors: dict[str, Any], dtype: Any = None, boxes: Boxes | None = None) -> None:
        boxes = boxes or {}
        unknown = [name for name in boxes if name not in tensors]
        if unknown:
            raise InvalidArgument(f"shards names {unknown[0]!r}, and there is no such tensor: list the names published")
        sizes = element_sizes()
        self.entries: list[Entry] = []
        self._tensors: list[Any] = []
        self._offsets: list[int] = []
        self._names: list[str] = []
        self._has_gaps = False
        seen: dict[Any, int] = {}
        end = 0
        for name, tensor in tensors.items():
            kept = converted(dtype_name(tensor.dtype), dtype)
            shape = tuple(tensor.shape)
            nbytes = math.prod(shape) * sizes[kept]
            key = (
                tensor.data_ptr(),
                shape,
                tensor.stride(),
                tensor.dtype,
                tensor.device,
                tensor.is_neg(),
                tensor.is_conj(),
            )
            offset = seen.get(key) if nbytes else 0
            if offset is None:
                offset = seen[key] = end
                self._has_gaps |= bool(nbytes % ALIGNMENT)
                end = aligned(end + nbytes)
                self._tensors.append(copyable(tensor))
                self._offsets.append(offset)
                self._names.append(kept)
            begin, full = _box(name, shape, boxes[name]) if name in boxes else (None, shape)
            self.entries.append(Entry(name, kept, shape, offset, nbytes, begin, full))
        self.nbytes = end
        self._devices = {tensor.device for tensor in self._tensors} - {torch.device("cpu")}
        self._pinned: Any = None
        # Elements of the one tensor, or two, that continue in the next range, if they are not contiguous.
        self._rows: dict[int, Any] = {}

    def copy(self, memory: Any, first: int) -> None:
        """Copies the range of the flat space that starts at a byte into memory of its length, which is not empty."""
        out = Typed(memory)
        if not self._devices:
            self._copy(out, first)
            return
        # The copies from a device go to pinned memory, at the speed of the bus.
        nbytes = out.data.numel()
        if self._pinned is None or self._pinned.numel() < nbytes:
            self._pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        pinned = self._pinned[:nbytes]
        self._copy(Typed(pinned), first)
        for device in self._devices:
            synchronize(device)
        copy_all([out.data], [pinned])

    def _copy(self, out: Typed, first: int) -> None:
        last = first + out.data.numel()
        outs, values = [], []
        if self._has_gaps:
            # Equal tensors are equal bytes, whatever the memory held before.
            out.data.zero_()
        for index in range(max(0, bisect_right(self._offsets, first) - 1), len(self._offsets)):
            offset = self._offsets[index]
            if offset >= last:
                break
            tensor, dtype = self._tensors[index], carrier(self._names[index])
            item = element_sizes()[self._names[index]]
            shape = tuple(tensor.shape)
            end = offset + tensor.numel() * item
            if offset >= first and end <= last:
                outs.append(out.view(dtype, item, shape, strides(shape), offset - first))
                values.append(tensor)
            elif end > first:
                begin, stop = max(offset, first), min(end, last)
                elements = self._elements(index)[(begin - offset) // item : (stop - offset) // item]
                outs.append(out.view(dtype, item, (elements.numel(),), (1,), begin - first))
                values.append(elements)
                if end <= last:
                    self._rows.pop(index, None)
        copy_all(outs, values)

    def _elements(self, index: int) -> Any:
        tensor = self._tensors[index]
        if tensor.is_contiguous():
            return tensor.reshape(-1)
        if index not in self._rows:
            self._rows[index] = tensor.reshape(-1)
        return self._rows[index]


def _box(name: str, shape: tuple[int, ...], box: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the index of the first element and the shape of the whole tensor."""
    try:
        places, full = box
        full = tuple(int(length) for length in full)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the shard of {name} is {box!r}: pass its slices and the shape of the whole tensor"
        ) from error
    return begins(name, places, full, shape), full


def begins(name: str, places: Any, full: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the index of the first element of a box whose shape must be as given."""
    box = boxed(name, places, full)
    if tuple(stop - start for start, stop in box) != shape:
        raise ShapeMismatch(
            f"{name} has the shape {list(shape)}, and its slices of {list(full)} have another: pass both"
        )
    return tuple(start for start, _ in box)


def boxed(name: str, places: Any, full: tuple[int, ...]) -> list[tuple[int, int]]:
    """Returns the first and the last index, exclusive, on each axis.

    Args:
        name: name of the tensor, for the error.
        places: a slice of axis 0, or a tuple of slices; None and `...` mean the whole tensor.
        full: shape of the whole tensor.

    Raises:
        InvalidArgument: the slices have a step, or there are more than axes.
    """
    if places is None or places is Ellipsis:
        places = ()
    given = places if isinstance(places, tuple) else (places,)
    if len(given) > len(full) or not all(isinstance(each, slice) for each in given):
        raise InvalidArgument(f"the slices of {name} are {places!r}: pass up to {len(full)} slices, one for each axis")
    box = []
    for each, length in zip((*given, *([slice(None)] * (len(full) - len(given)))), full, strict=True):
        start, stop, step = each.indices(length)
        if step != 1:
            raise InvalidArgument(f"the slices of {name} have a step of {step}: use slices without a step")
        box.append((start, max(start, stop)))
    return box
