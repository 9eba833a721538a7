"""Where a process of Ray finds its node of Hoplite: the client of a driver, a task or an actor.

Knows the supervisor by its name, and not what it does.
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

# Of the actors of this package, beside those of users.
NAMESPACE = "hoplite"
SUPERVISOR = "supervisor"

# Between two looks for a node that is starting.
POLL_S = 0.05


class _Kept:
    """The client of this process, and the Ray node for which it was made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: Client | None = None
        self.node = ""
        self.path = ""


_kept = _Kept()


def check_connected() -> None:
    """Checks that this process takes part in a Ray cluster.

    Raises:
        ConnectError: it is not connected to Ray, or only by Ray Client.
    """
    if not ray.is_initialized():
        raise ConnectError("this process is not connected to a Ray cluster: call ray.init() first")
    if ray.util.client.ray.is_connected():
        raise ConnectError(
            "this process is connected by Ray Client (ray://), from outside of the cluster, where no node of Hoplite "
            "is: use hoplite.ray in tasks and actors, or in a driver on a host of the cluster"
        )


def supervisor() -> Any:
    """The actor that looks after the nodes of this Ray cluster.

    Raises:
        ConnectError: there is none, or this process is not connected to Ray, or only by Ray Client.
    """
    check_connected()
    try:
        return ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
    except ValueError:
        raise ConnectError("Hoplite does not run in this Ray cluster: call hoplite.ray.start() in the driver") from None


def keeper_of(node: str) -> str:
    """The name of the actor that keeps the node of a Ray node.

    Args:
        node: the id of the Ray node.
    """
    return f"node-{node}"


def keeper() -> Any:
    """The actor that keeps the node of this process's Ray node.

    Raises:
        ConnectError: there is none at the moment.
    """
    node = ray.get_runtime_context().get_node_id()
    try:
        return ray.get_actor(keeper_of(node), namespace=NAMESPACE)
    except ValueError:
        raise ConnectError(
            f"no node of Hoplite serves Ray node {node}: it has ended, and the next is not there yet"
        ) from None


def facts(timeout: float = 30.0) -> dict[str, Any]:
    """What the supervisor knows of the nodes.

    Args:
        timeout: seconds to wait for a supervisor that has died and is not back yet.

    Raises:
        ConnectError: there is no supervisor, or it does not answer.
    """
    try:
        return answer(supervisor, time.monotonic() + timeout, ray.exceptions.RayError)
    except ray.exceptions.RayError as error:
        raise ConnectError(f"the supervisor of Hoplite in this Ray cluster does not answer: {error}") from None


def answer(find: Callable[[], Any], until: float, passing: type[BaseException]) -> dict[str, Any]:
    """What the supervisor that `find` gives knows of the nodes; it is asked again after errors that pass.

    Args:
        find: called before each question, since another may have taken its place.
        until: of the monotonic clock; the last error is raised then.
        passing: errors of this class pass.

    Raises:
        ConnectError: what `find` raises.
        RayError: one that does not pass, or the last one.
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
    """The client of this process, attached to the node that `start` runs for this process's Ray node.

    The process has one, which all of its threads share. When the node dies, the client goes on with the next one that
    `start` runs in its place; see `reconnect` of `hoplite.init`.

    Args:
        timeout: seconds to wait for a node that is starting.

    Raises:
        ConnectError: Hoplite does not run in this Ray cluster, or has no node for this Ray node; says why. Or this
            process is not connected to Ray, or only by Ray Client.
    """
    check_connected()
    node = ray.get_runtime_context().get_node_id()
    with _kept.lock:
        kept = _kept.client
        # The socket of one that has died is there until the next has it; of one that was stopped it is not.
        if kept is None or kept.closed or _kept.node != node or not Path(_kept.path).exists():
            if kept is not None:
                kept.close()
            _kept.client = None
            kept, _kept.path = _connect(node, time.monotonic() + timeout)
            _kept.client, _kept.node = kept, node
        return kept


def another(job: str | None = None) -> Client:
    """A client beside that of this process, for what is to end by itself; the caller closes it.

    Args:
        job: what its objects are of; they are deleted with the last client of the job.

    Raises:
        ConnectError: as `client`.
    """
    client()
    return connect(f"unix:{_kept.path}", job=job)


def socket_of(node: str, until: float) -> str:
    """The socket at which a node of this host serves; waits for one that is starting.

    Args:
        node: the id of the Ray node.
        until: when to give up, by the monotonic clock.

    Raises:
        ConnectError: there is none; says why.
    """
    while True:
        known = facts()
        found = known["nodes"].get(node)
        if found is not None and is_served(found["socket"]):
            return str(found["socket"])
        if time.monotonic() >= until:
            _, why = known["problems"].get(node, ("", "it has not started yet, or Hoplite is not of this host"))
            raise ConnectError(f"no node of Hoplite serves Ray node {node}: {why}")
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
            # It may have died between the look and the call.
            if time.monotonic() >= until:
                raise
