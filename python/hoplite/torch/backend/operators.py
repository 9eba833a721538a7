"""Operators of reduces: those that the store folds, and how to fold the others with torch. Does not know groups.

An input has the operator in its shape: operator k puts k axes of length 1 before the elements. So ranks that pass
different ones get the error of different shapes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.distributed import ReduceOp

from hoplite.errors import InvalidArgument, UnsupportedDtype
from hoplite.torch.backend.tensors import array

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

_IN_PLACE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "SUM": lambda total, other: total.add_(other),
    "AVG": lambda total, other: total.add_(other),
    "PRODUCT": lambda total, other: total.mul_(other),
    "MIN": lambda total, other: torch.minimum(total, other, out=total),
    "MAX": lambda total, other: torch.maximum(total, other, out=total),
    "BAND": lambda total, other: total.bitwise_and_(other),
    "BOR": lambda total, other: total.bitwise_or_(other),
    "BXOR": lambda total, other: total.bitwise_xor_(other),
}

_OF_STORE = {"SUM": "sum", "AVG": "mean", "PRODUCT": "prod", "MIN": "min", "MAX": "max"}
_OF_STORE_FOR_BOOL = {"SUM": "any", "MAX": "any", "BOR": "any", "PRODUCT": "all", "MIN": "all", "BAND": "all"}

# torch has these dtypes but cannot compute with them; the store can.
_STORE_ONLY = (torch.uint16, torch.uint32, torch.uint64)

_ORDERED = ("MIN", "MAX")
_BITWISE = ("BAND", "BOR", "BXOR")


class Operator(NamedTuple):
    """An operator for tensors of one dtype.

    Attributes:
        name: name of torch's `ReduceOp`, such as "SUM".
        ranks: number of inputs, for AVG.
    """

    name: str
    ranks: int


def operator(op: Any, dtype: torch.dtype, ranks: int) -> Operator:
    """Checks an operator.

    Raises:
        InvalidArgument: the backend does not have it.
        UnsupportedDtype: it is not defined for tensors of this dtype.
    """
    found = next((name for name in _IN_PLACE if op == getattr(ReduceOp, name)), None)
    if found is None:
        raise InvalidArgument(f"the backend hoplite does not support {op}: use one of ReduceOp.{', '.join(_IN_PLACE)}")
    inexact = dtype.is_floating_point or dtype.is_complex
    is_bool = dtype is torch.bool
    if (found in _BITWISE and inexact) or (found in _ORDERED and dtype.is_complex) or (found == "AVG" and is_bool):
        raise UnsupportedDtype(f"ReduceOp.{found} is not defined for tensors of {dtype}: use another operator or dtype")
    if dtype.itemsize == 1 and dtype.is_floating_point:
        raise UnsupportedDtype(
            f"a reduce of tensors of {dtype} would round away most inputs: convert them to bfloat16 or float32 first"
        )
    return Operator(found, ranks)


def shape(of: Operator, elements: int) -> tuple[int, ...]:
    """Returns the shape of an input of so many elements."""
    return (*[1] * list(_IN_PLACE).index(of.name), elements)


def named(text: str) -> str:
    """Returns a text in which shapes of inputs are replaced by the number of elements and the operator."""
    names = list(_IN_PLACE)
    return re.sub(r"\[((?:1, )*)(\d+)\]", lambda found: f"[{found[2]}] for {names[found[1].count('1')]}", text)


def store_op(of: Operator, dtype: torch.dtype) -> str | None:
    """Returns the operation with which the store folds such tensors; None if it can't."""
    if _is_mean_of_integers(of, dtype):
        return "sum"
    return (_OF_STORE_FOR_BOOL if dtype is torch.bool else _OF_STORE).get(of.name)


def is_foldable_here(dtype: torch.dtype) -> bool:
    """Whether torch can fold tensors of this dtype."""
    return dtype not in _STORE_ONLY


def fold(of: Operator, total: Tensor, others: Sequence[Tensor], *, last: bool = True) -> None:
    """Folds tensors into `total`, in their order.

    Args:
        of: the operator.
        total: the first input, and then the result.
        others: the other inputs.
        last: whether these are the last inputs: a mean is divided then.
    """
    for other in others:
        _IN_PLACE[of.name](total, other)
    if last:
        finish(of, total)
        if of.name == "AVG" and not _is_mean_of_integers(of, total.dtype):
            total.div_(of.ranks)


def finish(of: Operator, total: Tensor) -> None:
    """Completes what the store has folded: it has no means of integers, so their sums are divided here.

    As in NCCL, these sums wrap around, and quotients are rounded toward zero.
    """
    if not _is_mean_of_integers(of, total.dtype):
        return
    if total.dtype in _STORE_ONLY:
        elements = array(total)
        np.floor_divide(elements, of.ranks, out=elements)
    else:
        total.div_(of.ranks, rounding_mode="trunc")


def _is_mean_of_integers(of: Operator, dtype: torch.dtype) -> bool:
    return of.name == "AVG" and not (dtype.is_floating_point or dtype.is_complex)
