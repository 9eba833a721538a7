"""State dicts as one run of bytes and a skeleton, and back.

The skeleton is the state dict with tensors on the meta device in place of those with values. The bytes of the tensors
follow each other in the order of the skeleton, each at a multiple of 64 B. This module knows no objects and no network.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from hoplite.errors import UnsupportedDtype
from hoplite.torch.weights.checking import single

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A cache line, and a multiple of the size of every element.
ALIGNMENT = 64


class FlatState:
    """A state dict whose bytes can be read in any order. It refers to the tensors, and copies none of host memory.

    Args:
        state: nested dicts, lists and tuples with tensors and other values that `torch.load(weights_only=True)`
            accepts.

    Attributes:
        skeleton: the state dict without the values of its tensors.
        nbytes: size of the values.

    Raises:
        UnsupportedDtype: a tensor is on the meta device, or its storage was freed, so that it has no values.
    """

    def __init__(self, state: object) -> None:
        leaves, structure = pytree.tree_flatten_with_path(state)
        self._tensors: list[Any] = []
        metas: dict[object, Any] = {}
        skeleton = []
        for path, leaf in leaves:
            local = _local(leaf)
            if local is None:
                skeleton.append(leaf)
                continue
            if local.is_meta:
                raise UnsupportedDtype(f"tensor {pytree.keystr(path)} is on the meta device: give it values first")
            local = single(f"tensor {pytree.keystr(path)}", local)
            # Tied tensors are one tensor in the skeleton, and their bytes are there once.
            key: tuple[object, ...] = (local.data_ptr(), local.dtype, local.shape, local.stride(), local.device)
            if isinstance(leaf, DTensor) or not local.numel():
                key = (id(leaf), *key)
            if key not in metas:
                metas[key] = torch.empty(local.shape, dtype=local.dtype, device="meta")
                self._tensors.append(local)
            skeleton.append(_wrapped(metas[key], leaf))
        self.skeleton = pytree.tree_unflatten(skeleton, structure)
        self._offsets, self.nbytes = _layout(self._tensors)
        self._on_host: tuple[int, Any] = (-1, None)

    def read(self, start: int, end: int) -> Iterator[memoryview]:
        """Yields the bytes from `start` to `end` in parts."""
        while start < end:
            index = bisect.bisect_right(self._offsets, start) - 1
            first = self._offsets[index]
            data = self._bytes(index)
            if start < first + len(data):
                part = data[start - first : end - first]
            else:
                following = self._offsets[index + 1] if index + 1 < len(self._offsets) else self.nbytes
                part = memoryview(bytes(min(following, end) - start))
            yield part
            start += len(part)

    def _bytes(self, index: int) -> memoryview:
        """Returns the bytes of a tensor. A tensor of a device is copied once if it is read in order."""
        if self._on_host[0] != index:
            tensor = self._tensors[index].detach().cpu().resolve_conj().resolve_neg().contiguous()
            self._on_host = (index, memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        data: memoryview = self._on_host[1]
        return data


class Skeleton:
    """A state dict without values, in a process that receives it.

    Args:
        skeleton: `FlatState.skeleton`.

    Attributes:
        nbytes: size of the values.
    """

    def __init__(self, skeleton: object) -> None:
        self._leaves, self._structure = pytree.tree_flatten(skeleton)
        distinct: dict[int, Any] = {}
        for leaf in self._leaves:
            local = _local(leaf)
            if local is not None:
                distinct.setdefault(id(leaf), local)
        self._metas = distinct
        offsets, self.nbytes = _layout(list(distinct.values()))
        self._offsets = dict(zip(distinct, offsets, strict=True))

    def filled(self, data: Any) -> Any:
        """Returns the state dict with values.

        Args:
            data: CPU tensor, uint8 [nbytes]. The tensors of the result are views of it.
        """
        tensors = {}
        for key, meta in self._metas.items():
            start = self._offsets[key]
            part = data[start : start + _size(meta)]
            tensors[key] = part.view(meta.dtype).view(meta.shape)
        leaves = [_wrapped(tensors[id(leaf)], leaf) if id(leaf) in tensors else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)


def _local(leaf: object) -> Any:
    """Returns the tensor whose bytes are sent for a leaf; None for leaves that are part of the skeleton."""
    if isinstance(leaf, DTensor):
        return leaf._local_tensor.detach()
    if type(leaf) in (torch.Tensor, torch.nn.Parameter):
        tensor: Any = leaf
        if tensor.layout == torch.strided and not tensor.is_quantized:
            return tensor.detach()
    return None


def _wrapped(tensor: object, leaf: Any) -> Any:
    """Returns a local tensor in the form of a leaf."""
    # Not `from_local`, which drops the tensor on a rank outside its mesh.
    return DTensor(tensor, leaf._spec, requires_grad=False) if isinstance(leaf, DTensor) else tensor


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _layout(tensors: Sequence[Any]) -> tuple[list[int], int]:
    """Returns the offset of each tensor, and the total size."""
    offsets = []
    total = 0
    for tensor in tensors:
        offsets.append(total)
        total += -(-_size(tensor) // ALIGNMENT) * ALIGNMENT
    return offsets, total
