"""The thread that serves HTTP: Uvicorn, on a port that is already open."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hoplite.tools.http.access import Access
from hoplite.tools.http.app import make_app
from hoplite.tools.http.places import Places
from hoplite.tools.observe.observer import Observer

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Sequence

    from hoplite import Client

CLOSE_TIMEOUT_S = 5.0
# Connections that wait to be accepted.
BACKLOG = 64
# Seconds after which a connection without a whole request is closed, and one whose peer has read nothing of a reply.
REQUEST_TIMEOUT_S = 10.0

# Of failed requests. What strangers send wrong is not logged.
LOGGER = logging.getLogger("hoplite.http")
LOGGER.setLevel(logging.ERROR)


class Config(uvicorn.Config):
    """Has the places of all connections. Leaves the loggers of Uvicorn as they are: the program may run it too."""

    places: Places

    def configure_logging(self) -> None:
        """Does nothing."""


class Connection(H11Protocol):
    """Is closed if it is one too many, without a request, or if its peer reads nothing."""

    config: Config
    # Bytes that waited to be sent at the last check; 0 if they have been sent since.
    _unsent = 0
    _checking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Accepts the connection."""
        super().connection_made(transport)
        self.logger = LOGGER
        # Uvicorn then sends nothing more until all is sent: what waits only becomes less.
        transport.set_write_buffer_limits(high=0)
        if self.client is None:
            # The peer has closed it already.
            transport.abort()
            return
        self.config.places.enter(self.client, transport.abort)
        self._checking = self.loop.call_later(REQUEST_TIMEOUT_S, self._check, self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Frees its place."""
        if self._checking is not None:
            self._checking.cancel()
        if self.client is not None:
            self.config.places.leave(self.client)
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Notes that all is sent."""
        self._unsent = 0
        super().resume_writing()

    def _check(self, before: Any) -> None:  # noqa: ANN401 - a request of Uvicorn
        """Closes the connection if it is idle since the request before the last check, or nothing was sent since."""
        unsent = self.transport.get_write_buffer_size()
        if unsent > 0 and unsent == self._unsent:
            self.transport.abort()
            return
        self._unsent = unsent
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is before:
            self.transport.close()
        self._checking = self.loop.call_later(REQUEST_TIMEOUT_S, self._check, self.cycle if is_idle else self)


class Uvicorn(uvicorn.Server):
    """Ends streams of frames before it waits for open requests."""

    def __init__(self, config: uvicorn.Config, observer: Observer) -> None:
        super().__init__(config)
        self._observer = observer

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes all connections."""
        await self._observer.close()
        await super().shutdown(sockets)


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


class Server:
    """Serves the page and the metrics of one node.

    Args:
        listener: an open port.
        keys: keys that viewers may present; empty if they need none.
    """

    def __init__(self, listener: socket.socket, keys: Sequence[str]) -> None:
        self._listener = listener
        host, port = listener.getsockname()[:2]
        ip = ipaddress.ip_address(host.partition("%")[0])
        self._access = Access(keys, is_loopback=ip.is_loopback)
        self.url = f"http://[{host}]:{port}" if ip.version == 6 else f"http://{host}:{port}"
        self._server: Uvicorn | None = None
        self._thread: threading.Thread | None = None
        _servers.add(self)

    def start(self, client: Client) -> None:
        """Serves requests in a thread until `close`, which also closes the client."""
        observer = Observer(client)
        places = Places()
        config = Config(
            make_app(client, observer, self._access, places),
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http=Connection,
            ws="none",
            backlog=BACKLOG,
            server_header=False,
            timeout_graceful_shutdown=1,
            # A header of the peer must not change its address.
            proxy_headers=False,
        )
        config.places = places
        self._server = Uvicorn(config, observer)
        self._thread = threading.Thread(target=self._run, args=(client,), name="hoplite-http", daemon=True)
        self._thread.start()

    def _run(self, client: Client) -> None:
        assert self._server is not None
        try:
            self._server.run(sockets=[self._listener])
        finally:
            client.close()

    def close(self) -> None:
        """Ends all requests and closes the port."""
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)
        self._listener.close()


def _close_in_child() -> None:
    """Closes the ports in a child made by fork, which has no thread that serves them."""
    for server in _servers:
        with contextlib.suppress(OSError):
            server._listener.close()


os.register_at_fork(after_in_child=_close_in_child)
