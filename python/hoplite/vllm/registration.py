"""The entry point `vllm.general_plugins`: registers the backend "hoplite". Does not know what the engines do."""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

from hoplite.errors import InvalidArgument

NAME = "hoplite"


def register() -> None:
    """Registers the backend "hoplite" for servers and trainers. A second call does nothing.

    vLLM calls it in each of its processes, more than once in some.

    Raises:
        InvalidArgument: another package has registered a backend with this name.
    """
    _register_one(WeightTransferEngineFactory, "hoplite.vllm.engine", "HopliteWeightTransferEngine")
    _register_one(WeightTransferTrainerFactory, "hoplite.vllm.trainer", "HopliteTrainerEngine")


def _register_one(factory: Any, module: str, name: str) -> None:
    try:
        factory.register_engine(NAME, module, name)
    except ValueError:
        # The factory rejects a second registration.
        found = factory._registry[NAME]()
        if (found.__module__, found.__name__) != (module, name):
            raise InvalidArgument(
                f"vLLM has a backend {NAME!r} of another package ({found.__module__}.{found.__name__}): "
                "remove that package, or exclude it with VLLM_PLUGINS"
            ) from None
