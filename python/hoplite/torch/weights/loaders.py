"""Loaders of models, such as `load_weights` of vLLM: what one reads of each tensor, and loading from these parts.

A loader takes whole tensors by name and copies what its rank needs: rows, columns, some experts. Here it gets tensors
without memory, under a mode that sees each operation on them. What an operation reads is noted, or taken from the parts
that were fetched. Does not know models or clients.
"""

from __future__ import annotations

import contextlib
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


# Operations that give a tensor another storage.
RESIZE = ("aten::resize_", "aten::resize_as_", "aten::set_")


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

    The loader runs once, with tensors that have shapes and no memory. What it writes into tensors that were there
    before is left out, so the parameters of its model keep their values. A loader that replaces parameters by new ones,
    in place of copying into them, needs a model of its own for this.

    Args:
        load: called with pairs of a name and a whole tensor, such as `load_weights` of a model of vLLM or SGLang. It
            depends on names, shapes and dtypes, not on values, and reads in this thread.
        manifest: the version, as of `fetch(name, layout={}).manifest`.

    Returns:
        For each tensor that it reads, the smallest slices that have all of what it reads.

    Raises:
        InvalidArgument: the loader looks at values, makes tensors on the device of the weights, changes the weights, or
            reads nothing.
    """
    found: dict[str, Box] = {}

    def note(read: Read, view: Any) -> Any:
        box = found.setdefault(read.name, read.box)
        found[read.name] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, read.box, strict=True)]
        return torch.empty_like(view, device=META)

    _run(_Recording(note), load, manifest.shapes, manifest.dtypes)
    if manifest.nbytes and not found:
        raise InvalidArgument(
            f"the loader reads none of {len(manifest.shapes)} tensors, such as {next(iter(manifest.shapes))}, in this "
            "thread: check the names, or fetch without a recorded layout"
        )
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
        InvalidArgument: as `record`.
    """
    shapes = manifest.shapes
    here = {name: boxes.get(name) or [(0, length) for length in shapes[name]] for name in tensors}

    def take(read: Read, view: Any) -> Any:
        box = here.get(read.name)
        if box is None or any(a < c or b > d for (a, b), (c, d) in zip(read.box, box, strict=True)):
            raise HopliteError(
                f"the loader reads {_text(read.box)} of {read.name}, and {'nothing' if box is None else _text(box)} is "
                "here: record the loader again, and fetch with the new layout"
            )
        part = tensors[read.name].detach()
        if read.steps is None:
            part = part.contiguous()
            at = view.storage_offset() - box[0][0] * math.prod(part.shape[1:])
            return part.as_strided(view.shape, view.stride(), part.storage_offset() + at).view(view.dtype)
        steps = part.stride()
        at = sum((start - first) * step for (start, _), (first, _), step in zip(read.box, box, steps, strict=True))
        taken = [steps[axis] * count if count else 0 for axis, count in read.steps]
        return part.as_strided(view.shape, taken, part.storage_offset() + at).view(view.dtype)

    dtypes = {name: str(part.dtype).removeprefix("torch.") for name, part in tensors.items()}
    return _run(_Loading(take), load, shapes, {**manifest.dtypes, **dtypes})


def _run(mode: _Loading, load: Callable[[Any], Any], shapes: Mapping[str, Any], dtypes: Mapping[str, str]) -> Any:
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            # In this mode, some operations arrive undivided.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        pairs = mode.tensors(shapes, dtypes)
        stack.enter_context(mode)
        return load(iter(pairs))


class _Loading(TorchDispatchMode):
    """While it is active, operations on tensors without memory are given their elements.

    Args:
        resolve: returns the elements that an operation reads, given what it reads and the tensor without memory.
    """

    def __init__(self, resolve: Callable[[Read, Any], Any]) -> None:
        super().__init__()
        self._resolve = resolve
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
        written = _written(func, args, kwargs)
        weights = [each for each in written if self._name(each) is not None]
        if weights and torch.Tag.inplace_view in func.tags and func._schema.name not in RESIZE:
            return func(*args, **kwargs)
        if weights:
            raise InvalidArgument(
                f"the loader changes {self._name(weights[0])} in place ({func._schema.name}): let it change a clone()"
            )
        if not written and any(each.alias_info is not None for each in func._schema.arguments):
            # A view.
            return func(*args, **kwargs)
        return self._perform(func, args, kwargs, written)

    def _perform(self, func: Any, args: Any, kwargs: Any, written: list[Any]) -> Any:  # noqa: ARG002 - of a recording
        without = [each for each in _tensors(args, kwargs) if each.device == META]
        self._check(kwargs, without)
        return func(*tree_map(self._given, args), **tree_map(self._given, kwargs)) if without else func(*args, **kwargs)

    def _check(self, kwargs: Any, without: list[Any]) -> None:
        """Checks that each tensor without memory is a weight, or was computed of one."""
        is_made = kwargs.get("device") == META and not without
        if is_made or any(_storage(each) not in self._known for each in without):
            raise InvalidArgument(
                "the loader makes a tensor on the device of the weights, and these have none here: fetch without a "
                "recorded layout, and pass the tensors to it"
            )

    def _name(self, tensor: Any) -> str | None:
        """The name of the weight that a tensor is a view of."""
        return self._known.get(_storage(tensor), (None, None))[0] if tensor.device == META else None

    def _given(self, value: Any) -> Any:
        """Returns what an operation gets in place of a tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        name = self._name(value)
        if name is None:
            return value
        whole = self._known[_storage(value)][1]
        is_same = value.dtype.itemsize == whole.dtype.itemsize and value.is_complex() == whole.is_complex()
        if not is_same or value.is_conj() or value.is_neg():
            raise InvalidArgument(
                f"the loader reads {name}, {whole.dtype}, as {value.dtype}, of another size or conjugated: fetch "
                "without a recorded layout, and pass the tensors to it"
            )
        if not value.numel():
            return torch.empty_like(value, device="cpu")
        return self._resolve(_read(name, value, tuple(whole.shape)), value)


class _Recording(_Loading):
    """While it is active, nothing is written into tensors that were there before."""

    def __init__(self, resolve: Callable[[Read, Any], Any]) -> None:
        super().__init__(resolve)
        # Tensors that the loader made, and those of them that have values of weights, by storage.
        self._made: dict[int, Any] = {}
        self._filled: dict[int, Any] = {}

    def _perform(self, func: Any, args: Any, kwargs: Any, written: list[Any]) -> Any:
        # A model without memory is good enough to record its loader.
        targets = {id(each) for each in written}
        without = [each for each in _tensors(args, kwargs) if each.device == META and id(each) not in targets]
        self._check({} if written else kwargs, without)
        if without or any(_storage(each) in self._filled for each in _tensors(args, kwargs)):
            if func._schema.name in VALUES:
                raise InvalidArgument("the loader looks at values of tensors: fetch without a recorded layout")
            moved = {**kwargs, **({"device": META} if kwargs.get("device") is not None else {})}
            found = func(*tree_map(self._given, args), **tree_map(self._given, moved))
            if not written:
                # Nobody reads the weights through what was computed of them.
                self._known.update({_storage(each): (None, each) for each in _tensors(found, {})})
                return found
            self._filled.update({_storage(each): each for each in written})
        elif all(_storage(each) in self._made for each in written):
            found = func(*args, **kwargs)
            self._made.update({_storage(each): each for each in _tensors(found, {})})
            return found
        return written[0] if func._schema.returns else None

    def _given(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._name(value) is None or not value.numel():
            return torch.empty_like(value, device=META)
        return super()._given(value)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that an operation writes into."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[place] if place < len(args) else kwargs.get(argument.name))
    return _tensors(found, {})


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
