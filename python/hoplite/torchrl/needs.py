"""Checks that a supported version of TorchRL is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib
import inspect

from hoplite.errors import PackageMissing
from hoplite.extras import install

# The release of TorchRL that the tests use.
KNOWN = "0.14.1"

MODULE = "torchrl.weight_update.weight_sync_schemes"

# What the scheme uses of its base class, with the arguments that it passes or receives. Some are private to TorchRL.
OF_SCHEME = {
    "_init_on_receiver_impl": (),
    "_init_on_sender_impl": (),
    "_setup_connection_and_weights_on_receiver_impl": ("worker_idx",),
    "_setup_connection_and_weights_on_sender_impl": ("weights",),
    "_start_background_receiver": (),
    "_wait_for_instruction": ("timeout",),
    "connect": (),
    "prepare_weights": ("weights", "model_id", "strategy", "context"),
    "receive": ("timeout",),
    "send": ("weights", "worker_ids"),
    "shutdown": (),
}


def check() -> None:
    """Checks that TorchRL has the interface that this package uses.

    Raises:
        PackageMissing: TorchRL is missing or differs; the message names the package to install.
    """
    try:
        version = importlib.import_module("torchrl").__version__
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise PackageMissing(f"hoplite.torchrl needs TorchRL ({error}): {install('torchrl')}") from None
    scheme = getattr(module, "WeightSyncScheme", None)
    missing = [name for name in ("WeightSyncScheme", "register_weight_sync_backend") if not hasattr(module, name)]
    for name, arguments in OF_SCHEME.items() if scheme is not None else ():
        method = getattr(scheme, name, None)
        has = inspect.signature(method).parameters if method is not None else {}
        if method is None or not set(arguments) <= set(has):
            missing.append(f"WeightSyncScheme.{name}({', '.join(arguments)})")
    if missing:
        raise PackageMissing(
            f"hoplite.torchrl does not support torchrl {version}, which lacks {', '.join(missing)}: "
            f"pip install torchrl=={KNOWN}"
        )
