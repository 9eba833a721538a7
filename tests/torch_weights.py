"""Models whose weights are whole numbers, and comparisons of them, for the tests of `hoplite.torch`."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import torch

from hoplite.torch.weights import transfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

# Timeout of everything that can hang. It is not a performance assertion.
SOON = 30.0


def counting(shape: tuple[int, ...], dtype: Any = torch.float32, first: int = 0) -> Any:
    """Returns a tensor of whole numbers below 100."""
    return ((torch.arange(math.prod(shape)) + first) % 100).to(dtype).reshape(shape)


class Model(torch.nn.Module):  # type: ignore[misc]
    """Tied parameters, a buffer without axes, and a layer in bfloat16.

    Args:
        fill: whole number in all of its elements.
        width: size of its layers.
    """

    def __init__(self, fill: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(width, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.half = torch.nn.Linear(width, width, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(width, width, bias=False)
        self.head.weight = self.embedding.weight
        self.fill(fill)

    def fill(self, value: int) -> None:
        """Sets all elements."""
        with torch.no_grad():
            for tensor in self.state_dict().values():
                tensor.fill_(value)

    def values(self) -> set[float]:
        """All values of its elements; one if it is of one version."""
        return {value for tensor in self.state_dict().values() for value in tensor.unique().tolist()}


def same(got: Any, expected: Any) -> None:
    """Asserts that tensors by name are equal, bit by bit."""
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        other = got[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(as_bytes(other), as_bytes(tensor)), name


def as_bytes(tensor: Any) -> Any:
    """The elements of a tensor as bytes."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


@contextlib.contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Records the bytes of the data objects that fetches get."""
    sizes: list[int] = []
    take = transfer._take

    def taken(part: transfer.Part, data: Any) -> None:
        sizes.append(part.nbytes)
        take(part, data)

    with monkeypatch.context() as patched:
        patched.setattr(transfer, "_take", taken)
        yield sizes
