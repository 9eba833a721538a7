"""Versions of a policy: a trainer publishes the next one, and vLLM servers load it.

Shared by the integrations of vLLM, TRL and verl. Owns the numbering of versions and the order of the calls to a server.
Does not know vLLM, TRL or verl; a server is any object with the methods of `Server`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import hoplite
from hoplite.errors import InvalidArgument, Timeout
from hoplite.torch import publish
from hoplite.torch.weights.wrappers import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterable


class Server(Protocol):
    """What is called on a vLLM server: vLLM's `VLLMWeightSyncClient` and TRL's `VLLMClient` have these methods."""

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


def publish_to_host_memory(
    weights: Iterable[tuple[str, Any]], name: str, *, retain: int, replicas: int, timeout: float | None
) -> int:
    """Publishes pairs of a name and a tensor. Returns their size in bytes.

    Each tensor is copied before the next is requested: a sharded model is never whole on one device, and the store
    alone holds the version. The loaders of servers do not know prefixes of wrappers in names, such as "_orig_mod.".
    After an error the rest is requested: to read a sharded model is a collective call, and other ranks would hang.
    """
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
