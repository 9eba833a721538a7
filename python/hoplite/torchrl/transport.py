"""Versions of one model's weights: published by the trainer, fetched and acknowledged by workers.

Version 17 is the publication "NAME/17". A worker acknowledges it by an empty object, "NAME/acks/WORKER/17". This module
knows nothing of collectors and of TorchRL's schemes.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from hoplite.errors import InvalidArgument, Timeout, UnsupportedDtype
from hoplite.torch import fetch, publish

if TYPE_CHECKING:
    from collections.abc import Iterable

    import hoplite


class HopliteTransport:
    """One side of a model's weights. Implements TorchRL's `TransportBackend`.

    Args:
        client: client to use.
        name: prefix of the versions, without a slash at the end.
        timeout: seconds to wait for the bytes of a version, and for acknowledgments.
        worker: number of the worker; None for the trainer.

    Attributes:
        version: number of the last version that was sent or received; -1 before that.
    """

    def __init__(self, client: hoplite.Client, name: str, timeout: float | None, worker: int | None = None) -> None:
        self._client = client
        self._name = name
        self._timeout = timeout
        self._worker = worker
        # The background thread of a worker, and a call of its collector, can receive at the same time.
        self._lock = threading.Lock()
        self.version = -1

    def send_weights(self, weights: Any) -> None:
        """Publishes weights as the next version.

        Args:
            weights: TensorDict, or dict of tensors by name.

        Raises:
            StoreFull: the store of this host had no capacity in time.
            UnsupportedDtype: a value is not a tensor.
        """
        if self.version < 0:
            self.version = self._newest()
        publish(_by_name(weights), f"{self._name}/{self.version + 1}", client=self._client, timeout=self._timeout)
        self.version += 1

    def receive_weights(
        self, timeout: float | None = None, *, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> Any:
        """Fetches the newest version, if it is newer than the last one, and applies it to the model.

        Args:
            timeout: seconds to wait for a newer version; None does not wait.
            weights: not used.
            model: module to which `strategy` applies the weights.
            strategy: TorchRL's `WeightStrategy`.

        Returns:
            The weights as a TensorDict; None if there is no newer version.

        Raises:
            Timeout: the bytes of the version did not arrive in time.
        """
        with self._lock:
            if not self.wait(timeout or 0.0):
                return None
            got = fetch(f"{self._name}/", after=self.version, client=self._client, timeout=self._timeout)
            received = TensorDict(dict(got)).unflatten_keys(".")
            if model is not None and strategy is not None:
                strategy.apply_weights(model, received, inplace=not _is_meta(model))
            self.version = got.version
        return received

    def wait(self, timeout: float) -> bool:
        """Waits for a newer version than the last one; returns whether there is one."""
        try:
            self._client.latest(f"{self._name}/", after=self.version, timeout=timeout)
        except Timeout:
            return False
        return True

    def send_ack(self, message: str = "updated") -> None:
        """Acknowledges the last version, which the model now has."""
        name = f"{self._name}/acks/{self._worker}/{self.version}"
        self._client.put(message.encode(), name=name, retain=1, exist_ok=True, timeout=self._timeout)

    def wait_acks(self, workers: Iterable[int]) -> None:
        """Waits until workers have acknowledged the last version.

        Raises:
            Timeout: some did not in time; the message names them.
        """
        names = {f"{self._name}/acks/{worker}/{self.version}": worker for worker in workers}
        try:
            _, missing = self._client.wait(list(names), timeout=self._timeout)
        except Timeout:
            missing = []
        if missing:
            late = ", ".join(str(names[str(ref)]) for ref in missing)
            raise Timeout(
                f"timed out after {self._timeout:g} s: workers {late} have not applied version {self.version} of "
                f"{self._name}: check whether they run, or use sync=False"
            )

    def setup_connection_and_weights_on_sender(self) -> None:
        """Does nothing: `send_weights` needs no connection."""

    def setup_connection_and_weights_on_receiver(
        self, *, worker_idx: int | None = None, weights: Any = None, model: Any = None, strategy: Any = None
    ) -> Any:
        """Fetches and applies the newest version, waiting until there is one.

        Raises:
            Timeout: there was none in time.
        """
        got = self.receive_weights(self._timeout or threading.TIMEOUT_MAX, model=model, strategy=strategy)
        if got is None:
            raise Timeout(f"timed out after {self._timeout:g} s: the trainer has not published weights as {self._name}")
        return got

    def _newest(self) -> int:
        """Returns the newest version of an earlier trainer with this name; -1 if there is none."""
        try:
            return self._client.latest(f"{self._name}/", timeout=0).number
        except Timeout:
            return -1


def _by_name(weights: Any) -> dict[str, Any]:
    """Returns the tensors of a TensorDict or dict by their names, such as "module.0.weight"."""
    if isinstance(weights, TensorDictBase):
        weights = dict(weights.flatten_keys(".").items())
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise InvalidArgument(
            f"weights are a {type(weights).__name__}: pass a module, a TensorDict or tensors by name. Weights that "
            "differ between workers need a scheme for each"
        )
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            raise UnsupportedDtype(f"weights have a {type(value).__name__} as {name}: only tensors can be sent")
    return {name: value.detach() for name, value in weights.items()}


def _is_meta(model: Any) -> bool:
    return isinstance(model, torch.nn.Module) and any(parameter.is_meta for parameter in model.parameters())
