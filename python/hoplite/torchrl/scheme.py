"""The weight-sync scheme of TorchRL's collectors: who sends, who receives, and when. `transport` moves the weights."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

from torchrl.weight_update.weight_sync_schemes import WeightSyncScheme, register_weight_sync_backend

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.torch import delete
from hoplite.torchrl.transport import HopliteTransport

# How often a worker that waits for weights checks whether it shall stop.
STOP_CHECK_S = 0.5


@register_weight_sync_backend("hoplite")
class HopliteWeightSyncScheme(WeightSyncScheme):
    """Sends the weights of one model to all workers by name, through the stores of their hosts.

    A version is published once, whatever the number of workers, and arrives once on each host. Workers apply the newest
    version as soon as it is there. A worker that starts late, or restarts, begins with the newest version. A trainer
    that restarts with the same name goes on counting.

    Args:
        name: prefix of the versions, as "policy" for "policy/17". None creates a unique name, whose objects are deleted
            by `shutdown` of the trainer.
        address: "unix:/path" of the node of each host, as for `hoplite.connect`. None uses `hoplite.client()`.
        strategy: "tensordict" or "state_dict", the form in which TorchRL takes weights from a model.
        sync: whether `send` waits until the workers have applied the weights.
        timeout: seconds to wait for the weights, and for the workers. None waits without a limit. The default
            is `default_timeout` of `hoplite.init`, or 60.

    Raises:
        InvalidArgument: the name is not valid.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        address: str | None = None,
        strategy: str = "tensordict",
        sync: bool = True,
        timeout: float | None = DEFAULT,
    ) -> None:
        super().__init__(strategy)
        if name is not None and (not name or name.startswith("@") or name.endswith("/")):
            raise InvalidArgument(f"name {name!r} is not valid: pass a name such as 'policy'")
        self.sync = sync
        self._is_unique = name is None
        self._name = f"torchrl/{uuid.uuid4().hex}" if name is None else name
        self._address = address
        self._timeout = timeout
        self._client: hoplite.Client | None = None
        self._workers: list[int] = []
        # Whether workers wait for weights before they start. A model that only workers create has none here.
        self._has_weights = False

    def create_transport(self, *, worker_idx: int | None = None, **_: Any) -> HopliteTransport:
        """Returns the side of a worker, or that of the trainer without `worker_idx`."""
        if self._client is None:
            self._client = hoplite.client() if self._address is None else hoplite.connect(self._address)
        return HopliteTransport(self._client, self._name, self._limit(self._client), worker_idx)

    def _limit(self, client: hoplite.Client) -> float | None:
        return limit(self._timeout, client, otherwise=60.0)

    def send(self, weights: Any = None, worker_ids: int | list[int] | None = None) -> None:
        """Publishes weights as the next version. With `sync`, waits until workers have applied it.

        Args:
            weights: module, TensorDict or tensors by name. None takes those of the trainer's model.
            worker_ids: workers to wait for; None means all. The others apply the version too.

        Raises:
            HopliteError: the scheme is not connected as a sender.
            InvalidArgument: the trainer has no weights, or they differ between workers.
            StoreFull: the store of this host had no capacity in time.
            Timeout: a worker has not applied the version in time. It is published.
        """
        if not self.initialized_on_sender or not self.synchronized_on_sender:
            raise HopliteError(f"the scheme of {self._name} is not connected as a sender: pass it to a collector first")
        self._publish(weights)
        if self.sync:
            chosen = [worker_ids] if isinstance(worker_ids, int) else worker_ids
            self._shared_transport.wait_acks(self._workers if chosen is None else chosen)

    def shutdown(self) -> None:
        """Stops the receiver of a worker; on the trainer, deletes the objects of a unique name. Can be repeated."""
        super().shutdown()
        client, self._client = getattr(self, "_client", None), None
        if client is None:
            return
        if self.initialized_on_sender and self._is_unique:
            left = self._limit(client)
            with contextlib.suppress(HopliteError):
                delete(f"{self._name}/", client=client, timeout=left)
            with contextlib.suppress(HopliteError):
                # The acknowledgments.
                names = [row["ref"] for row in client.directory(f"{self._name}/", timeout=left)]
                client.delete(names, timeout=left)
        if self._address is not None:
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out what belongs to this process."""
        return {**super().__getstate__(), "_client": None, "_shared_transport": None}

    def _init_on_sender_impl(
        self,
        *,
        model_id: str | None = None,
        context: Any = None,
        num_workers: int | None = None,
        weights: Any = None,
        model: Any = None,
        **_: Any,
    ) -> None:
        self.model_id = model_id or "policy"
        self.context = context
        if weights is not None:
            self.weights = weights
        if model is not None:
            self.model = model
        count = getattr(context, "num_workers", None) if num_workers is None else num_workers
        self._workers = list(range(count or 0))
        self._shared_transport = self.create_transport()
        self._has_weights = self._prepared(None) is not None

    def _setup_connection_and_weights_on_sender_impl(
        self, *, worker_idx: int | None = None, weights: Any = None
    ) -> None:
        if weights is not None or self._has_weights:
            self._publish(weights)

    def _init_on_receiver_impl(
        self, *, model_id: str, context: Any = None, worker_idx: int | None = None, model: Any = None, **_: Any
    ) -> None:
        self.model_id = model_id
        self.context = context
        if model is not None:
            self.model = model
        self.worker_idx = getattr(context, "worker_idx", None) if worker_idx is None else worker_idx
        self._shared_transport = self.create_transport(worker_idx=self.worker_idx)

    def _setup_connection_and_weights_on_receiver_impl(self, *, worker_idx: int | None = None) -> None:
        if self._has_weights:
            self._shared_transport.setup_connection_and_weights_on_receiver(
                worker_idx=worker_idx, model=self.model, strategy=self._strategy
            )
        self._start_background_receiver()

    def _wait_for_instruction(self, timeout: float | None = None) -> str | None:
        """Waits until there is a newer version, and returns "receive"; None once the scheme shuts down."""
        stop = self._stop_event
        while stop is not None and not stop.is_set():
            try:
                if self._shared_transport.wait(STOP_CHECK_S):
                    return "receive"
            except HopliteError:
                # TorchRL logs it and calls again.
                stop.wait(STOP_CHECK_S)
                raise
        return None

    def _publish(self, weights: Any) -> None:
        prepared = self._prepared(weights)
        if prepared is None:
            raise InvalidArgument(f"the trainer has no weights of {self.model_id}: pass them to send")
        self._shared_transport.send_weights(prepared)

    def _prepared(self, weights: Any) -> Any:
        """Returns weights as a TensorDict or dict; None if the trainer has none."""
        found = self.prepare_weights(weights, self._model_id, self._strategy, self.context)
        return found if found is not None or self.context is not None else self.weights
