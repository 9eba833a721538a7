"""How the ranks of a job find or start one Hoplite cluster, with the help of torch's store.

If every rank already has a node, these must form one cluster. If none has, one keeper process for each host starts.
The token of such a cluster passes through the store: who can read that can join, as with torch itself. Settings of the
environment (HOPLITE_TOKEN_FILE, HOPLITE_LISTEN, HOPLITE_CAPACITY, ...) apply to its nodes. Does not know operations.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hoplite
from hoplite import settings, sockets
from hoplite.errors import ConnectError, HopliteError, NodeDown
from hoplite.torch.backend import keeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import Store

# Settings by which a user chooses how nodes admit each other.
_CREDENTIALS = ("token", "token_file", "certificate", "no_auth")

# One client for each cluster that this process joined: the objects of the cluster stay while one is open.
_presences: dict[str, hoplite.Client] = {}


class Exchange:
    """Facts that the ranks of a group exchange through a store.

    Args:
        store: the store of the group.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size

    def all(self, key: str, fact: Any) -> list[Any]:
        """Passes a fact to all ranks; returns those of all, in order."""
        self._store.set(f"hoplite/{key}/{self._rank}", json.dumps(fact))
        return [json.loads(self._store.get(f"hoplite/{key}/{rank}")) for rank in range(self._size)]

    def announce(self, key: str, fact: Any) -> None:
        """Announces a fact to the ranks that call `get`."""
        self._store.set(f"hoplite/{key}", json.dumps(fact))

    def get(self, key: str) -> Any:
        """Waits for a fact."""
        return json.loads(self._store.get(f"hoplite/{key}"))


def attach(store: Store, rank: int, size: int) -> hoplite.Client:
    """Returns the process's shared client, attached to a node in a cluster of all ranks.

    Raises:
        HopliteError: the ranks' nodes belong to several clusters, only some ranks have one, or one can't start.
    """
    exchange = Exchange(store, rank, size)
    client = _running()
    here_is = host()
    facts = exchange.all(
        "node", {"host": here_is, "id": client and client.status()["id"], "socket": client and client.socket}
    )
    lacking = [other for other, fact in enumerate(facts) if fact["id"] is None]
    if client is None:
        here = [fact["socket"] for fact in facts if fact["host"] == here_is and fact["socket"]]
        if here:
            client = hoplite.init(f"unix:{here[0]}")
        elif len(lacking) < size:
            raise HopliteError(
                f"rank {rank} has no Hoplite node on its host, but other ranks do: run hoplite node --join ADDRESS "
                "there, or no node on any host"
            )
        else:
            client = _start(exchange, rank, [fact["host"] for fact in facts], _master(store))
    _check_one_cluster(exchange, client)
    return client


def move(client: hoplite.Client, peers: Sequence[dict[str, str]]) -> hoplite.Client:
    """Returns a shared client in the cluster of the first peer.

    Args:
        client: the shared client of this process.
        peers: the parsed handles of all ranks.

    Raises:
        HopliteError: the ranks' nodes belong to several clusters.
    """
    first = peers[0]
    if first["node"] not in {member["id"] for member in client.status()["members"]}:
        if first["host"] != host():
            raise HopliteError(
                "the Hoplite nodes of this rank and of rank 0 are in different clusters: run hoplite node --join "
                "ADDRESS on this host before the program starts"
            )
        presence = hoplite.connect(f"unix:{first['socket']}")
        cluster = presence.status()["cluster"]
        presence.close()
        _presences[cluster] = hoplite.connect(f"unix:{first['socket']}", job=cluster)
        client = hoplite.init(f"unix:{first['socket']}")
    return client


def _running() -> hoplite.Client | None:
    """Returns the shared client of the process, or one of a node that runs on this host, if any."""
    try:
        client = hoplite.client(start=False)
        client.status()
    except (ConnectError, NodeDown):
        return None
    return client


def _start(exchange: Exchange, rank: int, hosts: list[str], master: str) -> hoplite.Client:
    """Starts one keeper for each host; the first rank of each host does it."""
    leaders = [hosts.index(other) for other in dict.fromkeys(hosts)]
    leader = hosts.index(hosts[rank])
    if rank == 0:
        exchange.announce(
            "cluster", {"name": f"torch-{uuid.uuid4().hex[:12]}", "token": _token() if len(leaders) > 1 else None}
        )
    cluster = exchange.get("cluster")
    name, marker = cluster["name"], f"{cluster['name']}/ranks/h{leader}"
    if rank == leader:
        node: dict[str, Any] = {"socket": str(sockets.runtime_dir() / f"{name}-{leader}.sock"), "cluster": name}
        if len(leaders) > 1:
            if cluster["token"] is not None:
                node["token"] = cluster["token"]
            if rank == 0:
                node["listen"] = settings.load(listen=None)["listen"] or f"{_reachable(master)}:0"
            else:
                node["join"] = [exchange.get("address")]
        try:
            path, address = keeper.start(node, marker)
        except HopliteError as error:
            exchange.announce(f"socket/{leader}", {"error": f"{error}"})
            exchange.announce("address", None)
            raise
        if rank == 0:
            exchange.announce("address", address)
        exchange.announce(f"socket/{leader}", {"path": path})
    served = exchange.get(f"socket/{leader}")
    if "error" in served:
        raise HopliteError(f"rank {leader} could not start the node of this host: {served['error']}")
    presence = _presences[name] = hoplite.connect(f"unix:{served['path']}", job=name)
    if rank == leader:
        presence.put(b"", name=marker)
    return hoplite.init(f"unix:{served['path']}")


def _check_one_cluster(exchange: Exchange, client: hoplite.Client) -> None:
    """Raises an error if the nodes of two ranks do not know each other."""
    known = exchange.all("member", client.status()["id"])
    members = {member["id"] for member in client.status()["members"]}
    apart = [str(rank) for rank, node in enumerate(known) if node not in members]
    if apart:
        raise HopliteError(
            f"the Hoplite nodes of this rank and of rank {', '.join(apart)} are in different clusters: join them with "
            "hoplite node --join ADDRESS"
        )


def _token() -> str | None:
    """Returns a new token, unless the settings of the environment have credentials."""
    values = settings.load(**dict.fromkeys(_CREDENTIALS))
    return None if any(values[name] for name in _CREDENTIALS) else hoplite.new_token()


def host() -> str:
    """Identifies this host, its network and this user: processes with the same value can share a node."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/net').stat().st_ino}/{os.getuid()}"


def _master(store: Any) -> str:
    """Returns the host name of the store, or of rank 0 if the store has none."""
    while not hasattr(store, "host") and hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR") or socket.gethostname()


def _reachable(master: str) -> str:
    """Returns an address of this host that others can reach: that of the store, which rank 0 serves.

    Raises:
        HopliteError: the name has no address here.
    """
    try:
        found = socket.getaddrinfo(master, 0, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise HopliteError(
            f"can't resolve {master!r}: {error}; set HOPLITE_LISTEN to an address of this host"
        ) from None
    return f"[{found}]" if ":" in str(found) else str(found)
