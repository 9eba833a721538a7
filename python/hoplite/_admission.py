"""The credentials of a node: the token or certificate in its settings, or the secret of this user.

Nodes on loopback use the secret: a file in this user's runtime directory, created by the first node that needs it.
Does not know the handshake.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hoplite.addresses import is_ip, split_address
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.sockets import runtime_dir
from hoplite.tokens import LENGTH, MAKE_ONE, check_token, new_token, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite.settings import Values

# Name of the file in the runtime directory.
NAME = "secret"
# Does not follow a link or block on a pipe: no node creates these.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Admission(NamedTuple):
    """The credentials that a node presents and accepts.

    Attributes:
        tokens: the first is presented, all are accepted.
        certificates: files of its certificate, key, CA and revocation list, if it uses certificates.
        admission: the same in words.
    """

    tokens: list[str]
    certificates: tuple[str, str, str, str | None] | None
    admission: str


def admission(values: Values, listen: str | None) -> Admission:
    """Determines the credentials of a node from its settings.

    Raises:
        HopliteError: another user owns or can read this user's secret.
        InvalidArgument: other hosts can reach the node and no token, certificate or no_auth is set; two settings
            contradict each other; a token file is not usable; or capabilities are required without a token.
    """
    files = _certificates(values)
    tokens = _tokens(values, listen) if files is None and listen is not None else []
    if values["require_capability"] and not tokens:
        raise InvalidArgument(
            f"require_capability ({values.origin('require_capability')}) needs a token, which verifies capabilities: "
            f"set token_file ({MAKE_ONE})"
        )
    if files is not None:
        words = f"certificates of {files[2]}"
    elif listen is None:
        words = "none: no other node can reach this one"
    elif not tokens:
        words = "none: every node that can reach this one may join"
    else:
        is_given = values["token"] is not None or values["token_file"] is not None
        words = "a token" if is_given else "the secret of this user on this host"
    return Admission(tokens, files, words)


def _certificates(values: Values) -> tuple[str, str, str, str | None] | None:
    """Files of the certificate, key, CA and revocation list; None if the settings have none of them."""
    given = [name for name in ("certificate", "key", "ca", "crl") if values[name] is not None]
    if not given:
        return None
    for other in ("token", "token_file", "no_auth"):
        if values[other] not in (None, False):
            raise InvalidArgument(
                f"{given[0]} ({values.origin(given[0])}) and {other} ({values.origin(other)}) are mutually "
                "exclusive: set only one of them"
            )
    missing = [name for name in ("certificate", "key", "ca") if name not in given]
    if missing:
        raise InvalidArgument(
            f"{given[0]} ({values.origin(given[0])}) is set without {' and '.join(missing)}: set certificate, key and "
            "ca (create them with: hoplite certs)"
        )
    certificate, key, ca, crl = (
        str(Path(values[name]).expanduser()) if values[name] is not None else None
        for name in ("certificate", "key", "ca", "crl")
    )
    assert certificate is not None
    assert key is not None
    assert ca is not None
    return certificate, key, ca, crl


def _tokens(values: Values, listen: str) -> list[str]:
    """The tokens of a node without certificates: the first is presented, all are accepted.

    Args:
        values: the node's settings.
        listen: address on which other nodes reach it.

    Returns:
        An empty list only if the settings have no_auth.

    Raises:
        HopliteError: another user owns or can read this user's secret.
        InvalidArgument: other hosts can reach the node and neither a token nor no_auth is set; both token and
            token_file are set; or the token file is not usable.
    """
    if values["token"] is not None and values["token_file"] is not None:
        raise InvalidArgument(
            f"token ({values.origin('token')}) and token_file ({values.origin('token_file')}) are mutually "
            "exclusive: set only one of them"
        )
    if values["token"] is not None:
        return [values["token"]]
    if values["token_file"] is not None:
        return read_tokens(values["token_file"])
    if values["no_auth"]:
        return []
    if not is_loopback(listen):
        raise InvalidArgument(
            f"other hosts can reach {listen}, and the node has no credentials: set the same token on all nodes of the "
            f"cluster ({MAKE_ONE}), or certificates of one CA (hoplite certs); or set no_auth if everyone on the "
            "network may read and write every object"
        )
    return [user_secret()]


def hint(values: Values, error: str) -> str:
    """An addition to the error of a node that was rejected; empty if its settings have credentials.

    Args:
        values: its settings.
        error: the error. One that does not mention a token has another reason.
    """
    is_given = any(values[name] is not None for name in ("token", "token_file", "certificate"))
    if "token" not in error or is_given or values["no_auth"]:
        return ""
    return "; without a token in its settings, a node uses a secret that only this user's nodes on the same host share"


def user_secret() -> str:
    """The secret of this user on this host; created if there is none.

    Raises:
        HopliteError: another user owns or can read the file, or it is corrupt.
    """
    path = runtime_dir() / NAME
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    # If several processes create one at once, the first link wins and the others use it.
    made = path.with_name(f"{NAME}-{os.urandom(8).hex()}")
    with _reported(path):
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(new_token())
            with contextlib.suppress(FileExistsError):
                os.link(made, path)
        finally:
            made.unlink()
    return _read(path)


def _read(path: Path) -> str:
    with _reported(path), os.fdopen(os.open(path, READ), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise HopliteError(
                f"{path} must be a file that only this user can read: remove it and restart this user's nodes"
            )
        content = file.read(LENGTH + 1)
    try:
        return check_token(str(path), content.decode(errors="replace"))
    except InvalidArgument:
        raise HopliteError(f"{path} is corrupt: remove it and restart this user's nodes") from None


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Converts system errors of the secret's file. The caller handles a missing file."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EMFILE):
            raise
        raise HopliteError(
            f"can't read the secret of this user in {path} ({error.strerror}): remove it, or set a token ({MAKE_ONE})"
        ) from None


def is_loopback(listen: str) -> bool:
    """Whether no other host can reach an address. The node rejects an address that does not resolve."""
    host, port = split_address(listen)
    if is_ip(host):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = [str(target[0]) for *_, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return True
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
