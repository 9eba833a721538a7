"""`start` and `stop`: a Hoplite node for each node of a Ray cluster, those that join later too.

Knows the supervisor, which does it.
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

# In the resources of the node that holds the head of a cluster.
HEAD = "node:__internal_head__"

# More than members of groups that ask at once; each question takes less than a millisecond.
CONCURRENCY = 16

PORT_MAX = 65535


class Cluster:
    """The Hoplite nodes of a Ray cluster, from `start`. As a context manager it stops them at the end of the block."""

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """By the id of each Ray node the "address", "socket", "id" and "pid" of its Hoplite node.

        Raises:
            ConnectError: Hoplite does not run in this Ray cluster any more.
        """
        found: dict[str, dict[str, Any]] = place.facts()["nodes"]
        return found

    def stop(self) -> None:
        """See `hoplite.ray.stop`."""
        stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop()


def start(memory: int | str | None = None, *, port: int | None = None, timeout: float = 60.0) -> Cluster:
    """Runs a Hoplite node for each node of the Ray cluster that this process is connected to.

    An actor keeps the node of each Ray node. A supervisor, an actor beside the head of the Ray cluster, starts those of
    Ray nodes that join later, and a new one where one has died. The nodes live until `stop`, or as long as the
    Ray cluster: they outlive the driver. They know each other by a secret that the supervisor makes.

    A second call, of this driver or another, returns what runs.

    Args:
        memory: most bytes of each node's store, a number or text such as "8GiB"; it is taken as objects come. The
            default is as much as Ray gives its own object store on that Ray node.
        port: TCP port of each node for the others. The default is any free one; a number is one for all, so no two Ray
            nodes may share a host.
        timeout: seconds to wait until each Ray node has its node.

    Raises:
        AddressInUse: another process has the port; names the Ray node.
        ConnectError: this process is not connected to Ray, or only by Ray Client, or not all nodes were there in time.
        HopliteError: a node can't start; names the Ray node, and says why.
        InvalidArgument: an argument makes no sense, or Hoplite runs already, with another memory or port.
    """
    if memory is not None:
        check_capacity(memory)
    if port is not None and not 0 <= port <= PORT_MAX:
        raise InvalidArgument(f"port is {port!r}; it is a number from 0 to {PORT_MAX}")
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
    """Ends the Hoplite nodes of this Ray cluster and with them all objects; none is fine.

    Arrays that this process has got stay valid.

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
    """Tells what Hoplite has on which Ray node.

    Returns:
        "cluster", the name of the Hoplite cluster; "memory" and "port", as `start` was told; "nodes", by the id of the
        Ray node the "address", "socket", "id" and "pid" of its Hoplite node; "problems", by the id of each Ray
        node without one the class and the text of the error.

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
    """Refuses arguments that would have no effect."""
    for what, wanted in (("memory", memory), ("port", port)):
        is_same = wanted == found[what]
        if what == "memory" and wanted is not None and found[what] is not None:
            is_same = check_capacity(wanted) == check_capacity(found[what])
        if wanted is not None and not is_same:
            raise InvalidArgument(
                f"{what} {wanted!r} would have no effect: Hoplite runs in this Ray cluster already, with "
                f"{what} {found[what]!r}; leave it out, or call hoplite.ray.stop() first"
            )


def _facts(handle: Any, until: float) -> dict[str, Any]:
    """What a supervisor knows of the nodes; of one that has died, when Ray has started it again.

    Raises:
        ConnectError: it does not start, or not in time.
    """
    try:
        return place.answer(lambda: handle, until, ray.exceptions.ActorUnavailableError)
    except ray.exceptions.RayError as error:
        raise ConnectError(f"the supervisor of Hoplite can't start: {error}") from None


def _wait(handle: Any, until: float, *, everywhere: bool) -> None:
    """Waits for the node of each Ray node, or for that of this process's alone."""
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
            raise ConnectError(f"no node of Hoplite was there in time on the Ray nodes {', '.join(missing)}")
        time.sleep(place.POLL_S)


def _problem(node: str, kind: str, text: str) -> HopliteError:
    """The error that a keeper raised, with the Ray node where it did."""
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
        # It was ended by another call.
        return
    ray.kill(handle)
    # The name is free when its actor is gone: a call of `start` that follows would find it else.
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if ray.get_actor(place.SUPERVISOR, namespace=place.NAMESPACE) != handle:
                return
        except ValueError:
            return
        time.sleep(place.POLL_S)
