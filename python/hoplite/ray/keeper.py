"""The actor that runs the Hoplite node of one Ray node, inside its process.

It ends with the actor, and the actor with its raylet. Knows no other Ray node.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from typing import TYPE_CHECKING, Any

import ray

from hoplite import HopliteError, Node, sockets
from hoplite.addresses import is_ip
from hoplite.ray._versions import unknown

if TYPE_CHECKING:
    from pathlib import Path

# Between two looks whether the node has ended itself.
FAILURE_EVERY_S = 0.2


class Secret:
    """The token of a cluster, which no message or log tells.

    Args:
        text: the token.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self.text,)

    def __repr__(self) -> str:
        return "<hoplite.ray secret>"


class Keeper:
    """Runs the node, once it is told how."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._secret: Secret | None = None
        self._ended = threading.Event()

    def begin(self, secret: Secret, cluster: str, join: list[str], capacity: int | str | None, port: int) -> Any:
        """Starts the node, if it has not been started.

        Args:
            secret: what the nodes of the cluster prove to each other.
            cluster: its name.
            join: addresses of nodes that run.
            capacity: most bytes of the store; None is the default of a node.
            port: TCP port for other nodes; 0 takes any.

        Returns:
            The facts; see `facts`.

        Raises:
            HopliteError: the node can't start, in the words of `hoplite.Node`.
        """
        if self._node is None:
            path = sockets.raylet_socket()
            if path is None:
                raise unknown("does not set RAY_RAYLET_PID for its workers")
            _clear(path.parent)
            # Each attached process takes two descriptors.
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            host = ray.util.get_node_ip_address()
            self._node = Node(
                listen=f"[{host}]:{port}" if is_ip(host) and ":" in host else f"{host}:{port}",
                join=join,
                cluster=cluster,
                capacity=capacity,
                token=secret.text,
                socket=path,
            )
            self._secret = secret
        return self.facts()

    def facts(self) -> dict[str, Any] | None:
        """The "address", "socket" and "id" of the node and the "pid" of its process; None if there is no node."""
        if self._node is None or self._node.closed:
            return None
        node = self._node
        return {"address": node.address, "socket": node.socket, "id": node.id, "pid": os.getpid()}

    def secret(self) -> Secret | None:
        """What the node was told, for a supervisor that has forgotten it."""
        return self._secret

    def watch(self) -> str:
        """Returns when the node has ended, and why."""
        node = self._node
        while node is not None and not node.closed and not self._ended.wait(FAILURE_EVERY_S):
            continue
        return (node is not None and node.failure) or "it was closed"

    def end(self) -> None:
        """Leaves the cluster without handing anything over: all nodes of it end."""
        if self._node is not None:
            with contextlib.suppress(HopliteError):
                self._node.close(0)
        self._ended.set()


def _clear(folder: Path) -> None:
    """Removes the sockets that keepers of raylets which are gone have left behind."""
    for left_over in folder.glob("ray-*.sock"):
        pid = left_over.stem.removeprefix("ray-")
        if pid.isdigit() and not _lives(int(pid)):
            left_over.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
