"""What the tests of vLLM, TRL and verl share: small models, and a vLLM server in this process with its real classes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Policy(torch.nn.Module):
    """Two layers, with a parameter that no layer shares. `load_weights` is the one of vLLM's models."""

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 3, dtype=torch.bfloat16)
        self.second = torch.nn.Linear(3, 2, bias=False)
        fill(self, value)

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> set[str]:
        """Loads tensors as vLLM's models do: by the weight loader of each parameter."""
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        loaded = set()
        for name, tensor in weights:
            # A layer that has all its tensors replaces its parameters: look each up when its tensor is there.
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
            loaded.add(name)
        return loaded


def fill(module: torch.nn.Module, value: int) -> None:
    """Sets each element to a whole number, another one in each parameter."""
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            parameter.fill_(value + place)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Returns whether two modules have equal parameters."""
    found, expected = dict(one.named_parameters()), dict(other.named_parameters())
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


class Server:
    """A vLLM server in this process, called as over HTTP: several of vLLM's workers, each with a model and an engine.

    Args:
        workers: number of workers.
        model: creates the model of each.
    """

    def __init__(self, workers: int = 2, model: Callable[[], Any] = Policy) -> None:
        from vllm.config import WeightTransferConfig
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
        from vllm.v1.worker.gpu_worker import Worker

        self.calls: list[str] = []
        self.weight_version: str | None = None
        self.models = [model() for _ in range(workers)]
        self.workers = []
        for rank, each in enumerate(self.models):
            record_metadata_for_reloading(each)
            # A worker that has loaded its model, as far as an update uses it.
            worker: Any = object.__new__(Worker)
            worker.rank = rank
            worker.vllm_config = SimpleNamespace(
                parallel_config=None,
                model_config=SimpleNamespace(dtype=torch.float32),
                compilation_config=SimpleNamespace(custom_ops=[]),
            )
            worker.model_runner = SimpleNamespace(reset_lora_state=lambda: None)
            worker.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
                WeightTransferConfig(backend="hoplite"), worker.vllm_config, torch.device("cpu"), each
            )
            worker._weight_update_active = worker._weight_update_is_draft = False
            self.workers.append(worker)

    def _each(self, method: str, *arguments: Any) -> None:
        """Calls all workers, then raises the first error."""
        self.calls.append(method)
        errors = []
        for worker in self.workers:
            try:
                # As JSON, in which the arguments travel.
                getattr(worker, method)(*json.loads(json.dumps(arguments)))
            except Exception as error:  # noqa: BLE001 - any error of a worker
                errors.append(error)
        if errors:
            raise errors[0]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._each("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._each("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._each("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._each("finish_weight_update")
        self.weight_version = weight_version or self.weight_version
