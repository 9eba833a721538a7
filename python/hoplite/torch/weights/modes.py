"""Copies of a fetch, whatever the modes of the calling thread, such as `inference_mode`. Does not know tensors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from hoplite import HopliteError, StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of an allocation. Older versions of torch raise a plain RuntimeError.
NO_MEMORY = (MemoryError, *([torch.OutOfMemoryError] if hasattr(torch, "OutOfMemoryError") else []))


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """Runs a block that creates or copies tensors. Allocations in it name their device and dtype.

    Raises:
        StoreFull: this process or a device has no memory.
        HopliteError: torch raised another error, which the message has.
    """
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    except HopliteError:
        raise
    except NO_MEMORY as error:
        raise StoreFull(f"no memory to copy a tensor ({error}): free memory, or fetch less with layout=") from error
    except Exception as error:
        raise HopliteError(
            f"torch could not copy a tensor ({type(error).__name__}: {error}): pass plain tensors that can be written"
        ) from error
