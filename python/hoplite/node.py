"""A node inside this process: the store of its host, and a member of a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hoplite import _native, sockets
from hoplite._arguments import check_capacity, check_text, check_timeout
from hoplite.client import Client
from hoplite.errors import AddressInUse, NodeDown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

TOKEN_VARIABLE = "HOPLITE_TOKEN"


class Node:
    """Starts a node in this process: one store of shared memory, listening for other nodes and for local processes.

    Use it in a `with`, or `close` it: a node that leaves hands over what only it holds.

    Args:
        listen: host and port for other nodes, TCP and UDP; port 0 takes any free one.
        join: addresses of nodes of the cluster, any of them will do; none begins a new cluster. The node's own address
            among them is ignored.
        capacity: most bytes the store may take, a number or text such as "8GiB"; None means 30 % of the memory of the
            host or cgroup, divided among this user's nodes on the host.
        cluster: the cluster's name; only nodes of one name join.
        token: the cluster's secret, never sent; None means the environment's HOPLITE_TOKEN, if set.
        insecure: allow to listen off loopback with no token.
        advertise: the address that others should use, where it is not the one listened on: in containers, or with
            0.0.0.0.
        socket: path of the Unix socket for this host's processes; None means this user's default one, at which
            `hoplite.init()` looks, or one of this node's own if another node serves that.

    Raises:
        AddressInUse: another process has the port, or the socket.
        InvalidArgument: an argument makes no sense, or the node would be open to the network with no token.
        JoinError: nobody of the cluster answered, or with another cluster name, token or protocol version.
    """

    def __init__(
        self,
        *,
        listen: str = "127.0.0.1:0",
        join: Iterable[str] = (),
        capacity: int | str | None = None,
        cluster: str = "default",
        token: str | None = None,
        insecure: bool = False,
        advertise: str | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        wanted = None if socket is None else check_text("socket", socket)
        seeds = [join] if isinstance(join, str) else list(join)
        listen = check_text("listen", listen)
        seeds = [check_text("an address to join", seed) for seed in seeds]
        cluster = check_text("cluster", cluster)
        token = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
        limit = check_capacity(capacity)

        while True:
            path = sockets.free_path(wanted)
            try:
                self._native = _native.Node(
                    listen=listen,
                    join=seeds,
                    capacity=limit,
                    cluster=cluster,
                    token=token,
                    insecure=insecure,
                    advertise=advertise,
                    socket=path,
                )
                break
            except AddressInUse:
                # Another process took the path between our look and our listening: any other path will do.
                if wanted is not None or not sockets.is_served(path):
                    raise
        # Where the node was made: a child made by fork inherits this object but not the node.
        self._pid = os.getpid()

    @property
    def address(self) -> str:
        """Host and port that other nodes join, such as "10.0.0.3:7420"."""
        return self._native.address

    @property
    def socket(self) -> str:
        """Path of the Unix socket that processes of this host attach to."""
        return self._native.socket

    @property
    def id(self) -> str:
        """The node's identity, new at each start."""
        return self._native.id

    @property
    def closed(self) -> bool:
        """Whether the node has left."""
        return self._native.closed

    def client(self) -> Client:
        """Attaches a client; each can be closed alone.

        Raises:
            NodeDown: the node is closed.
        """
        if self.closed:
            raise NodeDown(f"node {self.id} is closed")
        return Client(self._native.client(), node=self)

    def close(self, timeout: float | None = None) -> None:
        """Leaves the cluster: hands over what only this node holds, then frees its store. Closing twice is fine.

        Calls that wait on this node raise `NodeDown`. Values that `get` returned stay valid.

        Args:
            timeout: seconds the handing over may take; None lets it take what it needs.
        """
        limit = check_timeout(timeout)
        if os.getpid() == self._pid:
            self._native.close(limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<hoplite.Node {self.id} at {self.address}{', closed' if self.closed else ''}>"
