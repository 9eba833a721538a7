"""Tensors of a publisher: which there are, where each goes in the flat space, and copies of any range of that space.

A view is published with its own elements only. Tensors with the same elements (tied parameters) get the same offset.
Does not know clients.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import ItemsView, Iterable, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hoplite import InvalidArgument
from hoplite.torch.weights.boxes import part_of
from hoplite.torch.weights.checking import components, is_wrapper, parts_in_memory, single
from hoplite.torch.weights.manifest import ALIGNMENT, TENSORS_MAX, Entry, aligned
from hoplite.torch.weights.memory import (
    Pinned,
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
from hoplite.torch.weights.sharding import Part, is_sharded, part
from hoplite.torch.weights.wrappers import plain_names, unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    from hoplite.torch.weights.boxes import Box

# Slices of tensor-parallel ranks, by name of the tensor, and the shape of the whole.
Boxes = Mapping[str, tuple[Any, tuple[int, ...]]]

# Last part of the names of what `get_extra_state` of a module returns: any value, which it does not read back.
EXTRA_STATE = "_extra_state"


class Piece(NamedTuple):
    """A tensor to publish, or a part of one.

    Attributes:
        name: name of the tensor.
        tensor: the elements.
        box: their place in the whole tensor.
        full: shape of the whole tensor.
    """

    name: str
    tensor: Any
    box: Box
    full: tuple[int, ...]


class Chunk(NamedTuple):
    """A range of the flat space that becomes one data object.

    Attributes:
        first: its first byte.
        nbytes: its length in bytes.
        fill: copies it into memory of its length. It is valid until the next chunk is taken.
    """

    first: int
    nbytes: int
    fill: Callable[[Any], object]


def is_read_once(source: Any) -> bool:
    """Whether the tensors of a source are there one after the other, so that the next one may reuse the memory."""
    held = (torch.nn.Module, Mapping, list, tuple, ItemsView, torch.Tensor, str, bytes)
    return isinstance(source, Iterable) and not isinstance(source, held)


def read(source: Any, *, fills: bool = False, parts: dict[str, Part] | None = None) -> dict[str, Any]:
    """Returns tensors by name.

    Args:
        source: a module, whose `state_dict` is used; a mapping; or pairs of names and tensors.
        fills: whether the tensors are filled, so that those of a module must be its own.
        parts: gets what this rank has of each DTensor; None refuses them.

    Raises:
        InvalidArgument: it is something else, or a name is not text or is there twice.
        UnsupportedDtype: a value is not a dense tensor with elements.
    """
    if isinstance(source, torch.nn.Module):
        found = dict(pairs(_state(source).items(), parts))
        if fills:
            _check_owned(source, found)
        return found
    return dict(pairs(source.items() if isinstance(source, Mapping) else source, parts))


def pairs(source: Any, parts: dict[str, Part] | None = None) -> Iterator[tuple[str, Any]]:
    """Yields names and tensors, of which each is checked and has memory of its own.

    Args:
        source: pairs of a name and a tensor.
        parts: gets what this rank has of each DTensor; None refuses them.

    Raises:
        InvalidArgument: a name is not text or is there twice, or there are no pairs.
        UnsupportedDtype: a value is not a dense tensor with elements.
    """
    if not isinstance(source, Iterable) or isinstance(source, torch.Tensor | str | bytes):
        raise InvalidArgument(
            f"expected a module, a mapping or pairs of names and tensors, got a {type(source).__name__}"
        )
    seen = set()
    for pair in source:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidArgument(f"expected pairs of a name and a tensor, got a {type(pair).__name__}")
        given, value = pair
        if parts is not None and isinstance(given, str) and is_sharded(value):
            parts[given] = part(given, value)
            # The parts of a subclass would need boxes of their own.
            value = single(given, parts[given].tensor)
        for name, tensor in components(given, value):
            if name in seen:
                raise InvalidArgument(f"tensor {name!r} is there twice: give each a name of its own")
            seen.add(name)
            if len(seen) > TENSORS_MAX:
                raise InvalidArgument(f"there are more than {TENSORS_MAX} tensors: publish them under several names")
            yield name, tensor


def _state(module: Any) -> dict[str, Any]:
    """Returns the tensors of a module, by names without the prefixes of wrappers. Extra state is left out."""
    module = unwrapped(module)
    tensors = [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        full = getattr(tensor, "ds_shape", None)
        if full is not None and tuple(full) != tuple(tensor.shape):
            raise InvalidArgument(
                f"a parameter of {list(full)} has {list(tensor.shape)} here, as ZeRO-3 partitions it: publish inside "
                "of deepspeed.zero.GatheredParameters, on the rank that has the elements"
            )
    # A subclass that is detached may be a copy, which a fetch would fill in place of the module.
    state = module.state_dict(keep_vars=any(is_wrapper(tensor) for tensor in tensors))
    names = plain_names(name for name in state if name.rpartition(".")[2] != EXTRA_STATE)
    return {plain: state[name] for name, plain in names.items()}


def _check_owned(module: Any, found: Mapping[str, Any]) -> None:
    """Checks that tensors of a `state_dict` are the memory of a module. Some modules return copies of themselves.

    Raises:
        InvalidArgument: they are copies.
    """
    owned = {
        part.data_ptr() - part.storage_offset() * part.element_size()
        for tensor in (*module.parameters(), *module.buffers())
        for part in parts_in_memory(tensor)
    }
    others = [
        name
        for name, tensor in found.items()
        if tensor.numel() and tensor.data_ptr() - tensor.storage_offset() * tensor.element_size() not in owned
    ]
    again = dict(pairs(_state(module).items(), {})) if others else {}
    for name in others:
        if name not in again or again[name].data_ptr() != found[name].data_ptr():
            raise InvalidArgument(
                f"state_dict of {type(module).__name__} returns copies, such as {name}, and what is copied into them "
                "is lost: pass its tensors by name, and load them by its load_state_dict"
            )


class Sources:
    """The flat space of a publication, and where its bytes come from.

    Attributes:
        entries: the tensors for the manifest.
        nbytes: size of the flat space.

    Args:
        pieces: the tensors, from `read`, in order.
        runs: numbers of pieces that have objects of their own, in order; without one, all have them together.
        dtype: dtype that floating tensors are converted to while they are copied; None for none.
        pinned: memory for copies from devices; None allocates it.
    """

    # All entries are known before the first chunk.
    is_complete = True

    def __init__(
        self,
        pieces: Sequence[Piece],
        runs: Sequence[int] = (),
        *,
        dtype: Any = None,
        pinned: Pinned | None = None,
    ) -> None:
        sizes = element_sizes()
        self.entries: list[Entry] = []
        self._tensors: list[Any] = []
        self._offsets: list[int] = []
        self._names: list[str] = []
        self._has_gaps = False
        seen: dict[Any, int] = {}
        end = 0
        ends = set(accumulate(runs))
        # Where runs end.
        self._stops: list[int] = []
        for count, (name, tensor, box, full) in enumerate(pieces, 1):
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
            begin = None if shape == full else tuple(start for start, _ in box)
            self.entries.append(Entry(name, kept, shape, offset, nbytes, begin, full))
            if count in ends:
                self._stops.append(end)
        self.nbytes = end
        self._devices = {tensor.device for tensor in self._tensors} - {torch.device("cpu")}
        self._pinned = pinned or Pinned()
        # Elements of the one tensor, or two, that continue in the next range, if they are not contiguous.
        self._rows: dict[int, Any] = {}

    def chunks(self, bucket: int) -> Iterator[Chunk]:
        """Yields the flat space in ranges of up to a size in bytes. None has pieces of two runs."""
        begin = 0
        for end in self._stops or [self.nbytes]:
            size = bucket
            if self._stops and end > begin:
                # A run of little more than a bucket becomes two halves.
                size = aligned(math.ceil((end - begin) / math.ceil((end - begin) / bucket)))
            for first in range(begin, end, size):
                yield Chunk(first, min(size, end - first), partial(self.copy, first=first))
            begin = end

    def copy(self, memory: Any, first: int) -> None:
        """Copies the range of the flat space that starts at a byte into memory of its length, which is not empty."""
        out = Typed(memory)
        if not self._devices:
            self._copy(out, first)
            return
        # The copies from a device go to pinned memory, at the speed of the bus.
        pinned = self._pinned.of(out.data.numel())
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


def whole(tensors: Mapping[str, Any], boxes: Boxes | None) -> list[Piece]:
    """Returns tensors as they are published, unless layouts cut them.

    Args:
        tensors: tensors by name, from `read`.
        boxes: boxes of the tensors that are parts of larger ones.

    Raises:
        InvalidArgument: a box has no tensor, or is not valid.
        ShapeMismatch: a tensor does not fit its box.
    """
    check_boxes(boxes or {}, tensors)
    return [_piece(name, tensor, boxes.get(name) if boxes else None) for name, tensor in tensors.items()]


def _piece(name: str, tensor: Any, given: Any) -> Piece:
    shape = tuple(tensor.shape)
    if given is None:
        return Piece(name, tensor, [(0, length) for length in shape], shape)
    try:
        places, full = given
        full = tuple(int(length) for length in full)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"the shard of {name} is {given!r}: pass its slices and the shape of the whole tensor"
        ) from error
    return Piece(name, tensor, part_of(name, places, full, shape), full)


def check_boxes(boxes: Boxes, names: Container[str]) -> None:
    """Checks that each box has its tensor.

    Raises:
        InvalidArgument: one has no tensor.
    """
    unknown = [name for name in boxes if name not in names]
    if unknown:
        raise InvalidArgument(f"shards names {unknown[0]!r}, and there is no such tensor: list the names published")
