"""What a node proves to the nodes it meets: the token or certificate of its settings, or a secret of this user.

The last is for nodes on loopback: a file in this user's runtime folder, made by the first node that wants it. Knows no
handshake.
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

# Of the file in the runtime folder.
NAME = "secret"
# A link is not followed, and a pipe does not hold up the node: neither is a file that a node has made.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Admission(NamedTuple):
    """What a node proves to others, and wants proved.

    Attributes:
        tokens: the first is proved to others, any is taken from them.
        certificates: the files of its certificate, of the key, of the CA and of what is revoked, if it shows one.
        admission: the same for people.
    """

    tokens: list[str]
    certificates: tuple[str, str, str, str | None] | None
    admission: str


def admission(values: Values, listen: str | None) -> Admission:
    """What the settings of a node say of that.

    Raises:
        HopliteError: another user has this user's secret, or may read it.
        InvalidArgument: other hosts can reach the node, and its settings have no token, no certificate and no insecure;
            or they contradict each other, or have a file of tokens that can't be used, or want capabilities without a
            token.
    """
    files = _certificates(values)
    tokens = _tokens(values, listen) if files is None and listen is not None else []
    if values["confine"] and not tokens:
        raise InvalidArgument(
            f"confine ({values.origin('confine')}) is said, and the node has no token to verify capabilities with: "
            f"give it one by token_file ({MAKE_ONE})"
        )
    if files is not None:
        words = f"certificates of {files[2]}"
    elif listen is None:
        words = "nothing: no other node can reach this one"
    elif not tokens:
        words = "nothing: every node that reaches this one is let in"
    else:
        is_said = values["token"] is not None or values["token_file"] is not None
        words = "a token" if is_said else "the secret of this user on this host"
    return Admission(tokens, files, words)


def _certificates(values: Values) -> tuple[str, str, str, str | None] | None:
    """The files of the certificate, of its key, of the CA and of what is revoked; none if the settings name none."""
    said = [name for name in ("certificate", "key", "ca", "crl") if values[name] is not None]
    if not said:
        return None
    for other in ("token", "token_file", "insecure"):
        if values[other] not in (None, False):
            raise InvalidArgument(
                f"both {said[0]} ({values.origin(said[0])}) and {other} ({values.origin(other)}) are said, and nodes "
                "prove one thing to each other: leave one of them out"
            )
    missing = [name for name in ("certificate", "key", "ca") if name not in said]
    if missing:
        raise InvalidArgument(
            f"{said[0]} ({values.origin(said[0])}) is said without {' and '.join(missing)}: a node that shows a "
            "certificate needs certificate, key and ca (made by: hoplite certs)"
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
    """The tokens of a node that shows no certificate: the first is proved to others, any is taken from them.

    Args:
        values: the node's settings.
        listen: where other nodes reach it; None if none can.

    Returns:
        Empty only for a node that lets every other in, since its settings say insecure, or that no other can reach.

    Raises:
        HopliteError: another user has this user's secret, or may read it.
        InvalidArgument: other hosts can reach the node, and its settings have neither a token nor insecure; or they
            have a token twice, or a file of tokens that can't be used.
    """
    if values["token"] is not None and values["token_file"] is not None:
        raise InvalidArgument(
            f"both token ({values.origin('token')}) and token_file ({values.origin('token_file')}) are said; "
            "leave one of them out"
        )
    if values["token"] is not None:
        return [values["token"]]
    if values["token_file"] is not None:
        return read_tokens(values["token_file"])
    if values["insecure"]:
        return []
    if not _is_loopback(listen):
        raise InvalidArgument(
            f"other hosts can reach {listen}: give all nodes of the cluster the same token ({MAKE_ONE}), or "
            "certificates of one CA (hoplite certs), or say insecure if all who are on the network may read and write "
            "every object"
        )
    return [user_secret()]


def hint(values: Values, said: str) -> str:
    """What to add to the error of a node that was not let in; nothing where its settings say what it proves.

    Args:
        values: its settings.
        said: the error. One that speaks of no token has another reason.
    """
    is_said = any(values[name] is not None for name in ("token", "token_file", "certificate"))
    if "token" not in said or is_said or values["insecure"]:
        return ""
    return "; with no token in its settings, a node proves a secret that only nodes of its user on its host know"


def user_secret() -> str:
    """The secret of this user on this host, made if there is none.

    Raises:
        HopliteError: another user has the file or may read it, or it is damaged.
    """
    path = runtime_dir() / NAME
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    # Of several processes that make one at once, the first to give its file the name has made it for all.
    made = path.with_name(f"{NAME}-{os.urandom(8).hex()}")
    with _told(path):
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
    with _told(path), os.fdopen(os.open(path, READ), "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
            raise HopliteError(f"{path} is not a file of this user's alone: remove it, and restart this user's nodes")
        content = file.read(LENGTH + 1)
    try:
        return check_token(str(path), content.decode(errors="replace"))
    except InvalidArgument:
        raise HopliteError(f"{path} holds no secret: remove it, and restart this user's nodes") from None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Says what the system has against the file of the secret; that there is none is for the caller to hear."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EMFILE):
            raise
        raise HopliteError(
            f"the secret of this user, {path}, can't be used: {error.strerror}; remove it, or give the node a token "
            f"({MAKE_ONE})"
        ) from None


def _is_loopback(listen: str) -> bool:
    """Whether no other host can reach an address. One that can't be resolved is for the node to refuse."""
    host, port = split_address(listen)
    if is_ip(host):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = [str(target[0]) for *_, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError:
        return True
    return all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
