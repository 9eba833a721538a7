"""Who may view: keys, the cookie of a browser that logged in, and the Host header of requests to loopback.

Does not know HTTP servers: it takes the values of headers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COOKIE = "hoplite_viewer"
# Over HTTPS: browsers send it to HTTPS only, accept it from no other host of the domain, and send it to no other.
SECURE_COOKIE = f"__Host-{COOKIE}"
# Derives the cookie from the key, which a browser should not store.
LABEL = b"hoplite viewer cookie"
BEARER = "bearer "


class Access:
    """The keys of a server.

    Args:
        keys: accepted keys; empty if viewers need none.
        is_loopback: whether only this host can reach the server.
    """

    def __init__(self, keys: Sequence[str], *, is_loopback: bool) -> None:
        self._keys = [key.encode() for key in keys]
        self._cookies = [cookie_of(key).encode() for key in keys]
        self._is_loopback = is_loopback

    def is_open(self) -> bool:
        """Whether viewers need no key."""
        return not self._keys

    def permits(self, authorization: str | None, cookies: str | None) -> bool:
        """Whether a request has a key or the cookie of one.

        Args:
            authorization: its header Authorization.
            cookies: its header Cookie.
        """
        if self.is_open():
            return True
        # Another scheme is that of a proxy.
        if authorization is not None and authorization[: len(BEARER)].lower() == BEARER:
            return _is_among(authorization[len(BEARER) :].strip(), self._keys)
        return any(_is_among(value, self._cookies) for value in _values(cookies or ""))

    def log_in(self, key: str) -> str | None:
        """Returns the cookie for a key; None if the key is wrong."""
        return cookie_of(key) if _is_among(key, self._keys) else None

    def is_host(self, host: str | None) -> bool:
        """Whether a request was meant for this server.

        A page of another site can make a browser send requests to loopback, under a name that resolves to it (DNS
        rebinding). The header Host then has that name.

        Args:
            host: the header Host.
        """
        if not self._is_loopback:
            return True
        name = (host or "").strip().lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        # Names below it are reserved too (RFC 6761). A viewer uses one to keep the cookie from servers on other ports.
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False


def cookie_of(key: str) -> str:
    """Returns the cookie of a browser that presented a key."""
    return hmac.new(key.encode(), LABEL, hashlib.sha256).hexdigest()


def _is_among(text: str, secrets: Sequence[bytes]) -> bool:
    # All are compared, so that the time does not depend on which one matches.
    matches = [hmac.compare_digest(text.encode(), secret) for secret in secrets]
    return any(matches)


def _values(cookies: str) -> list[str]:
    # http.cookies drops all of them if a cookie of another server on this host is malformed.
    pairs = (cookie.strip().partition("=") for cookie in cookies.split(";"))
    return [value for name, _, value in pairs if name in (COOKIE, SECURE_COOKIE)]
