"""Limits of the HTTP server: viewers without a key can't use up the descriptors of a node's process."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from fake_activity import FakeClient, FakeCluster
from support import SOON

try:
    from hoplite.tools.http import app, places, serve, server
    from hoplite.tools.http.access import COOKIE, Access, cookie_of
except ImportError:
    pytest.skip("needs the extra http; make test-operations has it", allow_module_level=True)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.operations

KEY = "0123456789abcdef"


@contextlib.contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Serves a fake cluster; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    running = serve(listener, [KEY])
    running.start(FakeCluster(4).client())  # type: ignore[arg-type] # a fake
    try:
        yield address
    finally:
        running.close()


def replied(stranger: socket.socket) -> bytes:
    """Returns what arrives until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := stranger.recv(4096):
            found += part
    return found


def metrics(address: tuple[str, int]) -> bytes:
    """Returns the reply to a scrape with the key."""
    with socket.create_connection(address, SOON) as viewer:
        headers = f"Host: localhost\r\nConnection: close\r\nAuthorization: Bearer {KEY}\r\n\r\n"
        viewer.sendall(f"GET /metrics HTTP/1.1\r\n{headers}".encode())
        return replied(viewer)


@pytest.mark.parametrize(
    "begin",
    [b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3000],
    ids=["nothing", "part", "pipelined"],
)
def test_strangers_that_never_read_keep_no_viewer_out(begin: bytes) -> None:
    with served() as address, contextlib.ExitStack() as stack:
        for number in range(300):
            stranger = stack.enter_context(socket.create_connection(address, SOON))
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                stranger.sendall(begin)
            if len(begin) < 100 and number % 50 == 0:
                assert b" 200 " in metrics(address)
        assert b" 200 " in metrics(address)


def test_a_connection_with_a_key_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "STRANGERS_MAX", 4)
    request = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    with served() as address, contextlib.ExitStack() as stack:
        viewer = stack.enter_context(socket.create_connection(address, SOON))
        viewer.sendall(request)
        assert b" 200 " in viewer.recv(65536)
        strangers = [stack.enter_context(socket.create_connection(address, SOON)) for _ in range(5)]
        assert replied(strangers[0]) == b"", "the oldest is closed"
        viewer.sendall(request)
        while b" 200 " not in viewer.recv(65536):
            pass


def test_viewers_beyond_the_limit_get_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "VIEWERS_MAX", 1)
    request = f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    with served() as address, socket.create_connection(address, SOON) as first:
        first.sendall(request)
        assert b" 200 " in first.recv(4096)
        with socket.create_connection(address, SOON) as second:
            second.sendall(request)
            assert b"close some pages" in replied(second)


def test_the_oldest_stranger_of_the_host_with_the_most_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "STRANGERS_MAX", 3)
    open_, closed = places.Places(), []
    for peer in [("10.0.0.1", 1), ("2001:db8::1", 2), ("2001:db8::2", 3), ("10.0.0.2", 4), ("10.0.0.3", 5)]:
        open_.enter(peer, lambda peer=peer: closed.append(peer[1]))  # type: ignore[misc]
    assert closed == [2, 1]
    assert open_.show_key(("10.0.0.2", 4))
    open_.leave(("10.0.0.3", 5))
    for port in range(6, 9):
        open_.enter(("10.0.0.4", port), lambda port=port: closed.append(port))  # type: ignore[misc]
    assert closed == [2, 1, 6]


def test_a_viewer_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    request = f"GET /page.js HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
    with served() as address, socket.socket() as viewer:
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        viewer.settimeout(SOON)
        viewer.connect(address)
        with pytest.raises(ConnectionError):
            viewer.sendall(request * 100_000)


@pytest.mark.parametrize(
    "begin", [b"", b"GET /healthz HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he"]
)
def test_a_connection_without_a_whole_request_is_closed(monkeypatch: pytest.MonkeyPatch, begin: bytes) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    with served() as address, socket.create_connection(address, SOON) as stranger:
        stranger.sendall(begin)
        assert replied(stranger).count(b"ok\n") == begin.count(b"\r\n\r\n")


def test_a_form_that_does_not_arrive_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(app, "BODY_TIMEOUT_S", 0.2)
    with served() as address, socket.create_connection(address, SOON) as stranger:
        stranger.sendall(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nkey=")
        assert b" 408 " in replied(stranger)


def test_a_stream_is_not_taken_for_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    with served() as address, socket.create_connection(address, SOON) as viewer:
        viewer.sendall(f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        found = b""
        while found.count(b"data: ") < 3:
            part = viewer.recv(65536)
            assert part
            found += part


def test_cookies_and_schemes_of_other_servers_do_not_log_out() -> None:
    access = Access([KEY], is_loopback=True)
    own = f"{COOKIE}={cookie_of(KEY)}"
    for cookies in (own, f'a={{"b":1}}; {own}', f"[x]=1; ; {own}; c", f"{COOKIE}=stale; {own}"):
        assert access.permits(None, cookies)
    assert access.permits("Basic dXNlcjpwYXNz", own)
    assert not access.permits("Basic dXNlcjpwYXNz", None)
    assert not access.permits(f"Bearer {KEY}x", own)
    assert not access.permits(None, f"{COOKIE}=; x={cookie_of(KEY)}")


def test_the_loggers_of_a_program_with_uvicorn_stay_and_strangers_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    loggers = [logging.getLogger(f"uvicorn{name}") for name in ("", ".error", ".access", ".asgi")]
    before = [(logger.level, logger.propagate, logger.disabled) for logger in loggers]
    with served() as address, socket.create_connection(address, SOON) as stranger:
        stranger.sendall(b"nonsense\r\n\r\n")
        assert b" 400 " in replied(stranger)
    assert [(logger.level, logger.propagate, logger.disabled) for logger in loggers] == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_unexpected_error_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(FakeClient, "status_async", fail)
    with served() as address, socket.create_connection(address, SOON) as viewer:
        viewer.sendall(f"GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        assert b" 500 " in viewer.recv(4096)
    assert "a mistake" in caplog.text
