"""Options of clients, and state that `hoplite.init()` keeps for the process: the shared client and the nodes.

Does not know how nodes are found or started.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hoplite._client import Client
    from hoplite.node import Node
    from hoplite.values import Allowed


class _Default(float):
    """Type of `DEFAULT`; a number, so that signatures need no other type."""

    def __repr__(self) -> str:
        return "DEFAULT"

    def __reduce__(self) -> str:
        # The same object in another process, and in a copy.
        return "DEFAULT"


# Timeout of a call without `timeout=`: the client's `default_timeout`. Compared by identity.
DEFAULT: Final[float] = _Default("inf")


class ClientOptions(NamedTuple):
    """Options of a client. `hoplite.init` describes the arguments of these names.

    Attributes:
        allow_pickle: whether the client may put and get values that need pickle, or which ones. None allows them if
            every node that can put is authenticated.
        job: name that marks the objects it creates.
        reconnect: whether to attach to the next node on the same socket when this one is gone.
        capability: text of its capability, needed to attach again.
        digest: whether it announces the SHA-256 of each object it puts.
        timeout: seconds of its calls without a timeout; None for no limit.
    """

    allow_pickle: Allowed | None = None
    job: str | None = None
    reconnect: bool = False
    capability: str | None = None
    digest: bool = False
    timeout: float | None = None


class Shared:
    """The state of one process. A forked child starts with a new one."""

    def __init__(self) -> None:
        # Re-entrant: `hoplite.client` calls `init`.
        self.lock = threading.RLock()
        self.node: Node | None = None
        # All nodes that `init` started here, the current one last. They leave when the process ends.
        self.nodes: list[Node] = []
        self.leave_timeout: float | None = None
        self.client: Client | None = None
        # Options of the last client; a forked child uses them for its own.
        self.options = ClientOptions()
        # Socket of the node that `client` is attached to.
        self.path: str | None = None
        # In a forked child: the socket of the parent's node, and the parent's client and nodes. Dropping these could
        # wait for threads that do not exist in the child.
        self.inherited: str | None = None
        self.of_parents: list[object] = []

    def keep(self, client: Client, path: str, options: ClientOptions) -> Client:
        """Makes a client the shared client of the process."""
        self.client, self.path, self.options = client, path, options
        return client

    def last_client(self) -> Client | None:
        """The client that the last `init` of this process returned, if it is still open."""
        client = self.client
        if client is None or client.closed or (client.node is not None and client.node.closed):
            return None
        return client

    def own(self) -> Node | None:
        """The node that `init` started in this process, if it is still open."""
        return self.node if self.node is not None and not self.node.closed else None

    def become_child(self) -> None:
        """Resets the state in a forked child."""
        self.of_parents += [self.client, *self.nodes]
        self.inherited = self.path or self.inherited
        self.lock = threading.RLock()
        self.node = self.client = self.path = None
        self.nodes = []


shared = Shared()
os.register_at_fork(after_in_child=shared.become_child)
