"""`start`, `stop` and `status`: one Hoplite node per Ray node, including Ray nodes that join later.

The functions create and call the supervisor, which starts the nodes.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import ray

import hoplite
from hoplite import ConnectError, HopliteError, InvalidArgument
from hoplite.ray import place
from hoplite.ray._versions import NodeAffinitySchedulingStrategy, unknown
from hoplite.ray.supervisor import Supervisor
from hoplite.sizes import check_capacity

if TYPE_CHECKING:
    from typing import Self

# A resource of the head node of a Ray cluster.
HEAD = "node:__internal_head__"

# Concurrent calls of the supervisor: more than group members call at once. Each call takes less than a millisecond.
CONCURRENCY = 16

PORT_MAX = 65535


class Cluster:
    """The Hoplite nodes of a Ray cluster, returned by `start`. As a context manager, it stops them on exit."""

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """The "address", "socket", "id" and "pid" of each Hoplite node, by the id of its Ray node.

        Raises:
            ConnectError: Hoplite does not run in this Ray cluster any more.
        """
        found: dict[str, dict[str, Any]] = place.facts()["nodes"]
        return found

    def stop(self) -> None:
        """Stops the nodes; see `hoplite.ray.stop`."""
        stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop()


def start(memory: int | str | None = None, *, port: int | None = None, timeout: float = 60.0) -> Cluster:
    """Runs a Hoplite node for each node of the Ray cluster that this process is connected to.

    On each Ray node, an actor runs the Hoplite node. A supervisor, an actor on the head node of the Ray cluster, starts
    nodes on Ray nodes that join later, and replaces failed ones. The nodes run until `stop` or until the end of the
    Ray cluster: they outlive the driver. They authenticate each other with a secret that the supervisor generates.

    A second call, by this driver or another, returns the running cluster.

    Args:
        memory: capacity of each node's store, in bytes or as text such as "8GiB". Memory is taken as objects arrive.
            The default is the size of Ray's own object store on that Ray node.
        port: TCP port of each node. The default is any free port. A number is used on all Ray nodes, so no two Ray
            nodes may share a host.
        timeout: seconds to wait until each Ray node has its Hoplite node.

    Raises:
        AddressInUse: another process uses the port; the message names the Ray node.
        ConnectError: this process is not connected to Ray, or only by Ray Client, or some nodes did not start in time.
        HopliteError: a node can't start; the message names the Ray node and the reason.
        InvalidArgument: an argument is not valid, or Hoplite runs already with another memory or port.
    """
    if memory is not None:
        check_capacity(memory)
    if port is not None and not 0 <= port <= PORT_MAX:
        raise InvalidArgument(f"port {port!r} is not valid: use a number from 0 to {PORT_MAX}")
    place.check_connected()
    name = f"ray-{uuid.uuid4().hex[:12]}"
    handle = (
        ray.remote(Supervisor)
        .options(
            name=place.SUPERVISOR,
            namespace=place.NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=CONCURRENCY,
            scheduling_strategy=NodeAffinitySchedulingStrategy(_head(), soft=False),
        )
        .remote(name, memory, port or 0)
    )
    until = time.monotonic() + timeout
    found = _facts(handle, until)
    is_new = found["cluster"] == name
    if not is_new:
        _refuse(found, memory, port)
    try:
        _wait(handle, until, everywhere=is_new)
    except BaseException:
        if is_new:
            _end(handle)
        raise
    return Cluster()


def stop() -> None:
    """Stops the Hoplite nodes of this Ray cluster and deletes all objects. Without nodes, it does nothing.

    Arrays that this process got stay valid.

    Raises:
        ConnectError: this process is connected only by Ray Client.
    """
    if not ray.is_initialized():
        place.forget()
        return
    place.check_connected()
    try:
        handle = place.supervisor()
    except ConnectError:
        place.forget()
        return
    place.forget()
    _end(handle)


def status() -> dict[str, Any]:
    """Returns the state of the Hoplite nodes of this Ray cluster.

    Returns:
        A dict of "cluster", the name of the Hoplite cluster; "memory" and "port", the arguments of `start`; "nodes",
        the "address", "socket", "id" and "pid" of each Hoplite node, by the id of its Ray node; and "problems", the
        class and the text of the error for each Ray node without one, by its id.

    Raises:
        ConnectError: Hoplite does not run in this Ray cluster.
    """
    return place.facts()


def _head() -> str:
    for node in ray.nodes():
        if node["Alive"] and HEAD in node["Resources"]:
            return str(node["NodeID"])
    raise unknown(f"has no node with the resource {HEAD}")


def _refuse(found: dict[str, Any], memory: int | str | None, port: int | None) -> None:
    """Raises InvalidArgument for arguments that would have no effect."""
    for what, wanted in (("memory", memory), ("port", port)):
        is_same = wanted == found[what]
        if what == "memory" and wanted is not None and found[what] is not None:
            is_same = check_capacity(wanted) == check_capacity(found[what])
        if wanted is not None and not is_same:
            raise InvalidArgument(
                f"{what} {wanted!r} would have no effect: Hoplite already runs in this Ray cluster with "
                f"{what} {found[what]!r}. Omit {what}, or call hoplite.ray.stop() first"
            )


def _facts(handle: Any, until: float) -> dict[str, Any]:
    """Returns the facts of a supervisor; waits until Ray has restarted a failed one.

    Raises:
        ConnectError: the supervisor did not start in time.
    """
    try:
        return place.answer(lambda: handle, until, ray.exceptions.ActorUnavailableError)
    except ray.exceptions.RayError as error:
        raise ConnectError(f"the Hoplite supervisor can't start: {error}") from None


def _wait(handle: Any, until: float, *, everywhere: bool) -> None:
    """Waits for the Hoplite nodes of all Ray nodes, or only for that of this process's Ray node."""
    while True:
        known = _facts(handle, until)
        if everywhere:
            wanted = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        else:
            wanted = {ray.get_runtime_context().get_node_id()}
        for node in sorted(wanted & known["problems"].keys()):
            raise _problem(node, *known["problems"][node])
        missing = sorted(wanted - known["nodes"].keys())
        if not missing:
            return
        if time.monotonic() >= until:
            raise ConnectError(
                f"no Hoplite node started in time on the Ray nodes {', '.join(missing)}: increase the timeout"
            )
        time.sleep(place.POLL_S)


def _problem(node: str, kind: str, text: str) -> HopliteError:
    """Returns the error that a keeper raised, with the Ray node in its message."""
    address = next((each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == node), "unknown address")
    known = getattr(hoplite.errors, kind, HopliteError)
    if not (isinstance(known, type) and issubclass(known, HopliteError)):
        known = HopliteError
    error = known(f"Hoplite can't run on Ray node {node} ({address}): {text}")
    assert isinstance(error, HopliteError)
    return error


def _end(handle: Any) -> None:
    try:
        ray.get(handle.stop.remote(), timeout=90)
    except ray.exceptions.RayError:
        # Another call has ended it.
        return
    ray.kill(handle)
    # The name is free only when its actor has ended. Otherwise a following `start` would find the old actor.
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if ray.get_actor(place.SUPERVISOR, namespace=place.NAMESPACE) != handle:
                return
        except ValueError:
            return
        time.sleep(place.POLL_S)
