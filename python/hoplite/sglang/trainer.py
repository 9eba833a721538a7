"""What a trainer calls: publishes its weights, and makes SGLang servers load them. Does not know models."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from hoplite import _policy
from hoplite._timeouts import DEFAULT, limit
from hoplite.sglang.server import Server, check_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

logger = logging.getLogger("hoplite.sglang")


class HopliteWeightTransfer(_policy.Transfer):
    """Publishes the weights of a trainer and makes SGLang servers load them. Servers may come and go.

    Args:
        servers: base URLs of the servers, or a function that returns them. The function is called before each update.
        prefix: prefix of the names of versions: "policy/" for "policy/17".
        retain: number of newest versions to retain.
        replicas: number of hosts that have a copy before the servers pause. With at least the number of hosts, each
            server loads from its own memory, and pauses only for that.
        mode: what a pause does with running requests, as in SGLang: "retract" computes their caches again with the new
            weights, "in_place" goes on with the old ones, "abort" returns what they have.
        api_key: admin key of the servers, or their key; None if they have none.
        timeout: seconds for the publication, and for each rank to receive it. None waits without limit. The default
            is `default_timeout` of `hoplite.init`, or 300.

    Raises:
        InvalidArgument: the prefix or the mode is not valid.
    """

    def __init__(
        self,
        servers: Iterable[str] | Callable[[], Iterable[str]],
        *,
        prefix: str = "policy/",
        retain: int = 2,
        replicas: int = 1,
        mode: str = "retract",
        api_key: str | None = None,
        timeout: float | None = DEFAULT,
    ) -> None:
        check_mode(mode)
        super().__init__(
            logger,
            partial(Server, mode=mode, api_key=api_key),
            servers,
            prefix=prefix,
            retain=retain,
            replicas=replicas,
            timeout=timeout,
        )

    def send_weights(self, weights: Any) -> str | None:
        """Publishes the weights as the next version, then pauses, updates and resumes all servers at once.

        With DTensors, as from FSDP2, all ranks of the default process group call it, and each publishes what it has.
        Without them, one rank calls it. A server that fails is left out with a warning and stays paused. It gets the
        newest version at the next update.

        Args:
            weights: a module or a mapping; or pairs of a name and a tensor, which are copied as they come. Names are
                those of the checkpoint that the servers loaded.

        Returns:
            The name of the version, which the servers report as their weight version; None on ranks other than 0 of a
            trainer that shards.

        Raises:
            HopliteError: no server has loaded the version.
            StoreFull: the store had no capacity in time.
        """
        return self.send(weights)


def load(
    server: str,
    name: str = "policy/",
    *,
    mode: str = "retract",
    api_key: str | None = None,
    timeout: float | None = DEFAULT,
) -> str:
    """Makes a server load a published version, without the trainer: for a server that started late or again.

    The server pauses, loads and resumes. After an error it stays paused.

    Args:
        server: base URL of the server, such as "http://host:30000".
        name: name of a version, such as "policy/17", or a prefix, such as "policy/", for the newest one.
        mode: what the pause does with running requests, as for `HopliteWeightTransfer`.
        api_key: admin key of the server, or its key; None if it has none.
        timeout: seconds to wait for a version under the prefix, and for each rank to receive it.

    Returns:
        The name of the version, which the server also reports as its weight version.

    Raises:
        HopliteError: a rank has not loaded it. The message states what the weights are then.
        InvalidArgument: the URL or the mode is not valid.
        Timeout: no version existed in time.
    """
    found = limit(timeout, otherwise=_policy.TIMEOUT_S)
    version = _policy.newest_name(name, found)
    called = Server(server, mode, api_key)
    called.pause()
    _policy.load(called, version, found)
    called.resume()
    return version
