"""Places of connections: a connection without a key can neither take the place of one with a key, nor stay long.

Each connection uses a file descriptor of the node's process. Does not know HTTP or keys.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Connections at once that have not presented a key. Browsers use up to six each.
STRANGERS_MAX = 64
# Connections at once that have.
VIEWERS_MAX = 192
# One network of IPv6 has as many addresses as it likes.
IPV6_NETWORK_BITS = 64

# Address and port of a peer.
Peer = tuple[str, int]


class Places:
    """The open connections of a server."""

    def __init__(self) -> None:
        # How to close each, the oldest first.
        self._strangers: dict[Peer, Callable[[], None]] = {}
        self._viewers: dict[Peer, Callable[[], None]] = {}

    def enter(self, peer: Peer, close: Callable[[], None]) -> None:
        """Records a new connection. If there are too many without a key, closes one of them.

        That is the oldest one of the host with the most: a host that opens many delays only itself. A viewer of that
        host sends its key at once, and so keeps its place.
        """
        self._strangers[peer] = close
        if len(self._strangers) > STRANGERS_MAX:
            hosts = Counter(_host(each) for each in self._strangers)
            most = max(hosts.values())
            oldest = next(each for each in self._strangers if hosts[_host(each)] == most)
            self._strangers.pop(oldest)()

    def show_key(self, peer: Peer) -> bool:
        """Records that a connection has presented a key. Returns false if too many have."""
        if peer in self._viewers:
            return True
        if len(self._viewers) >= VIEWERS_MAX:
            return False
        close = self._strangers.pop(peer, None)
        if close is not None:
            self._viewers[peer] = close
        return True

    def leave(self, peer: Peer) -> None:
        """Records that a connection is closed."""
        self._strangers.pop(peer, None)
        self._viewers.pop(peer, None)


def _host(peer: Peer) -> str:
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
    return str(address)
