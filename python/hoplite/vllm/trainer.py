"""The engine in a trainer: publishes the next version, then makes the servers load it. Does not know their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine

import hoplite
from hoplite import _policy
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from typing import Self


@dataclass
class HopliteTrainerInitInfo(TrainerInitInfo):
    """Arguments of a trainer's engine, for vLLM's `WeightTransferTrainerFactory.trainer_init`.

    Attributes:
        prefix: prefix of the names of versions: "policy/" for "policy/17".
        retain: number of newest versions to retain.
        replicas: number of hosts that have a copy before the servers load it. With at least the number of hosts, each
            server loads from its own memory, and pauses only for that.
        timeout: seconds for the publication, and for each worker to receive it. None waits without limit. The
            default is `default_timeout` of `hoplite.init`, or 300.
        rank: rank of this process in the trainer. Rank 0 publishes.
    """

    backend: ClassVar[str] = "hoplite"
    prefix: str = "policy/"
    retain: int = 2
    replicas: int = 1
    timeout: float | None = DEFAULT


class HopliteTrainerEngine(TrainerWeightTransferEngine[HopliteTrainerInitInfo]):
    """Publishes the weights of a trainer. Create it with vLLM's `WeightTransferTrainerFactory.trainer_init`.

    Args:
        client: client of the servers.
        source: the weights; vLLM's `ModuleSource` for a module.
        info: the other arguments.
    """

    init_info_cls = HopliteTrainerInitInfo

    def __init__(self, *, client: Any, source: Any, info: HopliteTrainerInitInfo) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender, rank=info.rank)
        self.info = info

    @classmethod
    def trainer_init(cls, init_info: HopliteTrainerInitInfo, *, client: Any, source: Any = None) -> Self:
        """Creates the engine of one rank. Rank 0 attaches to its node and checks that the servers have theirs.

        Raises:
            InvalidArgument: `source` is missing or has no full tensors, rank 0 does not own all of them, or the prefix
                is not valid.
        """
        if source is None or not source.implements_iter_full():
            raise InvalidArgument(
                f"{type(source).__name__} has no full tensors to publish: pass a source= that implements iter_full"
            )
        if init_info.is_sender:
            owned = source.owned_names(init_info.rank)
            if len(owned) != len(source.metadata):
                raise InvalidArgument(
                    f"rank 0 owns {len(owned)} of {len(source.metadata)} parameters: gather all of them on rank 0"
                )
            _policy.check_prefix(init_info.prefix)
            hoplite.client()
            client.init_weight_transfer_engine({})
        return cls(client=client, source=source, info=init_info)

    def send_weights(self) -> None:
        """Publishes the next version and makes the servers load it. Every rank of the trainer calls it.

        The servers keep serving while the weights are published.

        Raises:
            StoreFull: the store had no capacity in time.
            Timeout: the replicas were not complete in time.
        """
        weights = self.source.iter_full()
        if not self.is_sender:
            # To read the tensors of a sharded model is a collective call of all ranks.
            for _ in weights:
                pass
            return
        info = self.info
        name = _policy.next_name(info.prefix)
        timeout = limit(info.timeout, otherwise=300.0)
        _policy.publish_to_host_memory(weights, name, retain=info.retain, replicas=info.replicas, timeout=timeout)
        load(self.client, name, timeout=timeout)


def load(client: Any, name: str = "policy/", *, timeout: float | None = DEFAULT) -> str:
    """Makes a server load a published version, without the trainer: for a server that started late or again.

    Args:
        client: client of the server, such as vLLM's `HTTPVLLMWeightSyncClient("http://host:8000")`.
        name: name of a version, such as "policy/17", or a prefix, such as "policy/", for the newest one.
        timeout: seconds to wait for a version under the prefix, and for each worker to receive it.

    Returns:
        The name of the version, which the server also reports as its weight version.

    Raises:
        Timeout: no version existed in time.
    """
    timeout = limit(timeout, otherwise=300.0)
    version = _policy.newest_name(name, timeout)
    _policy.load(client, version, timeout, weight_version=version)
    return version
