"""The engine in the workers of a vLLM server: loads a published version into the model.

Workers of one host read the same copy in shared memory. The engine has no state of its own: the request of each update
names the version, so a restarted server or trainer needs no new handshake. Does not know who publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

import hoplite
from hoplite import _held
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from hoplite._held import Held


@dataclass
class HopliteInitInfo(WeightTransferInitInfo):
    """The handshake needs no arguments."""


@dataclass
class HopliteUpdateInfo(WeightTransferUpdateInfo):
    """The request of one update.

    Attributes:
        name: name of the version, such as "policy/17". It is a version, not a prefix: all workers load the same one.
        timeout: seconds to wait until the version is on this host; None waits without limit. The default is
            `default_timeout` of `hoplite.init`, or 300.
    """

    name: str
    timeout: float | None = DEFAULT

    def __post_init__(self) -> None:
        """Checks the name, which comes from outside the process."""
        name: Any = self.name
        if not isinstance(name, str) or not name.rpartition("/")[2].isdecimal():
            raise InvalidArgument(f'{name!r} is not a version: name one, as in "policy/17"')


class HopliteWeightTransferEngine(WeightTransferEngine[HopliteInitInfo, HopliteUpdateInfo]):
    """Loads published versions into the model of a worker.

    The model keeps its weights until the whole version is on this host. vLLM creates the engine.
    """

    init_info_cls = HopliteInitInfo
    update_info_cls = HopliteUpdateInfo

    def init_transfer_engine(self, init_info: HopliteInitInfo) -> None:  # noqa: ARG002 - it is empty
        """Attaches to the node of this host, so that a missing node is reported before the first update."""
        hoplite.client()

    def start_weight_update(self) -> None:
        """Does nothing: the model stays as it is until the version is here."""

    def finish_weight_update(self) -> None:
        """Does nothing: `receive_weights` completes the version."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads a version. On return, the model and its device use it."""
        if self.device.type == "cpu":
            # vLLM would synchronize the accelerator, and raises if there is none.
            self.receive_weights(self.parse_update_info(update_info))
        else:
            super().update_weights(update_info)

    def receive_weights(self, update_info: HopliteUpdateInfo) -> None:
        """Waits until a version is on this host, then loads it into the model, one tensor at a time.

        Raises:
            StoreFull: this host has no capacity for the version. The model is unchanged.
            Timeout: the version was not here in time. The model is unchanged.
            ObjectDeleted: the version is older than those that the trainer retains. The model is unchanged.
        """
        self._load(_held.Held(update_info.name, limit(update_info.timeout, otherwise=300.0)))

    def _load(self, version: Held) -> None:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        # vLLM's loaders process names and tensors as they are in a checkpoint: they fuse, shard and quantize.
        initialize_layerwise_reload(self.model)
        try:
            with disable_mtp_completeness_check():
                self.model.load_weights(version.tensors(self.device))
        finally:
            # Also after an error: otherwise the next version would be added to the layers that this one has begun.
            finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Does nothing: the client belongs to the process."""
