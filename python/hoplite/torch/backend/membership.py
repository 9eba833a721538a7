"""How a rank enters a process group and leaves it."""

from __future__ import annotations

import atexit
import contextlib
import uuid
import weakref
from typing import TYPE_CHECKING

import hoplite
from hoplite.errors import HopliteError
from hoplite.torch.backend.group import Group
from hoplite.torch.backend.liveness import Liveness
from hoplite.torch.backend.messages import Messages
from hoplite.torch.backend.rendezvous import Exchange, attach
from hoplite.torch.backend.tensors import hush

if TYPE_CHECKING:
    from torch.distributed import Store

# Share of a store that objects which all ranks have read may take before they are deleted: an eighth, for all ranks of
# a host together.
SHARE = 8

# Members that leave when the process ends.
_members: weakref.WeakSet[Member] = weakref.WeakSet()


class Member:
    """One rank's membership in a process group.

    Args:
        store: the store of the group, by which the ranks find each other.
        rank: this rank.
        size: number of ranks.
        timeout_s: default timeout of an operation, in seconds.

    Raises:
        HopliteError: the ranks can't form one Hoplite cluster.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float) -> None:
        hush()
        self.rank = rank
        self.size = size
        shared = attach(store, rank, size)
        exchange = Exchange(store, rank, size)
        if rank == 0:
            exchange.tell("group", f"torch/{uuid.uuid4().hex[:16]}")
        prefix = exchange.get("group")
        client = _client(shared, prefix)
        facts = exchange.all(
            "rank", {"ref": str(client.reserve()), "node": shared.status()["id"], "capacity": shared.status()["store"]["capacity"]}
        )
        nodes = [fact["node"] for fact in facts]
        budget = min(fact["capacity"] // nodes.count(fact["node"]) for fact in facts) // SHARE
        self.group = Group(client, prefix, rank, size, timeout_s, budget)
        self._liveness = Liveness(self.group, [fact["ref"] for fact in facts])
        self.messages = Messages(self.group, self._liveness)
        self._is_open = True
        _members.add(self)

    def abort(self) -> None:
        """Ends all operations of this rank."""
        self._is_open = False
        self.group.fail("the group was aborted")

    def leave(self) -> None:
        """Leaves the group, after all operations of this rank are over."""
        if self._is_open:
            self._is_open = False
            self._liveness.leave(self.messages.sent())
            self.group.fail("this rank has left the group")


def _client(shared: hoplite.Client, job: str) -> hoplite.Client:
    """Returns a client for one group: closing it ends the calls of that group alone. Its job deletes what remains."""
    if shared.node is not None:
        return shared.node.client(job=job)
    return hoplite.connect(f"unix:{shared.socket}", job=job, reconnect=False)


def _leave_all() -> None:
    for member in list(_members):
        with contextlib.suppress(HopliteError):
            member.leave()


# Runs before the node of this process, if any, leaves: handlers run in reverse order of registration.
atexit.register(_leave_all)
