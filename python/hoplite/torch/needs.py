"""Checks that PyTorch is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib
from typing import Any

from hoplite.errors import PackageMissing
from hoplite.extras import install

# The oldest release with everything that `hoplite.torch` uses.
OLDEST = (1, 13)


def check() -> Any:
    """Imports torch.

    Raises:
        PackageMissing: torch is missing or too old.
    """
    try:
        torch = importlib.import_module("torch")
        found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    except ImportError as error:
        raise PackageMissing(f"hoplite.torch needs PyTorch ({error}): run {install('torch')}") from None
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise PackageMissing(
            f"hoplite.torch needs torch {oldest} or later, and {torch.__version__} is installed: run {install('torch')}"
        )
    return torch
