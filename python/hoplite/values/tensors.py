"""PyTorch tensors in host memory, from version 1.13 on; NumPy is not needed for them.

A dense tensor of `DTYPES` is its elements, which a reduce can fold. Others (sparse, quantised, subclasses) are
pickled; `reduce_tensor` keeps the elements of dense ones outside the pickle.
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
    """Takes a tensor apart, without its gradient; None if only a pickle keeps all of it.

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
    """Makes a tensor of read-only bytes.

    PyTorch has no read-only tensors, and a write into shared memory kills the process: so the tensor is a copy.

    Raises:
        UnsupportedDtype: torch is missing, or lacks the dtype.
    """
    torch = require("torch", "the object is a tensor of PyTorch: get")
    dtype = getattr(torch, kind, None)
    if dtype is None:
        raise UnsupportedDtype(
            f"the object is a tensor of {kind}, which torch {torch.__version__} lacks; try pip install -U torch"
        )
    return _over(data, dtype, shape).clone()


def memory(tensor: Any) -> Buffer:  # noqa: ANN401 - no import here
    """A writable flat buffer of bytes over the memory of a contiguous tensor, which it keeps alive."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return bytearray()  # of no address
    array: Any = (ctypes.c_uint8 * nbytes).from_address(tensor.data_ptr())
    array.tensor = tensor
    return array  # type: ignore[no-any-return]


def writable_tensor(out: Any) -> tuple[Buffer, str, tuple[int, ...]]:  # noqa: ANN401 - no import here
    """The memory, dtype and shape of a tensor of the caller's, to copy into; autograd is not told.

    Raises:
        InvalidArgument: its elements do not lie one after the other.
        UnsupportedDtype: it is on another device, or of a dtype outside `DTYPES`.
    """
    _check_device(out)
    kind = check_dtype(out.dtype)
    if not _dense(out) or not out.is_contiguous() or out.is_neg():
        raise InvalidArgument("out is a tensor that is not contiguous; try out.contiguous()")
    return memory(out.detach()), kind, tuple(out.shape)


def reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """How pickle is to take tensors apart, by type; a Parameter is pickled as a class around a tensor."""
    return dict.fromkeys(loaded("torch", "Tensor"), reduce_tensor)


def reduce_tensor(tensor: Any) -> tuple[Any, ...]:  # noqa: ANN401 - no import here
    """Takes a tensor apart for pickle, elements out of band: PyTorch itself copies them several times."""
    plain = tensor.device.type == "cpu" and _dense(tensor) and not tensor.__dict__
    if not plain or tensor._backward_hooks:
        return tensor.__reduce_ex__(5)  # type: ignore[no-any-return]
    data = PickleBuffer(memory(_resolved(tensor)))
    return restore_tensor, (data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def restore_tensor(buffer: Buffer, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:  # noqa: ANN401
    """Puts a tensor together again. Objects in stores name this function: it keeps its name and arguments."""
    data = unlock(buffer)
    tensor = _over(data, dtype, shape)
    if not isinstance(data, Private):
        tensor = tensor.clone()
    return tensor.requires_grad_(requires_grad)


def _check_device(tensor: Any) -> None:  # noqa: ANN401 - no import here
    device = tensor.device
    if device.type == "meta":
        raise UnsupportedDtype("can't use a tensor on device meta: it has no elements")
    if device.type != "cpu":
        raise UnsupportedDtype(
            f"can't use a tensor on device {device}: objects are made in host memory; try value.cpu()"
        )


def _dense(tensor: Any) -> bool:  # noqa: ANN401 - no import here
    torch = sys.modules["torch"]
    exact = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return exact and tensor.layout is torch.strided and not tensor.is_quantized


def _resolved(tensor: Any) -> Any:  # noqa: ANN401 - no import here
    """The tensor's elements as they read, one after the other: a copy only if they do not lie so."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _over(data: Buffer, dtype: Any, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - no import here
    torch = require("torch", "a tensor")
    if math.prod(shape) == 0:
        # frombuffer refuses an empty buffer.
        return torch.empty(shape, dtype=dtype)
    _hush()
    return torch.frombuffer(data, dtype=dtype).reshape(shape)


@functools.cache
def _hush() -> None:
    """Spends PyTorch's warning of read-only memory, which comes once in a process, on one byte."""
    torch = require("torch", "a tensor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
