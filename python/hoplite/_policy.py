"""Versions of a policy: a trainer publishes the next one, and servers load it.

Shared by the integrations of vLLM, SGLang, TRL and verl. Owns the numbering of versions and the order of the calls to a
server. Knows none of them; a server is any object with the methods of `Server`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import hoplite
from hoplite._timeouts import limit
from hoplite.errors import HopliteError, InvalidArgument, Timeout
from hoplite.torch import publish
from hoplite.torch.weights.sharding import has_sharded, is_elsewhere
from hoplite.torch.weights.sources import is_read_once
from hoplite.torch.weights.wrappers import plain_name

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator

# How long a server receives a version at most, without another timeout.
TIMEOUT_S = 300.0


class Server(Protocol):
    """What is called on a server: vLLM's `VLLMWeightSyncClient` and TRL's `VLLMClient` have these methods."""

    def start_weight_update(self) -> None:
        """Begins an update of the weights."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Makes the workers of the server receive the weights."""

    def finish_weight_update(self) -> None:
        """Ends the update."""


def check_prefix(prefix: str) -> str:
    """Returns a prefix of names of versions.

    Raises:
        InvalidArgument: it does not end in "/".
    """
    if not prefix.endswith("/") or prefix.startswith("@") or prefix == "/":
        raise InvalidArgument(f'prefix {prefix!r} is not valid: end it with "/", as in "policy/"')
    return prefix


def next_name(prefix: str) -> str:
    """Returns the name of the version after the newest one in the cluster, such as "policy/18".

    A restarted trainer therefore continues with the numbers of the one before it.
    """
    try:
        newest = hoplite.client().latest(prefix, timeout=0).number
    except Timeout:
        newest = None
    return f"{prefix}{1 if newest is None else newest + 1}"


def newest_name(name: str, timeout: float | None) -> str:
    """Returns the name of a version: of the newest one if the name ends in "/"."""
    return str(hoplite.client().latest(name, timeout=timeout)) if name.endswith("/") else name


def publish_to_host_memory(weights: Any, name: str, *, retain: int, replicas: int, timeout: float | None) -> int:
    """Publishes pairs of a name and a tensor, a mapping, or a module. Returns their size in bytes.

    Of pairs, each tensor is copied before the next is requested: a sharded model is never whole on one device, and the
    store alone holds the version. The loaders of servers do not know prefixes of wrappers, such as "_orig_mod.". After
    an error the rest is requested: to read a sharded model is a collective call, and other ranks would hang.
    """
    if not is_read_once(weights):
        return int(publish(weights, name, retain=retain, replicas=replicas, timeout=timeout).nbytes)
    left = iter(weights)
    named = ((plain_name(name), tensor) for name, tensor in left)
    try:
        return int(publish(named, name, retain=retain, replicas=replicas, timeout=timeout).nbytes)
    except Exception:
        for _ in left:
            pass
        raise


def load(server: Server, name: str, timeout: float | None, **finish: Any) -> None:
    """Makes a server load a version.

    Args:
        server: the server.
        name: name of the version, such as "policy/17".
        timeout: seconds that each worker waits for the version.
        finish: arguments of its `finish_weight_update`.
    """
    server.start_weight_update()
    try:
        server.update_weights({"name": name, "timeout": timeout})
    except BaseException:
        # Workers that succeeded still have an open update, which would reject the next one.
        with contextlib.suppress(Exception):
            server.finish_weight_update()
        raise
    server.finish_weight_update(**finish)


def publish_sharded(weights: Any, prefix: str, *, retain: int, replicas: int, timeout: float | None) -> str | None:
    """Publishes the next version of a module or mapping with DTensors. All ranks call it at the same time.

    Each rank copies what it has into the store of its host; nothing is gathered.

    Returns:
        The name of the version on rank 0, which makes the servers load it; None on other ranks.
    """
    import torch.distributed as dist

    rank = dist.get_rank()
    # Rank 0 alone looks for the newest version, which another rank could see later.
    agreed: list[Any] = [None, None]
    if rank == 0:
        try:
            agreed[0] = next_name(prefix)
        except Exception as error:  # noqa: BLE001 - the others would wait for the name
            agreed[1] = f"rank 0 can't publish: {error}"
    dist.broadcast_object_list(agreed, src=0)
    name, problem = agreed
    if problem is not None:
        raise HopliteError(problem)
    if isinstance(weights, Mapping):
        # Pipelines and experts: this rank is not in the meshes of all of them.
        weights = {name: tensor for name, tensor in weights.items() if not is_elsewhere(tensor)}
    publish(weights, name, retain=retain, replicas=replicas, timeout=timeout)
    return name if rank == 0 else None


class Transfer:
    """Publishes the weights of a trainer and makes servers load them, while servers come and go.

    Args:
        logger: gets a warning for each server that fails.
        connect: returns the client of a server, given its URL. It has the methods of `Server`, `pause` and `resume`.
        servers: URLs of the servers, or a function that returns them before each update.
        prefix: prefix of the names of versions: "policy/" for "policy/17".
        retain: number of newest versions to retain.
        replicas: number of hosts that have a copy before the servers pause.
        timeout: seconds for the publication, and for each worker to receive it.

    Raises:
        InvalidArgument: the prefix or the servers are not valid.
    """

    def __init__(
        self,
        logger: logging.Logger,
        connect: Callable[[str], Any],
        servers: Iterable[str] | Callable[[], Iterable[str]],
        *,
        prefix: str,
        retain: int,
        replicas: int,
        timeout: float | None,
    ) -> None:
        if isinstance(servers, str):
            raise InvalidArgument(f"servers is the text {servers!r}: pass a list of URLs")
        self._servers = servers if callable(servers) else list(servers).copy
        self._logger = logger
        self._connect = connect
        self.prefix = check_prefix(prefix)
        self.retain = retain
        self.replicas = replicas
        self.timeout = timeout

    def clients(self) -> Iterator[Any]:
        """Yields the client of each server."""
        for url in self._servers():
            yield self._connect(url)

    def send(self, weights: Any) -> str | None:
        """Publishes weights as the next version, then pauses, updates and resumes all servers at once.

        Args:
            weights: pairs of a name and a tensor; or a module or a mapping, with DTensors on each rank that has a part.

        Returns:
            The name of the version; None on ranks other than 0 of a sharded trainer, which call no server.

        Raises:
            HopliteError: no server has loaded the version.
            StoreFull: the store had no capacity in time.
        """
        timeout = limit(self.timeout, otherwise=TIMEOUT_S)
        name: str | None
        if has_sharded(weights):
            name = publish_sharded(weights, self.prefix, retain=self.retain, replicas=self.replicas, timeout=timeout)
            if name is None:
                return None
        else:
            name = next_name(self.prefix)
            publish_to_host_memory(weights, name, retain=self.retain, replicas=self.replicas, timeout=timeout)
        self.update(name, timeout)
        return name

    def update(self, name: str, timeout: float | None) -> None:
        """Makes all servers load a version at once. One that fails stays paused, until an update succeeds."""
        urls = list(self._servers())

        def one(url: str) -> Exception | None:
            try:
                server = self._connect(url)
                server.pause()
                load(server, name, timeout)
                server.resume()
            except Exception as error:  # noqa: BLE001 - whatever a server or the network raises concerns this server only
                return error
            return None

        with ThreadPoolExecutor(max(1, len(urls))) as threads:
            errors = list(threads.map(one, urls))
        failed = {url: error for url, error in zip(urls, errors, strict=True) if error is not None}
        if urls and len(failed) == len(urls):
            raise HopliteError(f"no server has loaded {name} ({failed}): start a server, or check their logs")
        for url, error in failed.items():
            self._logger.warning("server %s has not loaded %s: %s", url, name, error)
