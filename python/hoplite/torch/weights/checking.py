"""Checks of the tensors that callers pass, and the tensors that a subclass consists of. Does not know clients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from hoplite import InvalidArgument, UnsupportedDtype
from hoplite.torch.weights.manifest import AXES_MAX, NAME_CHARS_MAX
from hoplite.torch.weights.memory import dtype_name, element_sizes
from hoplite.torch.weights.sharding import local

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = (torch.Tensor, torch.nn.Parameter)

# What a class has that does not intercept calls. Some are missing in old releases of torch.
_NO_FUNCTION = torch._C._disabled_torch_function_impl
_NO_DISPATCH = getattr(torch._C, "_disabled_torch_dispatch_impl", None)
_WITHOUT_FUNCTION = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction


def components(name: Any, tensor: Any) -> Iterator[tuple[str, Any]]:
    """Yields a tensor that has its elements in memory of its own, or the parts of a subclass that torch can flatten.

    Args:
        name: name of the tensor. A part is "weight.qdata" for the attribute "qdata" of "weight".
        tensor: the value that the caller passes.

    Raises:
        InvalidArgument: the name is not valid.
        UnsupportedDtype: the value is not a dense tensor with elements in memory.
    """
    if not isinstance(name, str) or len(name) > NAME_CHARS_MAX:
        raise InvalidArgument(f"the tensor name {str(name)[:100]!r} is not text of up to {NAME_CHARS_MAX} characters")
    kind = type(tensor)
    if kind not in _PLAIN:
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedDtype(f"{name} is a {kind.__name__}, not a tensor: leave it out, or make it a tensor")
        if hasattr(kind, "trigger_wait"):
            # The result of a collective call that may still be in flight.
            tensor = tensor.trigger_wait()
        if _is_flattened(name, tensor):
            attributes, _ = tensor.__tensor_flatten__()
            for attribute in attributes:
                yield from components(f"{name}.{attribute}", getattr(tensor, attribute))
            return
        if kind.__torch_function__ is not _NO_FUNCTION:
            with _WITHOUT_FUNCTION():
                tensor = tensor.as_subclass(torch.Tensor)
    _check(name, tensor, kind)
    yield name, tensor


def single(name: str, tensor: Any) -> Any:
    """Returns a tensor that has its elements in memory of its own, as a plain tensor.

    Raises:
        UnsupportedDtype: it is not dense, has no elements in memory, or consists of several tensors.
    """
    found = dict(components(name, tensor))
    if list(found) != [name]:
        raise UnsupportedDtype(f"{name} is a {type(tensor).__name__} of {', '.join(found)}: pass these tensors instead")
    return found[name]


def parts_in_memory(tensor: Any) -> Iterator[Any]:
    """Yields the parts of a tensor that have their elements in memory, and nothing for other tensors."""
    with contextlib.suppress(InvalidArgument, UnsupportedDtype):
        for _, part in components("", local(tensor)):
            yield part


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor consists of others, which torch can list."""
    kind = type(tensor)
    return kind not in _PLAIN and hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def _is_flattened(name: str, tensor: Any) -> bool:
    """Whether the parts of a subclass are published in its place.

    Raises:
        UnsupportedDtype: only the subclass knows its elements.
    """
    kind = type(tensor)
    if hasattr(kind, "full_tensor"):
        raise UnsupportedDtype(
            f"{name} is a DTensor, whose elements are on several ranks: pass it in a module or a mapping on all ranks, "
            "without shards=; or its full_tensor()"
        )
    if is_lazy(tensor):
        raise UnsupportedDtype(f"{name} is a {kind.__name__} without a shape: run its module once first")
    with _WITHOUT_FUNCTION():
        if tensor.is_nested:
            return False
    if is_wrapper(tensor):
        return True
    if getattr(kind, "__torch_dispatch__", _NO_DISPATCH) is not _NO_DISPATCH:
        raise UnsupportedDtype(
            f"{name} is a {kind.__name__}, a subclass without __tensor_flatten__, whose elements are not in its own "
            "memory: pass the plain tensors that it consists of"
        )
    return False


def _check(name: str, tensor: Any, kind: type) -> None:
    if tensor.device.type == "meta":
        raise UnsupportedDtype(f"{name} is on device meta, where tensors have no elements: materialize it first")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise UnsupportedDtype(f"{name} is not dense ({tensor.layout}): pass its to_dense(), or its components")
    if dtype_name(tensor.dtype) not in element_sizes():
        raise UnsupportedDtype(f"{name} is quantized ({tensor.dtype}): pass its int_repr() and its scales")
    if tensor.dim() > AXES_MAX:
        raise InvalidArgument(f"{name} has {tensor.dim()} axes: use at most {AXES_MAX}")
    if tensor.numel():
        _check_memory(name, tensor, kind)


def _check_memory(name: str, tensor: Any, kind: type) -> None:
    """Checks that all elements are in memory: a copy from address 0 would end the process."""
    count = tensor.numel()
    if not tensor.is_contiguous():
        count = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    needed = (tensor.storage_offset() + count) * tensor.element_size()
    try:
        address, nbytes = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    except RuntimeError as error:
        raise UnsupportedDtype(
            f"{name} is a {kind.__name__} without a storage ({str(error)[:100]}): pass a plain tensor, outside of "
            "transformations such as vmap and grad"
        ) from error
    if not address or nbytes < needed:
        has = f"one of {nbytes} bytes" if address else "one without memory"
        raise UnsupportedDtype(
            f"{name} is a {kind.__name__} that needs a storage of {needed} bytes, and has {has}: gather it first, "
            "or clone it while it has its elements"
        )
