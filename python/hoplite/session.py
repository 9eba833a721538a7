"""How a script finds its node: `init` looks around, `connect` is told."""

from __future__ import annotations

import atexit
import ipaddress
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from hoplite import _native, sockets
from hoplite._arguments import check_text, check_timeout
from hoplite.client import Client
from hoplite.errors import ConnectError, HopliteError, InvalidArgument
from hoplite.node import Node

if TYPE_CHECKING:
    from hoplite._native import Client as NativeClient

ADDRESS_VARIABLE = "HOPLITE_ADDRESS"
UNIX = "unix:"

# Handing over at a script's end: enough for some GB on a fast network, too short to look like a hang.
EXIT_TIMEOUT_S = 30.0


class _Session:
    """What `init` keeps for the process: its embedded node, and the client that a ref from elsewhere asks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.node: Node | None = None
        # Weak: a client that nobody holds detaches.
        self.client: weakref.ref[Client] | None = None


_session = _Session()


def init(
    address: str | None = None,
    *,
    embedded: bool = False,
    timeout: float | None = 10.0,
    capacity: int | str | None = None,
    cluster: str | None = None,
    token: str | None = None,
    insecure: bool = False,
) -> Client:
    """Attaches this process to a node, and starts one here if there is none.

    Looks, in this order, at `address` or else the environment's HOPLITE_ADDRESS; at this user's running node on this
    host; and starts an embedded node otherwise. An embedded node serves this user's default socket, so that the next
    script on the host finds it; it leaves at the end of the process, or by `client.node.close()`.

    Args:
        address: "unix:/path" attaches to the node there; "host:port" (several with commas) starts an embedded node that
            joins that cluster.
        embedded: start a node of one's own even if one runs on this host.
        timeout: seconds to wait for a running node to answer.
        capacity: of an embedded node, as for `Node`.
        cluster: of an embedded node, as for `Node`.
        token: of an embedded node, as for `Node`.
        insecure: of an embedded node, as for `Node`.

    Returns:
        A client; `client.node` is the node if it is embedded in this process.

    Raises:
        ConnectError: no node serves the given socket.
        InvalidArgument: the address is not understood, or options of an embedded node are given where a running node
            is used.
        JoinError: nobody at the given address answered.
    """
    limit = check_timeout(timeout)
    options = _node_options(capacity, cluster, token, insecure)
    if address is None:
        address = os.environ.get(ADDRESS_VARIABLE) or None
    else:
        address = check_text("address", address)

    with _session.lock:
        if address is not None and address.startswith(UNIX) and not embedded:
            _refuse(options, f"{address} is a running node")
            return _keep(Client(_attach(address.removeprefix(UNIX), limit)))

        join = [] if address is None or address.startswith(UNIX) else address.split(",")
        own = _session.node
        if own is not None and own._pid == os.getpid() and not own.closed and not options:
            return _keep(own.client())
        if not join and not embedded:
            path = sockets.default_socket()
            if sockets.is_served(path):
                client = Client(_attach(str(path), limit))
                _refuse(options, f"a node of yours runs on this host already (unix:{path})")
                return _keep(client)
        node = Node(listen=_listen_address(join), join=join, **options)  # type: ignore[arg-type]
        _session.node = node
        atexit.register(_leave, node)
        return _keep(node.client())


def connect(address: str, *, timeout: float | None = 10.0) -> Client:
    """Attaches this process to a node of this host.

    Args:
        address: "unix:" and the path of the node's socket, or the path alone.
        timeout: seconds to wait for the node to answer.

    Raises:
        ConnectError: no node serves that socket.
        InvalidArgument: the address is that of another kind.
    """
    text = check_text("address", address)
    path = text.removeprefix(UNIX)
    if path == text and not path.startswith(("/", ".")):
        raise InvalidArgument(
            f'{text!r} is no socket: connect takes "unix:/path"; hoplite.init({text!r}) joins a cluster'
        )
    return Client(_attach(path, check_timeout(timeout)))


def last_client() -> Client | None:
    """The client that the last `init` of this process returned, if it is still open."""
    client = _session.client() if _session.client is not None else None
    return client if client is not None and not client.closed else None


def _attach(path: str, timeout: float | None) -> NativeClient:
    if not path:
        raise InvalidArgument('the address "unix:" has no path')
    if not sockets.is_served(path):
        raise ConnectError(f"no node serves {path}")
    return _native.connect(path, timeout)


def _keep(client: Client) -> Client:
    _session.client = weakref.ref(client)
    return client


def _leave(node: Node) -> None:
    try:
        node.close(EXIT_TIMEOUT_S)
    except HopliteError:
        # The process ends; whoever needs what was here is told by the cluster.
        return


def _node_options(
    capacity: int | str | None, cluster: str | None, token: str | None, insecure: bool
) -> dict[str, object]:
    options = {"capacity": capacity, "cluster": cluster, "token": token, "insecure": insecure}
    return {option: value for option, value in options.items() if value not in (None, False)}


def _refuse(options: dict[str, object], because: str) -> None:
    if options:
        raise InvalidArgument(
            f"{', '.join(options)} would have no effect: {because}; embedded=True starts one of your own"
        )


def _listen_address(join: list[str]) -> str:
    """Chooses where a node listens so that the nodes it joins can reach it."""
    for seed in join:
        host, colon, port = seed.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isdigit():
            raise InvalidArgument(f'{seed!r} is no address; write "host:port", or "unix:/path" for a node of this host')
        try:
            family, _, _, _, target = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
            # No packet is sent: the kernel only says from which address it would go.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
        except OSError:
            # The next seed may do; if none does, joining says why.
            continue
        return f"[{own}]:0" if own.version == 6 else f"{own}:0"
    return "127.0.0.1:0"
