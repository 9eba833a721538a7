"""Viewers of a cluster: the keys that they present, and the server that the setting `http` starts.

The server is found by the entry point `http` of the group `hoplite.services`, so that the library imports no tool. Does
not know HTTP.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hoplite import _admission, _listening
from hoplite._arguments import check_text
from hoplite.addresses import split_address
from hoplite.errors import AddressInUse, InvalidArgument, PackageMissing
from hoplite.files import check_private
from hoplite.tokens import read_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite import Client
    from hoplite.settings import Values

GROUP = "hoplite.services"
NAME = "http"

# Derives the key from a token, which it does not reveal.
LABEL = b"hoplite viewer"
# Shorter ones could be guessed.
KEY_MIN = 16
FILE_BYTES_MAX = 4096

LOOPBACK = "127.0.0.1:0"


class Service(Protocol):
    """A server on an open port, which serves requests once it has a client."""

    @property
    def url(self) -> str:
        """Its address, such as "http://127.0.0.1:7480"."""

    def start(self, client: Client) -> None:
        """Serves what this client sees, and closes it in the end."""

    def close(self) -> None:
        """Ends all requests and closes the port. Closing it again does nothing."""


def viewer_key(token: str) -> str:
    """Returns the key for viewers of a cluster with this token: HMAC-SHA256 in hex. It permits reading only."""
    return hmac.new(token.encode(), LABEL, hashlib.sha256).hexdigest()


def viewer_keys(values: Values, address: str = LOOPBACK) -> list[str]:
    """Returns the keys that viewers of a node with these settings may present; empty if they need none.

    Args:
        values: settings of the node: http_key_file, token, token_file and no_auth.
        address: the address of the server.

    Raises:
        HopliteError: another user owns or can read this user's secret.
        InvalidArgument: other hosts can reach the address and no key is configured, or a file is not usable.
    """
    if values["http_key_file"] is not None:
        return [_read_key(values["http_key_file"])]
    token, file = values["token"], values["token_file"]
    tokens = [token] if token is not None else read_tokens(file) if file is not None else []
    if tokens:
        return [viewer_key(each) for each in tokens]
    if not _admission.is_loopback(address):
        raise InvalidArgument(
            f"other hosts can reach http {address}, and there is no key for viewers: set http_key_file, or a token"
        )
    return [] if values["no_auth"] else [viewer_key(_admission.user_secret())]


def service(values: Values) -> Service | None:
    """Opens the port of the setting `http`; None if it is not set.

    Raises:
        AddressInUse: another process uses the port.
        HopliteError: the server is not installed, or as for `viewer_keys`.
        InvalidArgument: the address is not one of this host, or as for `viewer_keys`.
    """
    if values["http"] is None:
        return None
    address = _listening.resolve_interface("http", values["http"])
    make = _server()
    keys = viewer_keys(values, address)
    return make(_listener(address), keys)


def _server() -> Callable[[socket.socket, Sequence[str]], Service]:
    # Imports csv, email and zipfile, which most programs do not need.
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=NAME):
        make: Callable[[socket.socket, Sequence[str]], Service] = entry.load()
        return make
    raise PackageMissing("the installed hoplite-collectives has no server for http: install it again")


def _listener(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target[:2], family=family)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise AddressInUse(f"http {address} is used by another process: set another port") from None
        why = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"http {address}: can't listen there ({why}): set an address of this host") from None


def _read_key(path: str | os.PathLike[str]) -> str:
    file = Path(check_text("http_key_file", path)).expanduser()
    try:
        with file.open("rb") as opened:
            check_private(file, os.fstat(opened.fileno()), "a key")
            key = opened.read(FILE_BYTES_MAX).decode(errors="replace").strip()
    except OSError as error:
        raise InvalidArgument(f"can't read the key in {file}: {error.strerror or error}") from None
    if len(key) < KEY_MIN or not (key.isascii() and key.isprintable()) or " " in key:
        raise InvalidArgument(
            f"{file} must have one line of at least {KEY_MIN} ASCII characters without spaces: write a random key, "
            "such as the output of openssl rand -hex 32"
        )
    return key
