"""The engine in a trainer: publishes the next version, then makes the servers load it. Does not know their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer.base import ModuleSource, TrainerInitInfo, TrainerWeightTransferEngine

import hoplite
from hoplite import _policy
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import InvalidArgument
from hoplite.torch.weights.sharding import has_sharded
from hoplite.torch.weights.wrappers import plain_name

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
        rank: rank of this process in the trainer. Rank 0 publishes, unless the module has DTensors: then every rank
            publishes its part.
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
        sharded = _sharded(source)
        if source is None or not source.implements_iter_full():
            raise InvalidArgument(
                f"{type(source).__name__} has no full tensors to publish: pass a source= that implements iter_full"
            )
        if sharded is not None:
            # Every rank publishes, so each needs a node.
            hoplite.client()
        if init_info.is_sender:
            owned = source.owned_names(init_info.rank)
            if sharded is None and len(owned) != len(source.metadata):
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
        info = self.info
        timeout = limit(info.timeout, otherwise=_policy.TIMEOUT_S)
        options: dict[str, Any] = {"retain": info.retain, "replicas": info.replicas, "timeout": timeout}
        sharded = _sharded(self.source)
        name: str | None
        if sharded is not None:
            name = _policy.publish_sharded(sharded, info.prefix, **options)
        elif self.is_sender:
            name = _policy.next_name(info.prefix)
            _policy.publish_to_host_memory(self.source.iter_full(), name, **options)
        else:
            # To read the tensors of a sharded model is a collective call of all ranks.
            for _ in self.source.iter_full():
                pass
            name = None
        if name is not None:
            load(self.client, name, timeout=timeout)


def _sharded(source: Any) -> dict[str, Any] | None:
    """Returns what this rank has of the module of a source, if it has DTensors, so that nothing has to be gathered."""
    if not isinstance(source, ModuleSource) or type(source).iter_full is not ModuleSource.iter_full:
        return None
    found = {plain_name(name): tensor for name, tensor in source._module.named_parameters()}
    return found if has_sharded(found) else None


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
    timeout = limit(timeout, otherwise=_policy.TIMEOUT_S)
    version = _policy.newest_name(name, timeout)
    _policy.load(client, version, timeout, weight_version=version)
    return version
