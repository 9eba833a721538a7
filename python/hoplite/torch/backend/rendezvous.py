"""How the ranks of a job find or start one Hoplite cluster, with the help of torch's store.

If every rank already has a node, these must form one cluster. If none has, one keeper process for each host starts.
The token of such a cluster passes through the store: who can read that can join, as with torch itself. Settings of the
environment (HOPLITE_TOKEN_FILE, HOPLITE_LISTEN, HOPLITE_CAPACITY, ...) apply to its nodes. Does not know operations.
"""

from __future__ import annotations

import json
import os
import socket
import time
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

# Start of the names of jobs and sockets of keepers.
JOB = "torch-"

# What `settings` has if no cluster is configured.
DEFAULT_CLUSTER = "default"

# Time for the nodes of a new cluster to know each other.
MEMBERS_S = 10.0
MEMBERS_POLL_S = 0.05

# A client of the keeper that this process uses, by socket.
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
    served = {fact["host"]: fact["socket"] for fact in reversed(facts) if fact["socket"]}
    lacking = [str(other) for other, fact in enumerate(facts) if fact["host"] not in served]
    if served and lacking:
        # On all ranks: none waits for another that has raised it.
        raise HopliteError(
            f"the hosts of rank {', '.join(lacking)} have no Hoplite node, but others do: run hoplite node --join "
            "ADDRESS on each of them, or no node on any host"
        )
    if client is None and served:
        client = _use(served[here_is])
    elif client is None:
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
        client = _use(first["socket"])
    return client


def _use(path: str) -> hoplite.Client:
    """Makes the node at a socket that of this process, and leaves those of keepers that it used before.

    The file of a keeper's socket has the name of its job: the keeper runs as long as a client of that is open.
    """
    for other in [other for other in _presences if other != path]:
        _presences.pop(other).close()
    job, dash, number = Path(path).stem.rpartition("-")
    if path not in _presences and dash and number.isdigit() and job.startswith(JOB):
        _presences[path] = hoplite.connect(f"unix:{path}", job=job)
    return hoplite.init(f"unix:{path}")


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
        has_hosts = len(leaders) > 1
        name = f"{JOB}{uuid.uuid4().hex[:12]}"
        exchange.announce("cluster", {"name": name, "has_hosts": has_hosts, "token": _token() if has_hosts else None})
    cluster = exchange.get("cluster")
    marker = f"{cluster['name']}/ranks/h{leader}"
    if rank == leader:
        try:
            path, address = keeper.start(_node(exchange, cluster, rank, leader, master), marker)
        except Exception as error:
            # The others wait for it.
            exchange.announce(f"socket/{leader}", {"error": f"{error}"})
            if rank == 0:
                exchange.announce("address", None)
            raise
        if rank == 0:
            exchange.announce("address", address)
        exchange.announce(f"socket/{leader}", {"path": path})
    served = exchange.get(f"socket/{leader}")
    if "error" in served:
        raise HopliteError(f"rank {leader} could not start the node of this host: {served['error']}")
    client = _use(served["path"])
    if rank == leader:
        _presences[served["path"]].put(b"", name=marker)
    return client


def _node(exchange: Exchange, cluster: dict[str, Any], rank: int, leader: int, master: str) -> dict[str, Any]:
    """Returns the arguments of the node of this host.

    Raises:
        HopliteError: rank 0 could not start its node, or has no address that other hosts can reach.
    """
    configured = settings.load(cluster=None)["cluster"]
    node: dict[str, Any] = {
        "socket": str(sockets.runtime_dir() / f"{cluster['name']}-{leader}.sock"),
        "cluster": cluster["name"] if configured == DEFAULT_CLUSTER else configured,
    }
    if not cluster["has_hosts"]:
        return node
    if cluster["token"] is not None:
        node["token"] = cluster["token"]
    if rank == 0:
        node["listen"] = settings.load(listen=None)["listen"] or f"{_reachable(master)}:0"
        return node
    address = exchange.get("address")
    if address is None:
        raise HopliteError("rank 0 could not start the node of its host: see its error")
    node["join"] = [address]
    return node


def _check_one_cluster(exchange: Exchange, client: hoplite.Client) -> None:
    """Raises an error if the nodes of two ranks do not know each other."""
    known = exchange.all("member", client.status()["id"])
    # A node that has just joined may not know all others yet.
    until = time.monotonic() + MEMBERS_S
    while True:
        members = {member["id"] for member in client.status()["members"]}
        apart = [str(rank) for rank, node in enumerate(known) if node not in members]
        if not apart or time.monotonic() > until:
            break
        time.sleep(MEMBERS_POLL_S)
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
