"""Which tensors share memory, to the element. Does not know manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Bound of the search for a common element. Views that people write need a few steps; see `numpy.shares_memory`.
STEPS_MAX: Any = 1 << 16

# Device of a tensor, its first byte and its last, exclusive, and its name.
Span = tuple[int, int, int, str]


def repeats(tensor: Any) -> bool:
    """Whether a tensor has one element at several indexes, as after `expand`; or may have, with unusual strides."""
    if tensor.is_contiguous():
        return False
    extent = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1:
            if stride <= extent:
                return True
            extent += stride * (length - 1)
    return False


def first_shared(tensors: Mapping[str, Any], is_tied: Callable[[str, str], bool]) -> tuple[str, str] | None:
    """Returns the names of two tensors that have an element in common; None if there are none.

    Args:
        tensors: the tensors, without repeated elements.
        is_tied: whether two tensors, by name, may be the same view of the same memory.
    """
    around: list[Span] = []
    for span in spans(tensors):
        device, first, _, name = span
        if around:
            around = [each for each in around if each[2] > first and each[0] == device]
            for *_, other in around:
                one, two = tensors[other], tensors[name]
                if not (_is_same(one, two) and is_tied(other, name)) and _is_shared(one, two):
                    return other, name
        around.append(span)
    return None


def spans(tensors: Mapping[str, Any]) -> list[Span]:
    """Returns where tensors with elements are, in order."""
    return sorted(span for span in map(_span, tensors.items()) if span[1] < span[2])


def do_overlap(one: list[Span], other: list[Span]) -> bool:
    """Whether a tensor of one list is around or in the memory of a tensor of the other."""
    ends = [(-2, 0), (-2, 0)]
    for device, first, last, which in sorted(
        (*span[:3], which) for which, each in enumerate((one, other)) for span in each
    ):
        if (device, first) < ends[1 - which]:
            return True
        ends[which] = max(ends[which], (device, last))
    return False


def _span(named: tuple[str, Any]) -> Span:
    name, tensor = named
    first, nbytes = tensor.data_ptr(), tensor.nbytes
    if nbytes and not tensor.is_contiguous():
        last = sum(stride * (length - 1) for stride, length in zip(tensor.stride(), tensor.shape, strict=True))
        nbytes = (last + 1) * tensor.element_size()
    return tensor.get_device(), first, first + nbytes, name


def _is_same(one: Any, other: Any) -> bool:
    return bool(one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.shape == other.shape)


def _is_shared(one: Any, other: Any) -> bool:
    try:
        return bool(np.shares_memory(_Elements(one).array(), _Elements(other).array(), max_work=STEPS_MAX))
    except RuntimeError:
        # Too many steps.
        return True


class _Elements:
    """The places of the elements of a tensor, on any device, as an array that nobody reads."""

    def __init__(self, tensor: Any) -> None:
        item = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * item for stride in tensor.stride()),
            "typestr": f"|V{item}",
        }

    def array(self) -> Any:
        return np.asarray(self)
