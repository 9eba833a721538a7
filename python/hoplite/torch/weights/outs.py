"""The tensors that a fetch fills: those of the caller, checked against the publication, or new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hoplite import InvalidArgument, ShapeMismatch, StoreFull
from hoplite.torch.weights.boxes import boxed
from hoplite.torch.weights.memory import converted, dtype_name
from hoplite.torch.weights.modes import copying
from hoplite.torch.weights.placing import Placement
from hoplite.torch.weights.sharing import first_shared, repeats
from hoplite.torch.weights.wrappers import hint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hoplite.torch.weights.boxes import Box
    from hoplite.torch.weights.manifest import Entry, Manifest
    from hoplite.torch.weights.names import Version


def placed(
    version: Version,
    manifest: Manifest,
    outs: dict[str, Any] | None,
    layout: Mapping[str, Any] | None,
    dtype: Any,
    *,
    fulls: Mapping[str, tuple[int, ...]],
    stages: bool,
    touch: Callable[[], None],
) -> Placement:
    """Returns where the bytes of a version go.

    Args:
        version: the version.
        manifest: its manifest.
        outs: tensors of the caller; None allocates them.
        layout: slices by name; None for all tensors.
        dtype: dtype in place of floating dtypes.
        fulls: shape of each whole tensor, where `outs` has a part.
        stages: whether the tensors stay as they are until `Placement.switch`.
        touch: called before the first copy.

    Raises:
        InvalidArgument: the names differ; or two tensors share memory that the publication has apart.
        ShapeMismatch: a shape or dtype differs.
        StoreFull: there is no memory for new tensors.
    """
    entries: dict[str, Entry] = {}
    for entry in manifest.entries:
        entries.setdefault(entry.name, entry)
    wanted = list(entries) if layout is None else list(layout)
    _check_names(f"layout has no place for {version.name}", wanted, entries, missing=False)
    for name, full in fulls.items():
        if name in entries and entries[name].full != full:
            raise ShapeMismatch(
                f"{name} is {list(entries[name].full)} in {version.name}, but its DTensor in into is a part of "
                f"{list(full)}: pass tensors like those published"
            )
    boxes: dict[str, Box | None] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name in wanted:
        full = entries[name].full
        box = None if layout is None else boxed(name, layout[name], full)
        boxes[name] = box
        shapes[name] = full if box is None else tuple(stop - start for start, stop in box)
    kinds = {name: converted(entries[name].dtype, dtype) for name in wanted}
    if outs is None:
        tensors = _allocated(version, manifest, entries, shapes, boxes, kinds)
    else:
        tensors = outs
        _check_names(f"into does not fit {version.name}", outs, wanted, missing=True)
        for name, tensor in outs.items():
            if tensor.shape != shapes[name] or dtype_name(tensor.dtype) != kinds[name]:
                raise ShapeMismatch(
                    f"{name} is {kinds[name]} {list(shapes[name])} in {version.name}, but "
                    f"{dtype_name(tensor.dtype)} {list(tensor.shape)} in into: pass tensors like those published"
                    + ("" if tensor.shape != shapes[name] else ", or dtype= to convert")
                )
        _check_apart(version, manifest, outs, boxes)
    with copying():
        return Placement(manifest, tensors, boxes, stages=stages, touch=touch)


def check_outs(outs: Mapping[str, Any]) -> None:
    """Checks tensors of the caller before it is known what is copied into them.

    Raises:
        InvalidArgument: an element of a tensor is at several indexes.
    """
    for name, tensor in outs.items():
        if repeats(tensor):
            raise InvalidArgument(
                f"{name} has elements that share memory (shape {list(tensor.shape)}, stride {list(tensor.stride())}), "
                "as after expand: pass its clone()"
            )


def _check_apart(
    version: Version, manifest: Manifest, outs: Mapping[str, Any], boxes: Mapping[str, Box | None]
) -> None:
    def is_tied(one: str, other: str) -> bool:
        # All of an entry but its name.
        places = [[entry[1:] for entry in manifest.entries if entry.name == name] for name in (one, other)]
        return places[0] == places[1] and boxes[one] == boxes[other]

    shared = first_shared(outs, is_tied)
    if shared is not None:
        one, other = shared
        raise InvalidArgument(
            f"{one} and {other} share memory in into, but are two tensors in {version.name}: pass memory of its own "
            f"for each; or pass layout= with `...` for all names but {other}, which a mapping in into leaves out too; "
            "or publish them as one (tied) tensor"
        )


def _allocated(
    version: Version,
    manifest: Manifest,
    entries: dict[str, Entry],
    shapes: dict[str, tuple[int, ...]],
    boxes: dict[str, Box | None],
    kinds: dict[str, str],
) -> dict[str, Any]:
    """Allocates tensors; tied ones once."""
    tensors = {}
    tied: dict[Any, Any] = {}
    for name, shape in shapes.items():
        entry = entries[name]
        box = boxes[name]
        key = (entry.offset, entry.dtype, entry.shape, None if box is None else tuple(box))
        found = tied.get(key) if entry.nbytes and entry.begin is None else None
        if found is None:
            try:
                # Normal tensors, also in the mode in which the caller may be.
                with torch.inference_mode(False):
                    found = tied[key] = torch.empty(shape, dtype=getattr(torch, kinds[name]), device="cpu")
            except (RuntimeError, MemoryError) as error:
                raise StoreFull(
                    f"this process has no memory for {name}, {kinds[name]} {list(shape)}, of the {manifest.nbytes} "
                    f"bytes of {version.name}: free memory, or fetch less with layout="
                ) from error
        tensors[name] = found
    return tensors


def _check_names(what: str, given: Iterable[str], known: Iterable[str], *, missing: bool) -> None:
    ours, theirs = dict.fromkeys(given), dict.fromkeys(known)
    unknown = [name for name in ours if name not in theirs]
    absent = [name for name in theirs if name not in ours] if missing else []
    if unknown or absent:
        listed = [f"{len(unknown)} unknown, such as {unknown[0]!r}"] if unknown else []
        listed += [f"{len(absent)} missing, such as {absent[0]!r}"] if absent else []
        raise InvalidArgument(f"{what} ({'; '.join(listed)}{hint(ours, theirs)}): use the names of the publication")
