"""A checkpoint engine of verl: the actor publishes its weights, and rollout workers fetch them.

Configure it with `checkpoint_engine.backend=hoplite` and `checkpoint_engine.custom_backend_module=hoplite.verl`;
importing the module registers it. Rollout workers of one host read the same copy in shared memory. Does not know models
or servers. It needs the extra `verl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hoplite
from hoplite import _held, _policy
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import HopliteError, PackageMissing
from hoplite.extras import install

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable


try:
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
    from verl.utils.device import get_device_name, get_torch_device
except ImportError as error:
    raise PackageMissing(f"hoplite.verl needs verl 0.9.1 ({error}): run {install('verl')}") from None


@CheckpointEngineRegistry.register("hoplite")
class HopliteCheckpointEngine(CheckpointEngine):
    """Transfers weights by name. verl creates it in each worker, with `engine_kwargs.hoplite` as its options.

    Workers agree on nothing but the name of the version, so the number of rollout workers may change at every update.

    Args:
        bucket_size: not used; verl passes it to every engine.
        is_master: whether this is rank 0 of the actor, which publishes.
        prefix: prefix of the names of versions: "policy/" for "policy/17".
        retain: number of newest versions to retain.
        replicas: number of hosts that keep a copy.
        timeout: seconds for the publication, and for each worker to receive it. None waits without limit. The
            default is `default_timeout` of `hoplite.init`, or 600.

    Raises:
        InvalidArgument: the prefix is not valid.
    """

    def __init__(
        self,
        bucket_size: int = 0,  # noqa: ARG002 - verl passes it
        is_master: bool = False,
        prefix: str = "policy/",
        retain: int = 2,
        replicas: int = 1,
        timeout: float | None = DEFAULT,
    ) -> None:
        self.is_master = is_master
        self.prefix = _policy.check_prefix(prefix)
        self.retain = retain
        self.replicas = replicas
        self.timeout = timeout
        self.name: str | None = None

    def prepare(self) -> dict[str, str]:
        """Attaches to the node of this host. The master also chooses the name of the next version."""
        hoplite.client()
        return {"name": _policy.next_name(self.prefix)} if self.is_master else {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, str]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Distributes the name that the master chose.

        Args:
            actor_wg_world_size: number of workers of the actor.
            rollout_world_size: number of rollout workers at this update.
            metadata: results of `prepare` of all workers, that of the master first.
        """
        if "name" not in metadata[0]:
            raise HopliteError("rank 0 of the actor is not the master: create its engine with is_master=True")
        name = metadata[0]["name"]
        return {"name": [name] * actor_wg_world_size}, {"name": [name] * rollout_world_size}

    def init_process_group(self, name: str) -> None:
        """Notes the name of the version of this update. There is no group."""
        self.name = name

    def finalize(self) -> None:
        """Ends the update."""
        self.name = None

    def _limit(self) -> float | None:
        return limit(self.timeout, otherwise=600.0)

    def _named(self) -> str:
        if self.name is None:
            raise HopliteError("this update has no version: call prepare, build_topology and init_process_group first")
        return self.name

    async def send_weights(
        self,
        weights: Iterable[tuple[str, Any]],
        global_steps: int | None = None,  # noqa: ARG002 - numbers of steps go back when a run resumes
    ) -> dict[str, float] | None:
        """Publishes the weights. Every worker of the actor calls it; the master publishes.

        Args:
            weights: pairs of a name and a tensor.
            global_steps: not used: the version is one above the newest in the cluster.

        Returns:
            Metrics of this update, on the master.

        Raises:
            StoreFull: the store had no capacity in time.
        """
        if not self.is_master:
            # To read the tensors of a sharded model is a collective call of all workers.
            for _ in weights:
                pass
            return None
        # In this thread: the current device and stream belong to it.
        nbytes = _policy.publish_to_host_memory(
            weights, self._named(), retain=self.retain, replicas=self.replicas, timeout=self._limit()
        )
        return {"hoplite/bytes": float(nbytes), "hoplite/version": float(self._named().rpartition("/")[2])}

    async def receive_weights(
        self,
        global_steps: int | None = None,  # noqa: ARG002 - the version has a name
    ) -> AsyncIterator[tuple[str, Any]]:
        """Waits for the version of this update and yields pairs of a name and a tensor, on the device of the worker.

        Args:
            global_steps: not used.

        Raises:
            Timeout: the version was not here in time.
        """
        version = await _held.Held.arrived(self._named(), self._limit())
        # On a host without devices, verl names that of CUDA.
        device = get_device_name() if get_torch_device().is_available() else "cpu"
        for pair in version.tensors(device):
            yield pair
