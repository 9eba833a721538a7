"""How a rank enters a process group, leaves it, and enters the next one with other ranks.

Ranks that share one of torch's stores find each other there. Ranks that form a group anew, from handles, find each
other by the names of objects. Does not know operations.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import threading
import uuid
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist

import hoplite
from hoplite.errors import HopliteError, InvalidArgument, Timeout
from hoplite.torch.backend.group import Group, Host, ranks_in_words
from hoplite.torch.backend.liveness import DIED, Liveness
from hoplite.torch.backend.messages import Messages
from hoplite.torch.backend.rendezvous import Exchange, attach, host, move
from hoplite.torch.backend.tensors import hush

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.distributed import Store

# Share of a store that objects which all ranks have read may take before they are deleted: an eighth, for all ranks of
# a host together.
SHARE = 8
# And no more than this: memory that the store has used before is faster than new memory, whose pages must be cleared.
BUDGET_BYTES = 32 << 20

# Time for the other ranks of this host to leave before a node in this process ends.
LEAVE_S = 10.0

# Members that leave when the process ends.
_members: weakref.WeakSet[Member] = weakref.WeakSet()
_members_lock = threading.Lock()


class _Entry(NamedTuple):
    """A group that this rank is in."""

    group: Group
    messages: Messages
    liveness: Liveness


class Member:
    """One rank, and the group that it is in.

    Args:
        store: the store of the group, by which the ranks find each other.
        rank: this rank.
        size: number of ranks.
        timeout_s: default timeout of an operation, in seconds.
        waits: whether the group forms only on `reconfigure`.

    Attributes:
        rank: this rank.
        size: number of ranks.

    Raises:
        HopliteError: the ranks can't form one Hoplite cluster.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, *, waits: bool = False) -> None:
        hush()
        self.rank = rank
        self.size = size
        self._timeout_s = timeout_s
        self._id = uuid.uuid4().hex
        self._pid = os.getpid()
        self._has_left = False
        exchange = Exchange(store, rank, size, _hopeless)
        self._shared = attach(exchange, rank)
        self._entry: _Entry | None = None
        if not waits:
            prefix = f"torch/{exchange.name}"
            client = _client(self._shared, prefix)
            self._enter(client, prefix, exchange.all("rank", lambda: self._introduction(client)))
        with _members_lock:
            _members.add(self)

    @property
    def group(self) -> Group:
        """The group.

        Raises:
            DistBackendError: the rank is in none.
        """
        return self._entered().group

    @property
    def messages(self) -> Messages:
        """The messages of the group.

        Raises:
            DistBackendError: the rank is in none.
        """
        return self._entered().messages

    def handle(self) -> str:
        """Returns what other ranks need to form a group with this one."""
        return json.dumps(
            {"id": self._id, "host": host(), "node": self._shared.status()["id"], "socket": self._shared.socket}
        )

    def reconfigure(self, number: int, handles: Iterable[str], timeout_s: float | None) -> None:
        """Leaves the group, if any, and forms one with the ranks of these handles.

        Args:
            number: number of the new group, which no group of these ranks had before.
            handles: a handle of each rank, in the order of ranks; a set is sorted.
            timeout_s: seconds to wait for the other ranks; None means the default timeout of an operation.

        Raises:
            DistBackendError: a rank did not come in time, or the ranks can't form one Hoplite cluster.
            InvalidArgument: a handle is not valid, or this rank's is missing.
        """
        texts = list(handles) if isinstance(handles, (list, tuple)) else sorted(handles)
        peers = [_parsed(text) for text in texts]
        ids = [peer["id"] for peer in peers]
        if ids.count(self._id) != 1:
            raise InvalidArgument(
                f"the handle of this rank occurs {ids.count(self._id)} times among {len(ids)} handles: pass one handle "
                "of each rank, this one included"
            )
        if (entry := self._announce_end()) is not None:
            entry.group.fail("this rank has left the group")
        self._entry = None
        self._shared = move(self._shared, peers)
        self.rank, self.size = ids.index(self._id), len(ids)
        prefix = f"torch/{hashlib.sha256(json.dumps([number, ids]).encode()).hexdigest()[:16]}"
        client = _client(self._shared, prefix)
        fact = self._introduction(client)
        names = [f"{prefix}/member/r{rank}" for rank in range(self.size)]
        limit = self._timeout_s if timeout_s is None else timeout_s
        client.put(json.dumps(fact).encode(), name=names[self.rank], timeout=limit)
        try:
            facts = [json.loads(bytes(value)) for value in client.get(names, timeout=limit)]
        except Timeout as error:
            ready, _ = client.wait(names, timeout=0)
            late = {rank for rank, name in enumerate(names) if name not in set(map(str, ready))}
            client.close()
            raise dist.DistBackendError(
                f"reconfigure timed out after {limit:g} s: {ranks_in_words(late)} did not call it with these handles"
            ) from error
        self._enter(client, prefix, facts)

    def abort(self) -> None:
        """Ends all operations of this rank. A death in this group no longer prevents other groups."""
        self._has_left = True
        if self._entry is not None and self._entry.group.failure is None:
            self._entry.liveness.abort()

    def leave(self) -> None:
        """Leaves the group, after all operations of this rank are over."""
        self._has_left = True
        entry = self._announce_end()
        if entry is not None:
            if self._shared.node is not None:
                # The node of this process has objects that others still read.
                entry.liveness.wait_for_others(LEAVE_S)
            entry.group.fail("this rank has left the group")

    def death(self) -> str | None:
        """Returns which rank of the group died, if that is why its operations fail."""
        failure = None if self._entry is None or self._has_left else self._entry.group.failure
        return failure if failure is not None and failure.endswith(DIED) else None

    def _announce_end(self) -> _Entry | None:
        """Announces that this rank leaves its group, so that others can finish operations that it has finished.

        Returns:
            The group; None if the rank is in none, the group has failed, or this process was forked from the rank.
        """
        entry = self._entry
        if entry is None or entry.group.failure is not None or os.getpid() != self._pid:
            return None
        entry.liveness.leave(entry.messages.sent())
        return entry

    def _entered(self) -> _Entry:
        if self._entry is None:
            raise dist.DistBackendError(
                "this group waits to be formed: pass the handles of all ranks to torch.distributed._reconfigure"
            )
        return self._entry

    def _introduction(self, client: hoplite.Client) -> dict[str, Any]:
        """Returns what the other ranks must know of this one, whose client of the group this is."""
        status = self._shared.status()
        store = status["store"]
        capacity, on_disk = store["capacity"], store["spill_limit"]
        return {"ref": str(client.reserve()), "node": status["id"], "capacity": capacity, "on_disk": on_disk}

    def _enter(self, client: hoplite.Client, prefix: str, facts: Sequence[dict[str, Any]]) -> None:
        nodes = [fact["node"] for fact in facts]
        budget = min(BUDGET_BYTES, *(fact["capacity"] // nodes.count(fact["node"]) // SHARE for fact in facts))
        hosts: dict[str, Host] = {}
        for rank, fact in enumerate(facts):
            hosts.setdefault(fact["node"], Host([], fact["capacity"] + fact["on_disk"])).ranks.append(rank)
        group = Group(client, prefix, self.rank, self.size, self._timeout_s, budget, list(hosts.values()))
        liveness = Liveness(group, [fact["ref"] for fact in facts])
        self._entry = _Entry(group, Messages(group, liveness), liveness)
        self._has_left = False


def _client(shared: hoplite.Client, job: str) -> hoplite.Client:
    """Returns a client for one group: closing it ends the calls of that group alone. Its job deletes what remains."""
    if shared.node is not None:
        return shared.node.client(job=job)
    return hoplite.connect(f"unix:{shared.socket}", job=job, reconnect=False)


def _parsed(handle: str) -> dict[str, str]:
    try:
        facts = json.loads(handle)
        if all(isinstance(facts[key], str) for key in ("id", "host", "node", "socket")):
            return facts  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError):
        pass
    raise InvalidArgument(
        f"{handle!r} is not a handle of the backend hoplite: pass what _get_reconfigure_handle returns"
    )


def _all() -> list[Member]:
    with _members_lock:
        return list(_members)


def _hopeless() -> str | None:
    """Returns why this rank can form no further group, if a rank of one that it is in died."""
    deaths = (member.death() for member in _all())
    return next((f"of a group that this rank is in, {death}" for death in deaths if death is not None), None)


def _leave_all() -> None:
    for member in _all():
        with contextlib.suppress(HopliteError):
            member.leave()


# Runs before the node of this process, if any, leaves: handlers run in reverse order of registration.
atexit.register(_leave_all)
