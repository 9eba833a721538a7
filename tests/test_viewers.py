"""Keys of viewers, and the setting `http`: ports, keys and errors, without a server."""

from __future__ import annotations

import hashlib
import hmac
import socket
import sys
from typing import TYPE_CHECKING

import pytest

import hoplite
from commands import run
from hoplite import settings, viewers
from hoplite.errors import AddressInUse, HopliteError, InvalidArgument
from hoplite.tools import http
from hoplite.tools.http.access import COOKIE, Access, cookie_of

if TYPE_CHECKING:
    from pathlib import Path

TOKEN, OTHER = hoplite.new_token(), hoplite.new_token()
KEY = viewers.viewer_key(TOKEN)


def load(**given: object) -> settings.Values:
    """Returns the settings that concern viewers."""
    names = ("http", "http_key_file", "token", "token_file", "no_auth")
    return settings.load(**{name: given.get(name) for name in names})


def private(path: Path, text: str) -> Path:
    """Writes a file that only this user can read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_the_key_is_derived_from_the_token() -> None:
    assert hmac.new(TOKEN.encode(), b"hoplite viewer", hashlib.sha256).hexdigest() == KEY
    assert len(KEY) == 64
    assert viewers.viewer_key(OTHER) != KEY


def test_each_accepted_token_has_a_key(tmp_path: Path) -> None:
    file = private(tmp_path / "token", f"{TOKEN}\n{OTHER}\n")
    assert viewers.viewer_keys(load(token_file=file), "0.0.0.0:1") == [KEY, viewers.viewer_key(OTHER)]
    assert viewers.viewer_keys(load(token=TOKEN)) == [KEY]


def test_a_key_file_replaces_the_derived_key(tmp_path: Path) -> None:
    file = private(tmp_path / "key", "0123456789abcdef\n")
    assert viewers.viewer_keys(load(token=TOKEN, http_key_file=file), "0.0.0.0:1") == ["0123456789abcdef"]


@pytest.mark.parametrize("content", ["", "short", "0123456789 abcdef", "0123456789\nabcdef", "0123456789abcdé"])
def test_a_key_file_without_a_good_key_is_rejected(tmp_path: Path, content: str) -> None:
    file = private(tmp_path / "key", content)
    with pytest.raises(InvalidArgument, match="at least 16 ASCII characters"):
        viewers.viewer_keys(load(http_key_file=file))


def test_a_key_file_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef")
    file.chmod(0o644)
    with pytest.raises(InvalidArgument, match="chmod 600"):
        viewers.viewer_keys(load(http_key_file=file))
    with pytest.raises(InvalidArgument, match="can't read the key"):
        viewers.viewer_keys(load(http_key_file=tmp_path / "missing"))


def test_without_a_token_viewers_on_loopback_need_a_key_of_this_user() -> None:
    (key,) = viewers.viewer_keys(load())
    assert key == viewers.viewer_keys(load())[0] != KEY
    assert viewers.viewer_keys(load(no_auth=True)) == []


@pytest.mark.parametrize("no_auth", [None, True])
def test_without_a_token_other_hosts_may_not_view(no_auth: bool | None) -> None:
    with pytest.raises(InvalidArgument, match=r"other hosts can reach http 0\.0\.0\.0:1.*set http_key_file"):
        viewers.viewer_keys(load(no_auth=no_auth), "0.0.0.0:1")


@pytest.mark.parametrize(
    ("given", "address"),
    [(7480, "127.0.0.1:7480"), ("7480", "127.0.0.1:7480"), ("[::1]:0", "[::1]:0"), ("eth0:1", "eth0:1")],
)
def test_a_port_alone_is_one_of_loopback(given: int | str, address: str) -> None:
    assert load(http=given)["http"] == address


@pytest.mark.parametrize("given", [70000, "x", -1, "http://localhost:7480"])
def test_an_address_that_is_not_valid_is_rejected(given: int | str) -> None:
    with pytest.raises(InvalidArgument, match="http "):
        load(http=given)


def test_a_port_in_use_is_reported_before_the_node_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(viewers, "_server", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"http 127.0.0.1:{port} is used by another process"):
            hoplite.Node(http=port, socket=tmp_path / "node.sock")
    assert not (tmp_path / "node.sock").exists()


def test_an_address_of_another_host_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "_server", lambda: None)
    with pytest.raises(InvalidArgument, match="can't listen there"):
        viewers.service(load(http="192.0.2.1:7480", token=TOKEN))


def test_without_the_server_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "GROUP", "hoplite.nothing")
    with pytest.raises(HopliteError, match=r"install it again"):
        viewers.service(load(http=0))


def test_without_its_packages_the_error_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "hoplite.tools.http.server", raising=False)
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(HopliteError, match=r"needs uvicorn.*pip install 'prometheus"):
        http.serve(listener, [])
    assert listener.fileno() == -1


def test_access_needs_a_key_or_the_cookie_of_one() -> None:
    access = Access([KEY, "other"], is_loopback=True)
    assert access.permits(f"Bearer {KEY}", None)
    assert access.permits("bearer other", None)
    assert access.permits(None, f"a=b; {COOKIE}={cookie_of(KEY)}")
    for authorization, cookies in (
        (None, None),
        ("Bearer wrong", None),
        ("Basic other", None),
        ("Bearer ", None),
        # The key itself is no cookie, and a wrong key is not saved by a cookie.
        (None, f"{COOKIE}={KEY}"),
        ("Bearer wrong", f"{COOKIE}={cookie_of(KEY)}"),
        (None, f"{COOKIE}="),
        (None, "[]=;;\x7f"),
    ):
        assert not access.permits(authorization, cookies)


def test_a_browser_gets_a_cookie_that_does_not_reveal_the_key() -> None:
    access = Access([KEY], is_loopback=True)
    assert access.log_in(KEY) == cookie_of(KEY)
    assert KEY not in cookie_of(KEY)
    assert access.log_in("wrong") is None
    assert access.log_in("") is None


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7480", "127.0.0.1:7480", "127.9.9.9", "[::1]:7480"])
def test_loopback_accepts_its_own_names(host: str) -> None:
    assert Access([], is_loopback=True).is_host(host)


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:7480", "10.0.0.1", "127.0.0.1.evil.example"])
def test_loopback_rejects_names_that_others_can_define(host: str | None) -> None:
    assert not Access([], is_loopback=True).is_host(host)
    assert Access([KEY], is_loopback=False).is_host(host)


def test_the_command_prints_the_key(tmp_path: Path) -> None:
    file = private(tmp_path / "token", TOKEN)
    assert run("token", "viewer", "--token-file", file).stdout.strip() == KEY
    assert run("token", "viewer", HOPLITE_TOKEN=TOKEN).stdout.strip() == KEY
    run("token", "viewer", "--token-file", file, "--out", tmp_path / "key")
    assert (tmp_path / "key").read_text().strip() == KEY
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
