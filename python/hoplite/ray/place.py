"""The Hoplite client of a Ray process: a driver, a task or an actor.

The module finds the supervisor and the keepers by their names, and does not depend on their implementation.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from hoplite import Client, ConnectError, HopliteError, connect
from hoplite.sockets import is_served

if TYPE_CHECKING:
    from collections.abc import Callable

# Namespace and name of this package's actors, separate from the actors of users.
NAMESPACE = "hoplite"
SUPERVISOR = "supervisor"

# Timeout of waits in the background, longer than any program: HOPLITE_TIMEOUT must not end them, and a wait without a
# timeout would be logged.
FOREVER_S = 1e8

# Interval between checks for a node that is starting.
POLL_S = 0.05


class _Kept:
    """The client of this process, and the Ray node for which it was created."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.node = ""
        self.path = ""


_kept = _Kept()


def check_connected() -> None:
    """Checks that this process is a member of a Ray cluster.

    Raises:
        ConnectError: the process is not connected to Ray, or only by Ray Client.
    """
    if not ray.is_initialized():
        raise ConnectError("this process is not connected to a Ray cluster: call ray.init() first")
    if ray.util.client.ray.is_connected():
        raise ConnectError(
            "this process is connected by Ray Client (ray://), from outside the cluster, without a Hoplite node: "
            "use hoplite.ray in tasks and actors, or in a driver on a host of the cluster"
        )


def supervisor() -> Any:
    """Returns the supervisor, the actor that manages the Hoplite nodes of this Ray cluster.

    Raises:
        ConnectError: there is no supervisor, or this process is not connected to Ray, or only by Ray Client.
    """
    check_connected()
    try:
        return ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
    except ValueError:
        raise ConnectError("Hoplite does not run in this Ray cluster: call hoplite.ray.start() in the driver") from None


def keeper_of(node: str) -> str:
    """Returns the name of the keeper, the actor that runs the Hoplite node of a Ray node.

    Args:
        node: the id of the Ray node.
    """
    return f"node-{node}"


def keeper() -> Any:
    """Returns the keeper of this process's Ray node.

    Raises:
        ConnectError: there is no keeper at the moment.
    """
    node = ray.get_runtime_context().get_node_id()
    try:
        return ray.get_actor(keeper_of(node), namespace=NAMESPACE)
    except ValueError:
        raise ConnectError(
            f"no Hoplite node serves Ray node {node}: it has ended, and its replacement is starting. Try again"
        ) from None


def facts(timeout: float = 30.0) -> dict[str, Any]:
    """Returns the facts of the supervisor: the Hoplite nodes, and the errors of missing ones.

    Args:
        timeout: seconds to wait for a failed supervisor that Ray restarts.

    Raises:
        ConnectError: there is no supervisor, or it does not reply.
    """
    try:
        return answer(supervisor, time.monotonic() + timeout, ray.exceptions.RayError)
    except ray.exceptions.RayError as error:
        raise ConnectError(f"the Hoplite supervisor of this Ray cluster does not reply: {error}") from None


def answer(find: Callable[[], Any], until: float, passing: type[BaseException]) -> dict[str, Any]:
    """Returns the facts of the supervisor that `find` returns; retries after temporary errors.

    Args:
        find: called before each attempt, because the supervisor may have been replaced.
        until: deadline by the monotonic clock, after which the last error is raised.
        passing: class of the temporary errors.

    Raises:
        ConnectError: raised by `find`.
        RayError: a permanent error, or the last temporary one.
    """
    while True:
        handle = find()
        try:
            known: dict[str, Any] = ray.get(handle.facts.remote(), timeout=max(0.1, until - time.monotonic()))
        except passing:
            if time.monotonic() >= until:
                raise
            time.sleep(POLL_S)
        else:
            return known


def client(timeout: float = 10.0) -> Client:
    """Returns the client of this process, attached to the Hoplite node of its Ray node.

    All threads of the process share this client. If the node fails, the client reconnects to its replacement; see
    `reconnect` of `hoplite.init`.

    Args:
        timeout: seconds to wait for a node that is starting.

    Raises:
        ConnectError: Hoplite does not run in this Ray cluster, or has no node for this Ray node; the message has the
            reason. Or this process is not connected to Ray, or only by Ray Client.
    """
    check_connected()
    node = ray.get_runtime_context().get_node_id()
    with _kept.lock:
        kept = _kept.client
        # A failed node leaves its socket for its replacement. A stopped node removes it.
        if kept is None or kept.closed or _kept.node != node or not Path(_kept.path).exists():
            if kept is not None:
                kept.close()
            _kept.client = None
            kept, _kept.path = _connect(node, time.monotonic() + timeout)
            _kept.client, _kept.node = kept, node
        return kept


def another(job: str | None = None) -> Client:
    """Returns a second client of this process, which the caller closes.

    Args:
        job: the job of its objects; they are deleted with the last client of the job.

    Raises:
        ConnectError: see `client`.
    """
    client()
    return connect(f"unix:{_kept.path}", job=job)


def socket_of(node: str, until: float) -> str:
    """Returns the socket of the Hoplite node of a Ray node on this host; waits for a node that is starting.

    Args:
        node: the id of the Ray node.
        until: deadline by the monotonic clock.

    Raises:
        ConnectError: there is no node; the message has the reason.
    """
    while True:
        known = facts()
        found = known["nodes"].get(node)
        if found is not None and is_served(found["socket"]):
            return str(found["socket"])
        if time.monotonic() >= until:
            _, why = known["problems"].get(
                node, ("", "it has not started yet, or its socket is not on this host. Try again")
            )
            raise ConnectError(f"no Hoplite node serves Ray node {node}: {why}")
        time.sleep(POLL_S)


def forget() -> None:
    """Closes the client of this process."""
    with _kept.lock:
        if _kept.client is not None:
            _kept.client.close()
        _kept.client, _kept.node = None, ""


def _connect(node: str, until: float) -> tuple[Client, str]:
    while True:
        path = socket_of(node, until)
        try:
            return connect(f"unix:{path}", timeout=max(0.0, until - time.monotonic()), reconnect=True), path
        except HopliteError:
            # The node may have failed after `socket_of` found it.
            if time.monotonic() >= until:
                raise
