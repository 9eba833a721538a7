"""Checks that PyTorch is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib
from typing import Any

from hoplite.errors import HopliteError

EXTRA = "hoplite-collectives[torch]"

# The oldest release with everything that `hoplite.torch` uses.
OLDEST = (1, 13)


class TorchMissing(HopliteError, ImportError):
    """PyTorch is not installed, or too old. The message names the extra to install."""


def check() -> Any:
    """Imports torch.

    Raises:
        TorchMissing: torch is missing or too old.
    """
    try:
        torch = importlib.import_module("torch")
        found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    except ImportError as error:
        raise TorchMissing(f"hoplite.torch needs PyTorch ({error}): run pip install '{EXTRA}'") from None
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TorchMissing(
            f"hoplite.torch needs torch {oldest} or later, and {torch.__version__} is installed: "
            f"run pip install -U '{EXTRA}'"
        )
    return torch
