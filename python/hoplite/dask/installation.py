"""`install` and `uninstall`, and the `Installation`: a client's view of the nodes of a Dask cluster."""

from __future__ import annotations

import pickle
import uuid
import weakref
from typing import TYPE_CHECKING, Any

from distributed import Client

import hoplite
from hoplite import sockets
from hoplite.dask import tasks
from hoplite.dask.plugins import MEETING, NAME, Host, Meeting
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sizes import check_capacity

if TYPE_CHECKING:
    from collections.abc import Iterable

PORT_MAX = 65535
NEEDS_INSTALL = "call hoplite.dask.install(client) first"


class Installation:
    """Hoplite on the workers of a Dask cluster, returned by `install`.

    Attributes:
        id: a unique text.
        memory: the capacity of each node's store, as passed to `install`; None is the node's default.
        port: the TCP port of each node; 0 is any free port.
        client: a `hoplite.Client` of this host's node; None if this host has no worker.
    """

    def __init__(self, client: Client, plugin: Host) -> None:
        self._dask = weakref.ref(client)
        self.id = plugin.installation
        self.memory = plugin.memory
        self.port = plugin.port
        self.client = self._attach()

    @property
    def nodes(self) -> list[dict[str, str]]:
        """The current nodes of the workers: "host", "address", "socket" and "node" (the node id) of each."""
        found = {row["node"]: row for row in self.run(tasks.where).values() if isinstance(row, dict)}
        return sorted(found.values(), key=lambda row: (row["host"], row["node"]))

    @property
    def dask(self) -> Client:
        """The Dask client.

        Raises:
            InvalidArgument: it no longer exists.
        """
        client = self._dask()
        if client is None:
            raise InvalidArgument(
                "the Dask client of this installation no longer exists: call hoplite.dask.install with another client"
            )
        return client

    def run(self, function: Any, *values: object, workers: Iterable[str] | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Calls a function of `tasks` on workers, outside their task queues.

        Returns:
            The returned value or the raised exception, by the worker's address.
        """
        chosen = None if workers is None else list(workers)
        answers: dict[str, Any] = self.dask.run(function, self.id, *values, workers=chosen, on_error="return")
        return answers

    def run_on(self, worker: str, function: Any, *values: object) -> Any:  # noqa: ANN401 - its result
        """Calls a function of `tasks` on one worker; raises its exception."""
        answer = self.run(function, *values, workers=[worker])[worker]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def a_worker(self) -> str:
        """Returns the address of a worker with a node.

        Raises:
            HopliteError: no worker has a node.
        """
        for worker, row in self.run(tasks.where).items():
            if isinstance(row, dict):
                return worker
        raise HopliteError("no worker of this Dask cluster has a Hoplite node: start workers, or check their logs")

    def close(self) -> None:
        """Detaches this process from its node."""
        if self.client is not None:
            self.client.close()

    def _attach(self) -> hoplite.Client | None:
        """Attaches to the node of this host, if it has one."""
        for row in self.nodes:
            # The path is the same on all hosts, so on this host another node may serve it.
            if sockets.is_served(row["socket"]):
                client = hoplite.connect(f"unix:{row['socket']}", reconnect=True)
                if client.status()["id"] == row["node"]:
                    return client
                client.close()
        return None

    def __repr__(self) -> str:
        return f"<hoplite.dask.Installation {self.id}>"


_found: weakref.WeakKeyDictionary[Client, Installation] = weakref.WeakKeyDictionary()


def install(client: Client, *, memory: int | str | None = None, port: int = 0) -> Installation:
    """Starts a Hoplite node on every host of a Dask cluster, also on hosts whose workers join later.

    All workers of a host share its node, a separate process that ends with the last worker. The nodes authenticate each
    other with a secret of this installation. The scheduler sends the secret to the workers, so it is as safe as Dask's
    own connections. The scheduler, the workers and this process need the same version of `hoplite`.

    Args:
        client: a synchronous client of the Dask cluster.
        memory: capacity of each node's store, in bytes or as text such as "8GiB". The default is 30 % of the memory of
            the host or cgroup. It comes on top of the memory of the workers.
        port: TCP port of each node, for firewall rules; 0 selects a free port. A node listens at the address that its
            host's worker has registered with the scheduler.

    Returns:
        The installation; the existing one if Hoplite is already installed on the cluster.

    Raises:
        AddressInUse: a node can't listen on the port; the message names the host. Nothing is installed then.
        HopliteError: a node could not start.
        InvalidArgument: `client` is asynchronous or not a Dask client, an argument is not valid, or Hoplite is already
            installed with other arguments.
    """
    _check_client(client)
    if memory is not None:
        check_capacity(memory)
    if not 0 <= port <= PORT_MAX:
        raise InvalidArgument(f"port {port!r} is not valid: use a number from 0 to {PORT_MAX}")
    plugin = _plugin(client)
    if plugin is None:
        try:
            client.register_plugin(Meeting())
            # If two clients install at the same time, the first one wins.
            client.register_plugin(Host(uuid.uuid4().hex[:12], hoplite.new_token(), memory, port))
        except ModuleNotFoundError as error:
            _remove(client)
            raise HopliteError(
                f"the scheduler or a worker can't import hoplite ({error}): install the same version there as in this "
                "process"
            ) from None
        except BaseException:
            _remove(client)
            raise
        plugin = _plugin(client)
    known = _found.get(client)
    if known is not None and (plugin is None or known.id != plugin.installation):
        # Another client has uninstalled it, and a client has installed it again.
        _found.pop(client).close()
    found = of(client)
    for name, wanted, default in (("memory", memory, None), ("port", port, 0)):
        if wanted not in (default, getattr(found, name)):
            raise InvalidArgument(
                f"Hoplite is already installed on this Dask cluster with {name}={getattr(found, name)!r}, "
                f"not {wanted!r}: call hoplite.dask.uninstall(client) first"
            )
    return found


def uninstall(client: Client) -> None:
    """Stops the nodes and deletes all objects. Arrays that tasks or this process have stay valid.

    Futures of `scatter` and `reduce` can't be recomputed if no worker has their array. Without an installation, it does
    nothing.

    Raises:
        InvalidArgument: `client` is asynchronous or not a Dask client.
    """
    _check_client(client)
    found = _found.pop(client, None)
    if found is not None:
        found.close()
    _remove(client)


def of(client: Client) -> Installation:
    """Returns the installation on a client's cluster.

    Raises:
        InvalidArgument: `client` is asynchronous or not a Dask client, or Hoplite is not installed.
    """
    _check_client(client)
    found = _found.get(client)
    if found is None:
        plugin = _plugin(client)
        if plugin is None:
            raise InvalidArgument(f"Hoplite is not installed on this Dask cluster: {NEEDS_INSTALL}")
        found = _found[client] = Installation(client, plugin)
    return found


def _check_client(client: object) -> None:
    if not isinstance(client, Client):
        raise InvalidArgument(f"client must be a distributed.Client, not a {type(client).__name__}")
    if client.asynchronous:
        raise InvalidArgument("client is asynchronous: pass a synchronous distributed.Client")


def _plugin(client: Client) -> Host | None:
    pickled = client.run_on_scheduler(tasks.installed)
    if pickled is None:
        return None
    plugin = pickle.loads(pickled)
    assert isinstance(plugin, Host), plugin
    return plugin


def _remove(client: Client) -> None:
    """Removes both plugins. A missing plugin is ignored."""
    for remove, name in ((client.unregister_worker_plugin, NAME), (client.unregister_scheduler_plugin, MEETING)):
        try:
            remove(name)
        except (ValueError, KeyError):
            # The scheduler, or a worker whose node could not start, does not have the plugin.
            continue
