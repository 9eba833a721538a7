"""Hoplite on a Dask cluster, as a client sees it: how it gets there, which nodes there are, and how it goes."""

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
    """Hoplite on the workers of a Dask cluster, from `install`.

    Attributes:
        id: a text of its own.
        memory: the capacity of each node's store as `install` was told it; None is the node's default.
        port: on which each node listens; 0 is any.
        client: a `hoplite.Client` of the node of this host; None if this host has no worker.
    """

    def __init__(self, client: Client, plugin: Host) -> None:
        self._dask = weakref.ref(client)
        self.id = plugin.installation
        self.memory = plugin.memory
        self.port = plugin.port
        self.client = self._attach()

    @property
    def nodes(self) -> list[dict[str, str]]:
        """The nodes as the workers know them now: "host", "address", "socket" and "node" (its identity) of each."""
        found = {row["node"]: row for row in self.run(tasks.where).values() if isinstance(row, dict)}
        return sorted(found.values(), key=lambda row: (row["host"], row["node"]))

    @property
    def dask(self) -> Client:
        """The Dask client.

        Raises:
            InvalidArgument: it is gone.
        """
        client = self._dask()
        if client is None:
            raise InvalidArgument("the Dask client of this installation is gone")
        return client

    def run(self, function: Any, *values: object, workers: Iterable[str] | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Calls one of `tasks` on workers, beside their tasks.

        Returns:
            What it returned, or the exception that it raised, by the worker's address.
        """
        chosen = None if workers is None else list(workers)
        answers: dict[str, Any] = self.dask.run(function, self.id, *values, workers=chosen, on_error="return")
        return answers

    def run_on(self, worker: str, function: Any, *values: object) -> Any:  # noqa: ANN401 - what it returns
        """Calls one of `tasks` on one worker, and raises what it raises."""
        answer = self.run(function, *values, workers=[worker])[worker]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def a_worker(self) -> str:
        """The address of a worker with a node.

        Raises:
            HopliteError: there is none.
        """
        for worker, row in self.run(tasks.where).items():
            if isinstance(row, dict):
                return worker
        raise HopliteError(
            "no worker of this Dask cluster has a Hoplite node: it has no workers, or their logs say why"
        )

    def close(self) -> None:
        """Detaches this process."""
        if self.client is not None:
            self.client.close()

    def _attach(self) -> hoplite.Client | None:
        """Attaches to the node of this host, if one of those on the workers' hosts is that."""
        for row in self.nodes:
            # Every host has such a path; on this one another node may serve it.
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

    All workers of a host share its node, a process of its own that ends with the last of them. The nodes have a secret
    of this installation, which the scheduler hands to workers as it does everything: it is as safe as Dask's own
    connections are. The scheduler, the workers and this process need `hoplite`, in one version.

    Args:
        client: of the Dask cluster, not an asynchronous one.
        memory: most bytes that the store of each node may take, a number or text such as "8GiB"; the default is 30 %
            of the memory of the host or cgroup. It comes on top of what workers take.
        port: on which each node listens, where a firewall wants to know; 0 takes any free one. It listens at the
            address that the host's worker has told the scheduler.

    Returns:
        The installation. If Hoplite is on the cluster already, that one.

    Raises:
        AddressInUse: a host has no such port, or another process has it; the message names the host. Nothing is
            installed then.
        HopliteError: a node could not start.
        InvalidArgument: `client` is asynchronous or no client, an argument makes no sense, or Hoplite is on the cluster
            already, with other arguments.
    """
    _check_client(client)
    if memory is not None:
        check_capacity(memory)
    if not 0 <= port <= PORT_MAX:
        raise InvalidArgument(f"port is {port!r}; it is a number from 0 to {PORT_MAX}")
    plugin = _plugin(client)
    if plugin is None:
        try:
            client.register_plugin(Meeting())
            # Of two clients that install at once the first is it.
            client.register_plugin(Host(uuid.uuid4().hex[:12], hoplite.new_token(), memory, port))
        except ModuleNotFoundError as error:
            _remove(client)
            raise HopliteError(
                f"the scheduler or a worker has no hoplite ({error}): install it there, in the version of this process"
            ) from None
        except BaseException:
            _remove(client)
            raise
        plugin = _plugin(client)
    known = _found.get(client)
    if known is not None and (plugin is None or known.id != plugin.installation):
        # Another client has taken it away, and this one or another has installed anew.
        _found.pop(client).close()
    found = of(client)
    for name, wanted, default in (("memory", memory, None), ("port", port, 0)):
        if wanted not in (default, getattr(found, name)):
            raise InvalidArgument(
                f"Hoplite is on this Dask cluster already, with {name}={getattr(found, name)!r} and not {wanted!r}: "
                "call hoplite.dask.uninstall(client) first"
            )
    return found


def uninstall(client: Client) -> None:
    """Ends the nodes of `install`, with all objects. Arrays that tasks or this process have stay valid.

    Futures of `scatter` and `reduce` whose array no worker has can't be computed any more. Without an installation
    there is nothing to do.

    Raises:
        InvalidArgument: `client` is asynchronous or no client.
    """
    _check_client(client)
    found = _found.pop(client, None)
    if found is not None:
        found.close()
    _remove(client)


def of(client: Client) -> Installation:
    """The installation on a client's cluster.

    Raises:
        InvalidArgument: `client` is asynchronous or no client, or there is none.
    """
    _check_client(client)
    found = _found.get(client)
    if found is None:
        plugin = _plugin(client)
        if plugin is None:
            raise InvalidArgument(f"Hoplite is not on this Dask cluster: {NEEDS_INSTALL}")
        found = _found[client] = Installation(client, plugin)
    return found


def _check_client(client: object) -> None:
    if not isinstance(client, Client):
        raise InvalidArgument(f"client is a distributed.Client, not a {type(client).__name__}")
    if client.asynchronous:
        raise InvalidArgument("client is asynchronous; hoplite.dask takes one that is not")


def _plugin(client: Client) -> Host | None:
    pickled = client.run_on_scheduler(tasks.installed)
    if pickled is None:
        return None
    plugin = pickle.loads(pickled)
    assert isinstance(plugin, Host), plugin
    return plugin


def _remove(client: Client) -> None:
    """Takes both plugins away; what is not there is fine."""
    for remove, name in ((client.unregister_worker_plugin, NAME), (client.unregister_scheduler_plugin, MEETING)):
        try:
            remove(name)
        except (ValueError, KeyError):
            # The scheduler, or a worker whose node could not start, does not know it.
            continue
