"""Loaders of models, such as `load_weights` of vLLM: what one reads of each tensor, and loading from these parts.

A loader takes whole tensors by name and copies what its rank needs: rows, columns, some experts. Here it gets tensors
without memory, under a mode that sees each operation on them. What an operation reads is noted, or taken from the parts
that were fetched. Does not know models or clients.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from hoplite import HopliteError, InvalidArgument
from hoplite.torch.weights.memory import strides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hoplite.torch.weights.boxes import Box
    from hoplite.torch.weights.manifest import Manifest

META = torch.device("meta")

# Operations whose result depends on values.
VALUES = ("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::is_nonzero")


class Read(NamedTuple):
    """What an operation reads of a tensor.

    Attributes:
        name: name of the tensor.
        box: a box that has all of it.
        steps: for each axis of what is read, the axis of the tensor that it follows, and by how many indexes. None if
            the box is whole rows, and what is read goes on from one row to the next.
    """

    name: str
    box: Box
    steps: list[tuple[int, int]] | None


def record(load: Callable[[Any], Any], manifest: Manifest) -> dict[str, tuple[slice, ...]]:
    """Returns what a loader reads of a version, as `fetch` takes it in `layout`. Nothing is brought or loaded.

    The loader runs once, with tensors that have shapes and no memory, and what it copies from them is left out. So the
    parameters of its model keep their values.

    Args:
        load: called with pairs of a name and a whole tensor, such as `load_weights` of a model of vLLM or SGLang. It
            depends on names, shapes and dtypes, and not on values.
        manifest: the version, as of `fetch(name, layout={}).manifest`.

    Returns:
        For each tensor that it reads, the smallest slices that have all of what it reads.

    Raises:
        InvalidArgument: the loader looks at values, or makes tensors on the device of the weights.
    """
    found: dict[str, Box] = {}

    def note(read: Read, view: Any) -> Any:
        box = found.setdefault(read.name, read.box)
        found[read.name] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, read.box, strict=True)]
        return torch.empty_like(view, device=META)

    loading = _Loading(note, is_dry=True)
    pairs = loading.tensors(manifest.shapes, manifest.dtypes)
    with loading:
        load(iter(pairs))
    return {name: tuple(slice(start, stop) for start, stop in box) for name, box in found.items()}


def load_parts(
    load: Callable[[Any], Any],
    manifest: Manifest,
    tensors: Mapping[str, Any],
    boxes: Mapping[str, Box | None],
) -> Any:
    """Runs a loader with whole tensors, of which parts are here.

    Args:
        load: called with pairs of a name and a whole tensor.
        manifest: the version.
        tensors: the parts by name.
        boxes: what they are of the whole tensors; None for all.

    Returns:
        What the loader returns.

    Raises:
        HopliteError: it reads elements that are not here.
    """
    shapes, dtypes = manifest.shapes, {name: str(part.dtype).removeprefix("torch.") for name, part in tensors.items()}
    here = {name: boxes[name] or [(0, length) for length in shapes[name]] for name in tensors}

    def take(read: Read, view: Any) -> Any:
        box = here[read.name]
        if any(a < c or b > d for (a, b), (c, d) in zip(read.box, box, strict=True)):
            raise HopliteError(
                f"the loader reads {_text(read.box)} of {read.name}, and {_text(box)} is here: record the loader "
                "again, and fetch with the new layout"
            )
        part = tensors[read.name].detach()
        if read.steps is None:
            part = part.contiguous()
            row = math.prod(part.shape[1:])
            return part.as_strided(
                view.shape, view.stride(), part.storage_offset() + view.storage_offset() - box[0][0] * row
            )
        steps = part.stride()
        at = sum((start - first) * step for (start, _), (first, _), step in zip(read.box, box, steps, strict=True))
        taken = [steps[axis] * count if count else 0 for axis, count in read.steps]
        return part.as_strided(view.shape, taken, part.storage_offset() + at)

    loading = _Loading(take)
    pairs = loading.tensors({name: shapes[name] for name in tensors}, dtypes)
    with loading:
        return load(iter(pairs))


class _Loading(TorchDispatchMode):
    """While it is active, operations on tensors without memory are given their elements.

    Args:
        resolve: returns the elements that an operation reads, given what it reads and the tensor without memory.
        is_dry: whether other tensors are left as they are.
    """

    def __init__(self, resolve: Callable[[Read, Any], Any], *, is_dry: bool = False) -> None:
        super().__init__()
        self._resolve = resolve
        self._is_dry = is_dry
        # Names by storage, which views have in common, and None for what was computed. The tensors keep it.
        self._known: dict[int, tuple[str | None, Any]] = {}

    def tensors(self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]) -> list[tuple[str, Any]]:
        """Returns pairs of a name and a tensor without memory."""
        found = [
            (name, torch.empty(shape, dtype=getattr(torch, dtypes[name]), device=META))
            for name, shape in shapes.items()
        ]
        self._known = {_storage(tensor): (name, tensor) for name, tensor in found}
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.arguments)
        if is_view:
            return func(*args, **kwargs)
        without = [each for each in _tensors(args, kwargs) if each.device == META]
        # A model without memory is good enough to record its loader.
        strange = [each for each in without if _storage(each) not in self._known]
        if self._is_dry and func._schema.is_mutable and strange and strange[0] is args[0]:
            strange = strange[1:]
        if strange or (kwargs.get("device") == META and not without):
            raise InvalidArgument(
                "the loader makes a tensor on the device of the weights, and these have none here: fetch without a "
                "recorded layout, and pass the tensors to it"
            )
        if not without:
            return func(*args, **kwargs)
        if self._is_dry and func._schema.name in VALUES:
            raise InvalidArgument("the loader looks at values of tensors: fetch without a recorded layout")
        given = args
        args, kwargs = tree_map(self._given, args), tree_map(self._given, kwargs)
        if not self._is_dry:
            return func(*args, **kwargs)
        found = func(*args, **{**kwargs, **({"device": META} if kwargs.get("device") is not None else {})})
        first = func._schema.arguments[0]
        if first.alias_info is not None and first.alias_info.is_write:
            # What it writes into is as before.
            return given[0]
        # Nobody reads the weights through what was computed of them.
        self._known.update({_storage(each): (None, each) for each in _tensors(found, {})})
        return found

    def _given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        name, whole = self._known.get(_storage(value), (None, value)) if value.device == META else (None, value)
        if name is not None and value.numel():
            return self._resolve(_read(name, value, tuple(whole.shape)), value)
        if self._is_dry:
            return torch.empty_like(value, device=META)
        return value if name is None else torch.empty_like(value, device="cpu")


def _tensors(args: Any, kwargs: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(lambda each: found.append(each) if isinstance(each, torch.Tensor) else None, (args, kwargs))
    return found


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _read(name: str, view: Any, full: tuple[int, ...]) -> Read:
    """Returns what a view of a whole, contiguous tensor has of it."""
    whole, at = strides(full), view.storage_offset()
    first = [at // step % length for step, length in zip(whole, full, strict=True)]
    last, steps = list(first), []
    for count, step in zip(view.shape, view.stride(), strict=True):
        # The outermost axis whose indexes it can follow.
        axes = [axis for axis, of in enumerate(whole) if full[axis] > 1 and of <= step and step % of == 0]
        if count > 1 and axes:
            steps.append((axes[0], step // whole[axes[0]]))
            last[axes[0]] += (count - 1) * steps[-1][1]
        else:
            steps.append((0, 0))
    if all(index < length for index, length in zip(last, full, strict=True)):
        return Read(name, [(low, high + 1) for low, high in zip(first, last, strict=True)], steps)
    # It goes on from one row to the next.
    end = at + sum((count - 1) * step for count, step in zip(view.shape, view.stride(), strict=True))
    rows = (at // whole[0], end // whole[0] + 1)
    return Read(name, [rows, *((0, length) for length in full[1:])], None)


def _text(box: Box) -> str:
    return "[" + ", ".join(f"{start}:{stop}" for start, stop in box) + "]"
