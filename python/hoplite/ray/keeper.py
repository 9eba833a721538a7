"""The actor that runs the Hoplite node of one Ray node, inside its process, and waits for results of reduces there.

The node ends with the actor, and the actor with its raylet. All methods are coroutines: thousands may wait. Knows no
other Ray node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from typing import TYPE_CHECKING, Any

import ray

from hoplite import Client, HopliteError, InvalidArgument, Node, ObjectLost, Ref, Timeout, connect, sockets
from hoplite.addresses import is_ip
from hoplite.ray._versions import unknown
from hoplite.ray.objects import Stored

if TYPE_CHECKING:
    from pathlib import Path

# Between two looks whether the node has ended itself.
FAILURE_EVERY_S = 0.2

DELETE_S = 10.0

# Results that may be waited for at once; each takes some tens of KiB.
CONCURRENCY = 1_000_000


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
        self._client: Client | None = None
        self._secret: Secret | None = None
        self._ended = asyncio.Event()
        # By wait for a result, what `give_up` says of it.
        self._given_up: dict[str, asyncio.Future[str | None]] = {}
        self._beginning = asyncio.Lock()

    async def begin(self, secret: Secret, cluster: str, join: list[str], capacity: int | str | None, port: int) -> Any:
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
        async with self._beginning:
            if self._node is None:
                self._secret = secret
                self._node = await asyncio.to_thread(_started, secret, cluster, join, capacity, port)
                self._client = await asyncio.to_thread(connect, f"unix:{self._node.socket}")
        return await self.facts()

    async def facts(self) -> dict[str, Any] | None:
        """The "address", "socket" and "id" of the node and the "pid" of its process; None if there is no node."""
        if self._node is None or self._node.closed:
            return None
        node = self._node
        return {"address": node.address, "socket": node.socket, "id": node.id, "pid": os.getpid()}

    async def secret(self) -> Secret | None:
        """What the node was told, for a supervisor that has forgotten it."""
        return self._secret

    async def watch(self) -> str:
        """Returns when the node has ended, and why."""
        node = self._node
        while node is not None and not node.closed and not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), FAILURE_EVERY_S)
        return (node is not None and node.failure) or "it was closed"

    async def result(self, text: str, wait: str) -> tuple[Stored | None, None]:
        """Waits for the result of a reduce that a process of this Ray node has begun.

        Args:
            text: of its ref.
            wait: names this wait, which is of one reduce; its ref may name another later.

        Returns:
            What Ray has of it, or None if no process wants it any more; and None, whose ObjectRef tells that this is
            over and is no reference to the result.

        Raises:
            HopliteError: there will be none, in the words of `hoplite.get`, or of `give_up`.
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
        """Returns when a reduce has its result, or raises why it has none."""
        assert self._client is not None
        try:
            await Ref(text, self._client).inputs_async()
        except InvalidArgument:
            # It was over before it was asked for: a name that stands for its end tells how.
            try:
                await self._client.get_async(text, timeout=0)
            except Timeout:
                raise ObjectLost(f"the reduce {text} ended before its result was waited for") from None

    async def give_up(self, text: str, wait: str, why: str | None, *, delete: bool) -> bool:
        """Ends the wait for the result of a reduce, unless it is over.

        Args:
            text: of the ref of the result.
            wait: names the wait, as `result` was told.
            why: the reason, if too few inputs can come from Ray; None if no process wants the result.
            delete: whether the reduce ends too, at once. With a reason it may have a name, and ends only with its wait.

        Returns:
            Whether the wait was under way. Ray may run this before the `result` that was called before it.
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
        """Leaves the cluster without handing anything over: all nodes of it end."""
        if self._node is not None:
            with contextlib.suppress(HopliteError):
                await asyncio.to_thread(self._node.close, 0)
        self._ended.set()


def _started(secret: Secret, cluster: str, join: list[str], capacity: int | str | None, port: int) -> Node:
    """Starts the node; see `Keeper.begin`."""
    path = sockets.raylet_socket()
    if path is None:
        raise unknown("does not set RAY_RAYLET_PID for its workers")
    _clear(path.parent)
    # Each attached process takes two descriptors.
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
