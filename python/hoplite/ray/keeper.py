"""The keeper: an actor that runs the Hoplite node of one Ray node, and waits for results of reduces.

The node runs inside the actor's process and ends with the actor. The actor ends with its raylet. All methods are
coroutines, so thousands of calls can wait. A keeper does not know the other Ray nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from typing import TYPE_CHECKING, Any

import ray

from hoplite import Client, HopliteError, InvalidArgument, Node, ObjectLost, Ref, Timeout, connect, sockets
from hoplite._aside import in_own_thread
from hoplite.addresses import is_ip
from hoplite.ray import place
from hoplite.ray._versions import unknown
from hoplite.ray.objects import Stored

if TYPE_CHECKING:
    from pathlib import Path

# Interval between checks for a failed node.
FAILURE_EVERY_S = 0.2

DELETE_S = 10.0

# Concurrent waits for results. Each takes some tens of KiB.
CONCURRENCY = 1_000_000


class Secret:
    """The token of a cluster, with a repr that hides it from messages and logs.

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
    """Runs the Hoplite node of one Ray node, from `begin` to `end`."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._client: Client | None = None
        self._secret: Secret | None = None
        self._ended = asyncio.Event()
        # Completed by `give_up`, with its reason, by the name of the wait.
        self._given_up: dict[str, asyncio.Future[str | None]] = {}
        self._beginning = asyncio.Lock()

    async def begin(self, secret: Secret, cluster: str, join: list[str], capacity: int | str | None, port: int) -> Any:
        """Starts the node, unless it runs already.

        Args:
            secret: the token of the cluster.
            cluster: the name of the cluster.
            join: addresses of running nodes.
            capacity: capacity of the store; None is the default of a node.
            port: TCP port for other nodes; 0 selects a free one.

        Returns:
            The facts; see `facts`.

        Raises:
            HopliteError: the node can't start; the error of `hoplite.Node`.
        """
        async with self._beginning:
            if self._node is None:
                self._secret = secret
                self._node = await in_own_thread(_started, secret, cluster, join, capacity, port)
                self._client = await in_own_thread(connect, f"unix:{self._node.socket}")
        return await self.facts()

    async def facts(self) -> dict[str, Any] | None:
        """Returns the "address", "socket" and "id" of the node and the "pid" of its process; None without a node."""
        if self._node is None or self._node.closed:
            return None
        node = self._node
        return {"address": node.address, "socket": node.socket, "id": node.id, "pid": os.getpid()}

    async def secret(self) -> Secret | None:
        """Returns the token of the node, for a restarted supervisor."""
        return self._secret

    async def watch(self) -> str:
        """Waits until the node has ended, and returns the reason."""
        node = self._node
        while node is not None and not node.closed and not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), FAILURE_EVERY_S)
        return (node is not None and node.failure) or "it was closed"

    async def result(self, text: str, wait: str) -> tuple[Stored | None, None]:
        """Waits for the result of a reduce that a process of this Ray node has started.

        Args:
            text: the ref of the result.
            wait: a unique name of this wait. The ref alone may name another reduce later.

        Returns:
            A pair. The first value is what Ray stores for the result, or None if no process wants the result any more.
            The second is None: its ObjectRef shows the end of the wait without referring to the result.

        Raises:
            HopliteError: there will be no result; the error of `Client.get`, or the reason passed to `give_up`.
        """
        given_up = self._given_up[wait] = asyncio.get_running_loop().create_future()
        folded = asyncio.ensure_future(self._folded(text))
        try:
            await asyncio.wait((folded, given_up), return_when=asyncio.FIRST_COMPLETED)
            if not given_up.done():
                await folded
                return Stored(text), None
            if (why := given_up.result()) is not None:
                raise ObjectLost(why)
            return None, None
        finally:
            folded.cancel()
            del self._given_up[wait]

    async def _folded(self, text: str) -> None:
        """Waits until a reduce has its result; raises the error if it has none."""
        assert self._client is not None
        try:
            await Ref(text, self._client).inputs_async(place.FOREVER_S)
        except InvalidArgument:
            # The reduce ended before this call. If the name still exists, a get returns its result or error.
            try:
                await self._client.get_async(text, timeout=0)
            except Timeout:
                raise ObjectLost(f"the reduce {text} ended before this wait for its result began") from None

    async def give_up(self, text: str, wait: str, why: str | None, *, delete: bool) -> bool:
        """Ends the wait for the result of a reduce, unless it has ended already.

        Args:
            text: the ref of the result.
            wait: the name of the wait, as passed to `result`.
            why: the reason, if too few inputs can arrive from Ray; None if no process wants the result.
            delete: whether to delete the reduce too. If there is a reason, it is deleted only if the wait was active,
                because its name may be in use again.

        Returns:
            Whether the wait was active. Ray may run this call before an earlier call of `result`.
        """
        assert self._client is not None
        given_up = self._given_up.get(wait)
        waited = given_up is not None and not given_up.done()
        if given_up is not None and waited:
            given_up.set_result(why)
        if delete and (waited or why is None):
            with contextlib.suppress(HopliteError):
                await self._client.delete_async(text, timeout=DELETE_S)
        return waited

    async def end(self) -> None:
        """Closes the node without transferring its objects, because all nodes of the cluster end."""
        if self._node is not None:
            with contextlib.suppress(HopliteError):
                await in_own_thread(self._node.close, 0)
        self._ended.set()


def _started(secret: Secret, cluster: str, join: list[str], capacity: int | str | None, port: int) -> Node:
    """Starts the node; see `Keeper.begin`."""
    path = sockets.raylet_socket()
    if path is None:
        raise unknown("does not set RAY_RAYLET_PID for its workers")
    _clear(path.parent)
    # Each attached process uses two descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host = ray.util.get_node_ip_address()
    return Node(
        listen=f"[{host}]:{port}" if is_ip(host) and ":" in host else f"{host}:{port}",
        join=join,
        cluster=cluster,
        capacity=capacity,
        token=secret.text,
        socket=path,
    )


def _clear(folder: Path) -> None:
    """Removes the sockets of keepers whose raylets have ended."""
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
