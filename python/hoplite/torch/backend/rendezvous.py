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
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hoplite
from hoplite import settings, sockets
from hoplite.errors import ConnectError, HopliteError, NodeDown, Timeout
from hoplite.torch.backend import keeper
from hoplite.torch.backend.group import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import Store

# Settings by which a user chooses how nodes admit each other.
_CREDENTIALS = ("token", "token_file", "certificate", "no_auth")

# Start of the names of jobs and sockets of keepers.
JOB = "torch-"

# What `settings` has if no cluster is configured.
DEFAULT_CLUSTER = "default"

# Length of the rest of the name of a cluster of keepers: it is in the paths of their sockets.
NAME_CHARS = 12

# Time for the nodes of a new cluster to know each other.
MEMBERS_S = 10.0
MEMBERS_POLL_S = 0.05

# Time for a rank to reply to rank 0, before that looks whether the rank was restarted.
REPLY_S = 0.1
# Time for the other ranks to read an error before the process that has the store may end.
OVER_S = 10.0
# Interval in which a rank that waits for another looks whether that can still come.
LOOK_S = 0.5

# A client of the keeper that this process uses, by socket.
_presences: dict[str, hoplite.Client] = {}


class Exchange:
    """Facts that the ranks of a group exchange through a store.

    Args:
        store: the store of the group.
        rank: this rank.
        size: number of ranks.
        hopeless: returns why a rank that has not come will not come; None if it may.

    Attributes:
        store: the store of the group.
        name: a name that all ranks of this group know, and no other group has.
    """

    def __init__(self, store: Store, rank: int, size: int, hopeless: Callable[[], str | None]) -> None:
        self.store = store
        self._rank = rank
        self._size = size
        self._hopeless = hopeless
        self.name = self._agree()

    def all(self, key: str, fact: Callable[[], Any]) -> list[Any]:
        """Passes a fact to all ranks; returns those of all, in order.

        Args:
            key: name of the fact.
            fact: returns it. If that raises an error on one rank, this raises one on all ranks.

        Raises:
            HopliteError: the fact of another rank is an error.
        """
        try:
            own = {"fact": fact()}
        except Exception as error:  # noqa: BLE001 - raised after the announcement
            self.announce(f"{key}/{self._rank}", {"error": f"{error}"})
            self.give_up(error)
        self.announce(f"{key}/{self._rank}", own)
        facts = [self.get(f"{key}/{rank}") for rank in range(self._size)]
        for rank, other in enumerate(facts):
            if "error" in other:
                self.give_up(HopliteError(f"rank {rank} can't form the group: {other['error']}"))
        return [other["fact"] for other in facts]

    def give_up(self, error: Exception) -> NoReturn:
        """Raises an error that all ranks raise. Rank 0, which can have the store, is the last to do so."""
        self.announce(f"over/{self._rank}", None)
        until = time.monotonic() + OVER_S
        if self._rank == 0:
            for rank in range(1, self._size):
                self._has(f"hoplite/{self.name}/over/{rank}", max(until - time.monotonic(), REPLY_S))
        raise error

    def announce(self, key: str, fact: Any) -> None:
        """Announces a fact to the ranks that call `get`."""
        self.store.set(f"hoplite/{self.name}/{key}", json.dumps(fact))

    def get(self, key: str) -> Any:
        """Waits for a fact."""
        return json.loads(self._wait_for(f"hoplite/{self.name}/{key}"))

    def _agree(self) -> str:
        """Returns the name of this group, which rank 0 chooses.

        The store can have keys of ranks that were restarted since: torchrun keeps its store. So each rank introduces
        itself by a new word, rank 0 replies to that, and repeats it if the word of a rank changes.
        """
        word = uuid.uuid4().hex[:16]
        if self._rank:
            self.store.set(f"hoplite/word/{self._rank}", word)
            name = self._wait_for(f"hoplite/reply/{word}").decode()
            self.store.set(f"hoplite/{name}/here/{self._rank}", "")
            return name
        known = dict.fromkeys(range(1, self._size), "")
        limit_s, start = self.store.timeout.total_seconds(), time.monotonic()
        while True:
            for rank, old in known.items():
                known[rank] = self._wait_for(f"hoplite/word/{rank}").decode()
                if known[rank] != old:
                    self.store.set(f"hoplite/reply/{known[rank]}", word)
            known = {rank: old for rank, old in known.items() if not self._has(f"hoplite/{word}/here/{rank}")}
            if not known:
                return word
            # The word of a rank can be that of a process that is gone, and maybe no other follows.
            waited_s = time.monotonic() - start
            if waited_s >= LOOK_S and (why := self._hopeless()) is not None:
                raise HopliteError(f"the group can't form without {ranks_in_words(known)}: {why}")
            if waited_s >= limit_s:
                raise Timeout(
                    f"{ranks_in_words(known)} did not reply to rank 0 within {limit_s:g} s: check whether they still "
                    "run, then form the group again"
                )

    def _has(self, key: str, seconds: float = REPLY_S) -> bool:
        """Whether a key exists, or does within so many seconds."""
        start = time.monotonic()
        try:
            self.store.wait([key], timedelta(seconds=seconds))
        except RuntimeError:
            if time.monotonic() - start < seconds / 2:
                # Not a timeout: the store is gone.
                raise
            return False
        return True

    def _wait_for(self, key: str) -> bytes:
        until = time.monotonic() + self.store.timeout.total_seconds()
        while time.monotonic() + LOOK_S < until and not self._has(key, LOOK_S):
            if (why := self._hopeless()) is not None:
                raise HopliteError(f"the group can't form: {why}")
        if time.monotonic() + LOOK_S >= until:
            self.store.wait([key], timedelta(seconds=max(until - time.monotonic(), 0.001)))
        return self.store.get(key)  # type: ignore[no-any-return]


def attach(exchange: Exchange, rank: int) -> hoplite.Client:
    """Returns the process's shared client, attached to a node in a cluster of all ranks.

    Raises:
        HopliteError: the ranks' nodes belong to several clusters, only some ranks have one, or one can't start.
    """
    facts = exchange.all("node", _introduction)
    if not any(fact["socket"] for fact in facts):
        client = _start(exchange, rank, [fact["host"] for fact in facts], _master(exchange.store))
    else:
        paths = exchange.all("path", lambda: _path(facts, rank))
        lacking = [str(other) for other, path in enumerate(paths) if path is None]
        if lacking:
            text = (
                f"the hosts of rank {', '.join(lacking)} have no Hoplite node, but others do: run hoplite node --join "
                "ADDRESS on each of them, or no node on any host"
            )
            exchange.give_up(HopliteError(text))
        client = hoplite.client() if facts[rank]["socket"] else _use(paths[rank])
    _check_one_cluster(exchange, client)
    return client


def _introduction() -> dict[str, Any]:
    """Returns where this rank is, and the node that it has."""
    client = _running()
    return {
        "machine": _machine(),
        "host": host(),
        "id": client and client.status()["id"],
        "socket": client and client.socket,
    }


def _path(facts: Sequence[dict[str, Any]], rank: int) -> str | None:
    """Returns the socket of a node for this rank: its own, or one of another rank that it can reach."""
    own = facts[rank]
    if own["socket"]:
        return str(own["socket"])
    near = {fact["socket"]: fact["id"] for fact in facts if fact["socket"] and fact["machine"] == own["machine"]}
    return next((path for path, node in near.items() if _serves(path, node)), None)


def _serves(path: str, node: str) -> bool:
    """Whether the socket at a path is that of a node: a container can have another one there, or none."""
    try:
        with hoplite.connect(f"unix:{path}", timeout=0, reconnect=False) as client:
            return bool(client.status()["id"] == node)
    except HopliteError:
        return False


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
    has_hosts = len(leaders) > 1
    token = exchange.all("token", lambda: _token() if has_hosts and rank == 0 else None)[0]
    cluster = {"name": f"{JOB}{exchange.name[:NAME_CHARS]}", "has_hosts": has_hosts, "token": token}
    marker = f"{cluster['name']}/ranks/h{leader}"
    if rank == leader:
        try:
            path, address = keeper.start(_node(exchange, cluster, rank, leader, master), marker)
            served = {"path": path}
        except Exception as error:  # noqa: BLE001 - all ranks raise it below
            address, served = None, {"error": f"{error}"}
        if rank == 0:
            exchange.announce("address", address)
        exchange.announce(f"socket/{leader}", served)
    served = exchange.get(f"socket/{leader}")

    def use() -> None:
        if "error" in served:
            raise HopliteError(f"rank {leader} could not start the node of this host: {served['error']}")
        _use(served["path"])
        if rank == leader:
            _presences[served["path"]].put(b"", name=marker)

    exchange.all("attached", use)
    return hoplite.client()


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
    known = exchange.all("member", lambda: client.status()["id"])
    exchange.all("cluster", lambda: _check_members(client, known))


def _check_members(client: hoplite.Client, known: list[str]) -> None:
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
    """Identifies the folder of sockets that this process sees: processes with the same value can share a new node."""
    folder = sockets.runtime_dir().stat()
    return f"{_machine()}/{folder.st_dev}/{folder.st_ino}"


def _machine() -> str:
    """Identifies this machine, its network and this user. Its containers can have file systems of their own."""
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
