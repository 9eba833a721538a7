"""Tensors over memory of objects, and dtypes. Does not know manifests or clients."""

from __future__ import annotations

import ctypes
import functools
import re
import warnings
from typing import Any

import torch

from hoplite import UnsupportedDtype

# Tensors of these are converted if `dtype` is given. Others, such as float8 with scales of its own, keep their dtype.
CONVERTED = frozenset([torch.float16, torch.bfloat16, torch.float32, torch.float64])

# From this size on, torch copies a tensor in several threads.
THREADED_ELEMENTS = 32768

# Dtypes without a copy kernel, such as int4: their bytes are copied.
_SHELLS = re.compile(r"u?int[1-7]")


@functools.cache
def element_sizes() -> dict[str, int]:
    """Returns the size in bytes of an element of each dtype of this torch that can be published, by name."""
    with warnings.catch_warnings():
        # Some dtypes are experimental.
        warnings.simplefilter("ignore")
        return {
            name: torch.empty(0, dtype=dtype).element_size()
            for name, dtype in vars(torch).items()
            if isinstance(dtype, torch.dtype) and name == dtype_name(dtype) and not name.startswith("q")
        }


@functools.cache
def dtype_name(dtype: Any) -> str:
    """Returns the name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def carrier(name: str) -> Any:
    """Returns the dtype as which elements of a dtype, given by name, are copied: itself if torch can copy it."""
    return torch.uint8 if _SHELLS.fullmatch(name) else getattr(torch, name)


def copyable(tensor: Any) -> Any:
    """Returns a detached view of a tensor, as a dtype that torch can copy."""
    found = tensor.detach()
    of = carrier(dtype_name(found.dtype))
    return found if of is found.dtype else found.view(of)


def check_dtype(dtype: Any) -> Any:
    """Checks the `dtype` that floating tensors are converted to; None means no conversion.

    Raises:
        UnsupportedDtype: it is not a floating dtype of torch.
    """
    found = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
    if found is not None and (not isinstance(found, torch.dtype) or not found.is_floating_point):
        raise UnsupportedDtype(f"dtype is {dtype!r}: pass a floating dtype such as torch.bfloat16, or None")
    return found


def converted(name: str, dtype: Any) -> str:
    """Returns the name of the dtype to which tensors of a dtype are converted."""
    return dtype_name(dtype) if dtype is not None and getattr(torch, name) in CONVERTED else name


class Typed:
    """Views of any dtype and shape over one piece of memory.

    Args:
        memory: a buffer that is not empty, or a tensor of uint8 at the start of its storage. Never write into views
            of a read-only buffer.
    """

    def __init__(self, memory: Any) -> None:
        _hush()
        self.data = memory if isinstance(memory, torch.Tensor) else torch.frombuffer(memory, dtype=torch.uint8)
        self._by_dtype: dict[Any, Any] = {}

    def view(self, dtype: Any, item: int, shape: Any, stride: Any, start: int) -> Any:
        """Returns a view whose first element is at a byte that is a multiple of its size."""
        base = self._by_dtype.get(dtype)
        if base is None:
            nbytes = self.data.numel()
            base = self._by_dtype[dtype] = self.data[: nbytes - nbytes % item].view(dtype)
        return torch.as_strided(base, shape, stride, start // item)


class Pinned:
    """Memory from which, and into which, a GPU copies at the speed of the bus; plain memory on a host without one."""

    def __init__(self) -> None:
        self._memory: Any = None

    def of(self, nbytes: int) -> Any:
        """Returns a tensor of uint8 over the memory, which the next call returns again."""
        if self._memory is None or self._memory.numel() < nbytes:
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available())
        return self._memory[:nbytes]


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor, in elements."""
    found = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        found[axis] = found[axis + 1] * shape[axis + 1]
    return tuple(found)


def copy_all(outs: list[Any], values: list[Any], *, in_threads: bool = False) -> None:
    """Copies tensors into tensors of the same shapes; converts dtypes and devices.

    Args:
        outs: the tensors to copy into.
        values: the tensors to copy.
        in_threads: whether large tensors are copied by the threads of torch. On a host whose cores are busy, waiting
            for these threads takes several times as long as the copy, so copies that wait for the network anyway do
            without them.
    """
    rest: tuple[list[Any], list[Any]] = (outs, values)
    if not in_threads:
        rest = ([], [])
        for out, value in zip(outs, values, strict=True):
            if out.numel() >= THREADED_ELEMENTS and _is_plain(out, value):
                ctypes.memmove(out.data_ptr(), value.data_ptr(), out.numel() * out.element_size())
            else:
                rest[0].append(out)
                rest[1].append(value)
    many = getattr(torch, "_foreach_copy_", None)
    with torch.no_grad():
        if many is not None and len(rest[0]) > 1:
            many(*rest, non_blocking=True)
            return
        for out, value in zip(*rest, strict=True):
            out.copy_(value, non_blocking=True)


def _is_plain(out: Any, value: Any) -> bool:
    """Whether the bytes of a tensor in host memory are those of another."""
    return (
        out.dtype == value.dtype
        and out.device.type == value.device.type == "cpu"
        and out.is_contiguous()
        and value.is_contiguous()
        and not (value.is_conj() or value.is_neg() or out.is_conj() or out.is_neg())
    )


def synchronize(device: Any) -> None:
    """Waits until copies to and from a device are complete."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(device)


@functools.cache
def _hush() -> None:
    """Triggers and suppresses the warning about read-only memory, which torch issues once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"\0", dtype=torch.uint8)
