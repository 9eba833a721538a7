"""Boxes: the first and the last index, exclusive, on each axis of a tensor, as slices without steps select them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite import InvalidArgument, ShapeMismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

Box = list[tuple[int, int]]


def boxed(name: str, places: Any, full: Sequence[int]) -> Box:
    """Returns the box of slices.

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


def part_of(name: str, places: Any, full: Sequence[int], shape: Sequence[int]) -> Box:
    """Returns the box of slices, which a tensor of a shape is.

    Raises:
        InvalidArgument: as `boxed`.
        ShapeMismatch: the box has another shape.
    """
    box = boxed(name, places, full)
    if tuple(stop - start for start, stop in box) != tuple(shape):
        raise ShapeMismatch(
            f"{name} has the shape {list(shape)}, and its slices of {list(full)} have another: pass both"
        )
    return box


def common(one: Box, other: Box) -> Box:
    """Returns what two boxes have in common. On an axis without a common index, the end is not behind the start."""
    return [(max(a, b), min(c, d)) for (a, c), (b, d) in zip(one, other, strict=True)]


def slices(part: Box, whole: Box) -> tuple[slice, ...]:
    """Returns the place of a box in one that contains it."""
    return tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(part, whole, strict=True))
