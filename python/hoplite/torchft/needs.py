"""Checks that a supported version of torchft is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib

from hoplite.errors import PackageMissing
from hoplite.extras import install

# The release of torchft that the tests use.
KNOWN = "0.2.0"

# The methods that torchft calls on a transport.
METHODS = ("metadata", "send_checkpoint", "recv_checkpoint", "disallow_checkpoint", "shutdown")


def check() -> None:
    """Checks that torchft has the interface that this package implements.

    Raises:
        PackageMissing: torchft is missing or differs; the message names the package to install.
    """
    try:
        interface = importlib.import_module("torchft.checkpointing.transport").CheckpointTransport
    except (ImportError, AttributeError) as error:
        raise PackageMissing(f"hoplite.torchft needs torchft ({error}): {install('torchft')}") from None
    missing = [name for name in METHODS if not hasattr(interface, name)]
    unknown = sorted(interface.__abstractmethods__ - set(METHODS))
    if missing or unknown:
        raise PackageMissing(
            f"hoplite.torchft does not support this version of torchft: CheckpointTransport has other methods "
            f"({', '.join(missing + unknown)}); pip install torchft=={KNOWN}"
        )
