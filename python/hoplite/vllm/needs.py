"""Checks that a supported version of vLLM is installed. Imports no other module of this package."""

from __future__ import annotations

import importlib

from hoplite.errors import PackageMissing
from hoplite.extras import install

# The interfaces of vLLM that this package uses. Releases before 0.28 have other ones.
USED = {
    "vllm.distributed.weight_transfer.base": (
        "TrainerInitInfo",
        "TrainerWeightTransferEngine",
        "WeightTransferEngine",
        "WeightTransferInitInfo",
        "WeightTransferUpdateInfo",
    ),
    "vllm.distributed.weight_transfer.factory": ("WeightTransferEngineFactory", "WeightTransferTrainerFactory"),
}


def check() -> None:
    """Checks that vLLM has the interfaces that this package uses.

    Raises:
        PackageMissing: vLLM is missing or differs; the message names the extra to install.
    """
    try:
        version = importlib.import_module("vllm").__version__
        modules = {module: importlib.import_module(module) for module in USED}
    except ImportError as error:
        raise PackageMissing(f"hoplite.vllm needs vLLM 0.33 ({error}): run {install('vllm')}") from None
    missing = [f"{module}.{name}" for module in USED for name in USED[module] if not hasattr(modules[module], name)]
    if missing:
        raise PackageMissing(
            f"hoplite.vllm does not support vLLM {version}, which lacks {', '.join(missing)}: run {install('vllm')}"
        )
