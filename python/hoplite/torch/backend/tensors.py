"""Memory of tensors, as the store sees it: contiguous host memory with its dtype.

Tensors of other devices are staged through host memory, which is pinned for CUDA. Does not know groups or objects.
"""

from __future__ import annotations

import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hoplite.errors import InvalidArgument
from hoplite.values.kinds import NARROW_DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

# Dtypes that NumPy has, whose arrays the store takes without a detour.
_WITH_NUMPY = frozenset({
    torch.float16, torch.float32, torch.float64, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
})  # fmt: skip

# Names of those that only the store has, apart from NumPy.
_OF_STORE = frozenset({"bfloat16", *NARROW_DTYPES})

# The stream of each GPU in the thread that called an operation. A coroutine in the loop inherits it.
_streams: ContextVar[dict[int, Any]] = ContextVar("streams", default={})  # noqa: B039 - never changed in place


def inherit_streams() -> None:
    """Makes operations that this thread starts from now on use its present CUDA streams."""
    if torch.cuda.is_initialized():
        _streams.set({index: torch.cuda.current_stream(index) for index in range(torch.cuda.device_count())})


def _copy(target: Tensor, source: Tensor, device: torch.device) -> None:
    """Copies from or to a GPU, after the work in the caller's stream, and waits for the end."""
    stream = _streams.get().get(device.index) or torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        target.copy_(source, non_blocking=True)
    stream.synchronize()


def host(tensor: Tensor, *, filled: bool = True) -> Tensor:
    """Returns contiguous host memory for a tensor: the tensor itself if possible.

    Args:
        tensor: a dense tensor.
        filled: whether the memory must have the values of the tensor.

    Raises:
        InvalidArgument: the tensor is sparse or has no memory.
    """
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise InvalidArgument(
            f"a tensor of layout {tensor.layout} on device {tensor.device} has no dense memory: pass a dense tensor"
        )
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    is_on_gpu = tensor.device.type == "cuda"
    memory = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_on_gpu)
    if filled and is_on_gpu:
        _copy(memory, tensor, tensor.device)
    elif filled:
        memory.copy_(tensor)
    return memory


def hosts(tensors: Iterable[Tensor], *, filled: bool = True) -> list[Tensor]:
    """Returns `host` of each tensor."""
    return [host(tensor, filled=filled) for tensor in tensors]


def give_back(tensor: Tensor, memory: Tensor) -> None:
    """Copies a result from host memory to the tensor, if that is not the same memory."""
    target = tensor.detach()
    if target.device.type == "cuda":
        _copy(target, memory, target.device)
    elif target.data_ptr() != memory.data_ptr() or target.device != memory.device:
        target.copy_(memory)


def give_all_back(tensors: Sequence[Tensor], memories: Sequence[Tensor]) -> None:
    """Calls `give_back` for each tensor."""
    for tensor, memory in zip(tensors, memories, strict=True):
        give_back(tensor, memory)


def typed(memory: Tensor, shape: tuple[int, ...] = (-1,)) -> Any:
    """Returns the elements of a contiguous tensor as a value over its memory, of a dtype that the store compares."""
    flat = memory.reshape(shape)
    if flat.dtype in _WITH_NUMPY:
        return array(flat)
    # The store lacks dtypes such as bits8: it takes their bytes.
    return flat if str(flat.dtype).removeprefix("torch.") in _OF_STORE else array(flat.view(torch.uint8))


def array(memory: Tensor) -> Any:
    """Returns an array over a tensor's memory. `Tensor.numpy` would forbid to resize the storage, which FSDP does."""
    return np.from_dlpack(memory)


def cut(memory: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Splits a contiguous tensor along its first axis.

    Args:
        memory: the tensor.
        sizes: rows of each part; none means one equal part for each rank, given as their number.
    """
    return list(torch.split(memory, list(sizes)))


def hush() -> None:
    """Suppresses PyTorch's warning about read-only arrays: results are only read."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
