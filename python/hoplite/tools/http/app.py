"""The paths of the live page: files of the page, frames as server-sent events, objects, events and metrics.

Every path except /healthz, /login and the styles of the login form needs a key. Does not know keys or clusters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.tools.http.access import COOKIE, SECURE_COOKIE
from hoplite.tools.http.exporter import collect
from hoplite.tools.http.objects import Objects
from hoplite.tools.http.places import VIEWERS_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from hoplite import Client
    from hoplite.tools.http.access import Access
    from hoplite.tools.http.places import Places
    from hoplite.tools.observe.observer import Observer

PAGE = Path(__file__).parent / "page"
# What the login form needs.
PUBLIC = ("/healthz", "/login", "/page.css")

COOKIE_S = 30 * 86400
BODY_MAX = 4096
BODY_TIMEOUT_S = 10.0
STREAMS_MAX = 64
EVENTS_MAX = 1000

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Gate:
    """Rejects requests without a key, or meant for another host; adds the headers of every reply.

    A connection without a key is closed after one reply: its next requests must not wait in memory, and a short reply
    leaves the process whether or not the peer reads it.
    """

    def __init__(self, app: ASGIApp, access: Access, places: Places) -> None:
        self._app = app
        self._access = access
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        has_key = False

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                if not has_key:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        app = self._app
        has_key = self._access.permits(headers.get("authorization"), headers.get("cookie"))
        if has_key and not self._places.show_key(scope["client"]):
            has_key = False
            app = _error(503, f"{VIEWERS_MAX} connections of viewers are open: close some pages")
        elif not self._access.is_host(headers.get("host")):
            app = _error(421, "this name is not one of loopback: use http://127.0.0.1, or set another http address")
        elif path not in PUBLIC and not has_key:
            app = _login(401) if path == "/" else _error(401, "a key is missing or wrong: hoplite token viewer")
        await app(scope, receive, send_with_headers)


class Paths:
    """The handlers of all paths.

    Args:
        client: attached to the node that is shown.
        observer: the activity of its cluster.
        access: the keys.
    """

    def __init__(self, client: Client, observer: Observer, access: Access) -> None:
        self._client: Any = client
        self._observer = observer
        self._access = access
        self._objects = Objects(client)
        self._streams = 0

    async def metrics(self, request: Request) -> Response:
        """The metrics of this node, in the format that the reader accepts."""
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(await collect(self._client)), media_type=kind)

    async def stream(self, _: Request) -> Response:
        """Frames, until the viewer leaves."""
        if self._streams >= STREAMS_MAX:
            return _error(503, f"{STREAMS_MAX} pages are open: close one")
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._frames(), media_type="text/event-stream", headers=headers)

    async def _frames(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            async with contextlib.aclosing(self._observer.texts()) as texts:
                async for text in texts:
                    yield f"data: {text}\n\n"
        finally:
            self._streams -= 1

    async def objects(self, request: Request) -> Response:
        """Objects of the cluster, in parts."""
        query = request.query_params
        found = await self._objects.part(
            query.get("prefix", ""), query.get("sort", "ref"), _number(query, "limit", 100), query.get("after") or None
        )
        return JSONResponse(found)

    async def story(self, request: Request) -> Response:
        """One object: its row, its copies and its story."""
        ref = request.query_params.get("ref", "")
        if not ref:
            raise InvalidArgument("ref is missing: add ?ref=REF")
        return JSONResponse(await self._objects.show(ref))

    async def events(self, request: Request) -> Response:
        """Recent events, the newest first."""
        query = request.query_params
        limit, before = min(_number(query, "limit", 100), EVENTS_MAX), _number(query, "before", None)
        await self._observer.look()
        kind, node = query.get("kind") or None, query.get("node") or None
        found = self._observer.model.history(limit, before=before, kind=kind, node=node)
        return JSONResponse({"events": found})

    async def log_in(self, request: Request) -> Response:
        """Exchanges a key for a cookie."""
        body = b""
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in request.stream():
                    body += part
                    if len(body) > BODY_MAX:
                        return _error(413, "the form is too long")
        except TimeoutError:
            return _error(408, "the form has not arrived")
        key = parse_qs(body.decode(errors="replace")).get("key", [""])[0].strip()
        cookie = self._access.log_in(key)
        if cookie is None:
            return _login(401)
        reply = RedirectResponse("/", 303)
        # A reverse proxy with TLS sets this header. Without it, the cookie is one of plain HTTP.
        is_secure = request.headers.get("x-forwarded-proto") == "https"
        name = SECURE_COOKIE if is_secure else COOKIE
        reply.set_cookie(name, cookie, max_age=COOKIE_S, secure=is_secure, httponly=True, samesite="strict")
        return reply


def make_app(client: Client, observer: Observer, access: Access, places: Places) -> ASGIApp:
    """Returns the application of one node."""
    paths = Paths(client, observer, access)
    routes = [
        Route("/metrics", paths.metrics),
        Route("/healthz", _healthy),
        Route("/login", paths.log_in, methods=["POST"]),
        Route("/api/stream", paths.stream),
        Route("/api/objects", paths.objects),
        Route("/api/object", paths.story),
        Route("/api/events", paths.events),
        *(Route("/" if file.name == "index.html" else f"/{file.name}", _file(file)) for file in PAGE.iterdir()),
    ]
    handlers = {InvalidArgument: _invalid, HopliteError: _failed}
    gate = Middleware(Gate, access=access, places=places)
    return Starlette(routes=routes, middleware=[gate], exception_handlers=handlers)


def _file(file: Path) -> Callable[[Request], Awaitable[Response]]:
    content, kind = file.read_bytes(), mimetypes.guess_type(file.name)[0]

    async def reply(_: Request) -> Response:
        return Response(content, media_type=kind)

    return reply


def _login(status: int) -> Response:
    return Response((PAGE / "login.html").read_bytes(), status, media_type="text/html")


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


async def _healthy(_: Request) -> Response:
    return PlainTextResponse("ok\n")


async def _invalid(_: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _failed(_: Request, error: Exception) -> Response:
    return _error(503, str(error))


def _number(query: Any, name: str, default: Any) -> Any:  # noqa: ANN401 - a number, or the default
    text = query.get(name)
    if not text:
        return default
    try:
        number = float(text) if default is None else int(text)
        json.dumps(number, allow_nan=False)
    except ValueError:
        kind = "number" if default is None else "whole number"
        raise InvalidArgument(f"{name} is {text!r}: write a {kind}") from None
    if number < 0 or number > 1e12:
        raise InvalidArgument(f"{name} is {text}: write a number from 0 to 1e12")
    return number
