"""Weight transfer of TRL's AsyncGRPOTrainer: publishes the policy and makes vLLM servers load it.

    trainer = AsyncGRPOTrainer(..., weight_transfer=HopliteWeightTransfer(["http://host:8000"]))

The servers run vLLM with `VLLM_SERVER_DEV_MODE=1` and `--weight-transfer-config '{"backend": "hoplite"}'`. The trainer
needs no vLLM and no NCCL. Does not know the trainer. It needs the extra `trl`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import hoplite
from hoplite._policy import Transfer
from hoplite._timeouts import DEFAULT
from hoplite.errors import PackageMissing
from hoplite.extras import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

logger = logging.getLogger("hoplite.trl")


try:
    from trl.experimental.async_grpo.vllm_client import VLLMClient
except ImportError as error:
    raise PackageMissing(f"hoplite.trl needs TRL 1.16 ({error}): run {install('trl')}") from None


class HopliteWeightTransfer(Transfer):
    """Publishes the weights of TRL's trainer; implements its `WeightTransferProtocol`.

    Args:
        servers: base URLs of the vLLM servers, or a function that returns them. The function is called before each
            update: servers may come and go.
        prefix: prefix of the names of versions: "policy/" for "policy/17".
        retain: number of newest versions to retain.
        replicas: number of hosts that have a copy before the servers pause. With at least the number of hosts, each
            server loads from its own memory, and pauses only for that.
        timeout: seconds for the publication, and for each worker to receive it. None waits without limit. The
            default is `default_timeout` of `hoplite.init`, or 300.

    Raises:
        InvalidArgument: the prefix is not valid.
    """

    def __init__(
        self,
        servers: Iterable[str] | Callable[[], Iterable[str]],
        *,
        prefix: str = "policy/",
        retain: int = 2,
        replicas: int = 1,
        timeout: float | None = DEFAULT,
    ) -> None:
        super().__init__(logger, VLLMClient, servers, prefix=prefix, retain=retain, replicas=replicas, timeout=timeout)

    def init_weight_transfer(self) -> None:
        """Attaches to the node of this host, waits for the servers and checks that they have their nodes.

        Raises:
            TimeoutError: a server did not start in time.
        """
        hoplite.client()
        for server in self.clients():
            server.wait_for_server_ready()
            server.init_weight_transfer_engine({})

    def pause(self) -> None:
        """Does nothing: `send_weights` pauses each server once the weights are published."""

    def resume(self) -> None:
        """Does nothing: `send_weights` resumes each server."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publishes the weights as the next version, then pauses, updates and resumes all servers at once.

        A server that fails is left out with a warning, and gets the newest version at the next update.

        Args:
            iterator: pairs of a name and a tensor.

        Raises:
            HopliteError: no server has loaded the version.
            StoreFull: the store had no capacity in time.
        """
        self.send(iterator)

    def destroy(self) -> None:
        """Does nothing: the versions stay, so that servers and a restarted trainer find them."""
