"""PyTorch tensors in host memory, for PyTorch 1.13 or later. They do not need NumPy.

Dense tensors of `DTYPES` are stored as their elements, which a reduce can fold. Others (sparse, quantized, subclasses)
are pickled. Inside a pickle, `reduce_tensor` keeps the elements of dense tensors out of band.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
import warnings
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument, UnsupportedDtype
from hoplite.values.kinds import TORCH, Encoded, check_dtype, item_bytes, loaded, require
from hoplite.values.parts import Private, unlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


def encode_tensor(value: Any) -> Encoded | None:  # noqa: ANN401 - no import here
    """Encodes a tensor without its gradient; returns None if it needs a pickle.

    Raises:
        UnsupportedDtype: the tensor is on another device.
    """
    _check_device(value)
    kind = str(value.dtype).removeprefix("torch.")
    if item_bytes(kind) is None or not _dense(value):
        return None
    data = memory(_resolved(value))
    return Encoded(kind, tuple(value.shape), TORCH, memoryview(data).nbytes, (data,))


def decode_tensor(data: memoryview, kind: str, shape: tuple[int, ...]) -> Any:  # noqa: ANN401
    """Decodes a tensor from read-only bytes.

    The tensor is a copy: PyTorch has no read-only tensors, and a write into shared memory kills the process.

    Raises:
        UnsupportedDtype: torch is missing, or lacks the dtype.
    """
    torch = require("torch", "the object is a tensor of PyTorch: get")
    dtype = getattr(torch, kind, None)
    if dtype is None:
        raise UnsupportedDtype(
            f"the object is a tensor of {kind}, which torch {torch.__version__} lacks: run pip install -U torch"
        )
    return _cloned(_over(data, dtype, shape))


def memory(tensor: Any) -> Buffer:  # noqa: ANN401 - no import here
    """Returns a writable flat buffer of bytes over the memory of a contiguous tensor, which it keeps alive."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return bytearray()  # an empty tensor has no address
    array: Any = (ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr())
    array.tensor = tensor
    return array  # type: ignore[no-any-return]


def writable_tensor(out: Any) -> tuple[Buffer, str, tuple[int, ...]]:  # noqa: ANN401 - no import here
    """Returns the memory, dtype and shape of a tensor into which to copy. Autograd does not see the copy.

    Raises:
        InvalidArgument: the tensor is not contiguous.
        UnsupportedDtype: it is on another device, or its dtype is not in `DTYPES`.
    """
    _check_device(out)
    kind = check_dtype(out.dtype)
    if not _dense(out) or not out.is_contiguous() or out.is_neg():
        raise InvalidArgument("out is a tensor that is not contiguous; try out.contiguous()")
    return memory(out.detach()), kind, tuple(out.shape)


def reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Returns the pickle reducers of tensors by type. A Parameter is pickled as a class with a tensor."""
    return dict.fromkeys(loaded("torch", "Tensor"), reduce_tensor)


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:  # noqa: ANN401 - no import here
    """Reduces a tensor for pickle, with its elements out of band. PyTorch's reducer copies them several times."""
    plain = tensor.device.type == "cpu" and _dense(tensor) and not tensor.__dict__
    if not plain or tensor._backward_hooks:
        return tensor.__reduce_ex__(5)  # type: ignore[no-any-return]
    data = PickleBuffer(memory(_resolved(tensor)))
    return restore_tensor, (data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def restore_tensor(buffer: Buffer, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:  # noqa: ANN401
    """Restores a tensor. Stored objects refer to this function by name: do not change its name or arguments."""
    data = unlock(buffer)
    tensor = _over(data, dtype, shape)
    if not isinstance(data, Private):
        tensor = _cloned(tensor)
    return tensor.requires_grad_(requires_grad)


def _check_device(tensor: Any) -> None:  # noqa: ANN401 - no import here
    device = tensor.device
    if device.type == "meta":
        raise UnsupportedDtype("can't use a tensor on device meta: it has no elements")
    if device.type != "cpu":
        raise UnsupportedDtype(f"can't use a tensor on device {device}: objects are in host memory; try value.cpu()")


def _dense(tensor: Any) -> bool:  # noqa: ANN401 - no import here
    torch = sys.modules["torch"]
    exact = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return exact and tensor.layout is torch.strided and not tensor.is_quantized


def _resolved(tensor: Any) -> Any:  # noqa: ANN401 - no import here
    """Returns a contiguous tensor with lazy conjugation and negation applied, a copy only if necessary."""
    resolved = tensor.detach().resolve_conj().resolve_neg()
    return resolved if resolved.is_contiguous() else _cloned(resolved)


def _cloned(tensor: Any) -> Any:  # noqa: ANN401 - no import here
    """Returns a contiguous copy. Elements of one byte are copied as uint8, because PyTorch can't copy int4."""
    torch = sys.modules["torch"]
    if tensor.element_size() != 1:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.view(torch.uint8).clone(memory_format=torch.contiguous_format).view(tensor.dtype)


def _over(data: Buffer, dtype: Any, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - no import here
    torch = require("torch", "a tensor")
    if math.prod(shape) == 0:
        # frombuffer refuses an empty buffer.
        return torch.empty(shape, dtype=dtype, device="cpu")
    _hush()
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


@functools.cache
def _hush() -> None:
    """Triggers and suppresses PyTorch's warning about read-only memory, which it issues once in a process."""
    torch = require("torch", "a tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
