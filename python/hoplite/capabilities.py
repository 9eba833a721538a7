"""Capabilities: texts that grant a client limited rights at its node. Functions to create, narrow and read them.

The cluster's token signs a capability; the node verifies it. The command line creates one with `hoplite token grant`.
The compiled module defines the format of the text. Does not know nodes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hoplite import _native
from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument
from hoplite.files import check_private
from hoplite.tokens import check_token

if TYPE_CHECKING:
    from collections.abc import Iterable

# Start of the text of a capability; no path starts like this.
HEADER = "hoplite capability "

# Exceeds the limit of a node.
FILE_BYTES_MAX = 16384


class Capability(NamedTuple):
    """The rights that a capability states.

    Attributes:
        prefix: start of the names of the permitted objects.
        verbs: some of "put", "get", "delete", "reduce" and "list".
        until: expiry in seconds since 1970; None if it does not expire.
    """

    prefix: str
    verbs: list[str]
    until: int | None


def grant(token: str, prefix: str, *, verbs: Iterable[str] | None = None, seconds: float | None = None) -> str:
    """Creates a capability, as `hoplite token grant` does.

    Args:
        token: token of the cluster.
        prefix: start of the names of the permitted objects, with a slash at the end: "team-a/". "" permits every
            object.
        verbs: some of "put", "get", "delete", "reduce" and "list"; None permits all.
        seconds: time until it expires; None means never.

    Returns:
        A text for `hoplite.connect(capability=)`. Keep it secret.

    Raises:
        InvalidArgument: the token is not valid, the prefix does not end in a slash or can't start a name, or a verb is
            unknown.
    """
    token, prefix = check_token("token", token), prefix and check_text("prefix", prefix)
    return _native.grant_capability(token, prefix, _checked(verbs), _until(seconds))


def narrow(
    text: str, *, prefix: str | None = None, verbs: Iterable[str] | None = None, seconds: float | None = None
) -> str:
    """Derives a capability with fewer rights from another one. This needs no token.

    Args:
        text: the capability.
        prefix: a longer prefix; None keeps the prefix.
        verbs: some of its verbs; None keeps them.
        seconds: time until it expires, at most that of the original; None keeps the expiry.

    Raises:
        InvalidArgument: the text is not a capability, the result would permit more, or nothing is narrowed.
    """
    longer = None if prefix is None else check_text("prefix", prefix)
    return _native.narrow_capability(check_text("capability", text), longer, _checked(verbs), _until(seconds))


def read(text: str) -> Capability:
    """Reads the rights that a capability states. Only a node can verify that the cluster's token signed it.

    Raises:
        InvalidArgument: the text is not a capability.
    """
    return Capability(*_native.read_capability(check_text("capability", text)))


def text_of(capability: str | os.PathLike[str]) -> str:
    """Returns the text of a capability, given as text or as the path of its file.

    Raises:
        InvalidArgument: it is not a capability, or the file is not readable or other users can read it.
    """
    if isinstance(capability, str) and capability.startswith(HEADER):
        what, text = "the capability", capability
    else:
        file = Path(check_text("capability", capability)).expanduser()
        what, text = str(file), _read_file(file)
    text = text.rstrip("\n")
    try:
        _native.read_capability(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what} is not valid: {error}") from None
    return text


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            check_private(file, os.fstat(opened.fileno()), "a capability")
            return opened.read(FILE_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise InvalidArgument(f"can't read the capability in {file}: {error.strerror or error}") from None


def _checked(verbs: Iterable[str] | None) -> list[str] | None:
    if isinstance(verbs, str):
        raise InvalidArgument(f"verbs must be a list, not a single string: write [{verbs!r}]")
    return None if verbs is None else [check_text("verb", verb) for verb in verbs]


def _until(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not seconds > 0:
        raise InvalidArgument(f"the capability would expire after {seconds!r} s: set more than 0")
    return int(time.time() + seconds)
