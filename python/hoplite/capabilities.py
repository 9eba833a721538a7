"""Capabilities: what a client may do at its node, as a text that the node verifies; how one is made, narrowed and read.

A cluster's token makes them, `hoplite token grant` by hand. Knows no node; the form of the text knows the extension.
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

# What a text begins with, and no path does.
HEADER = "hoplite capability "

# More than a node reads.
FILE_BYTES_MAX = 16384


class Capability(NamedTuple):
    """What a capability says that it allows.

    Attributes:
        prefix: what the names of objects begin with.
        verbs: some of "put", "get", "delete", "reduce" and "list".
        until: when it expires, in seconds since 1970; None if it does not.
    """

    prefix: str
    verbs: list[str]
    until: int | None


def grant(token: str, prefix: str, *, verbs: Iterable[str] | None = None, seconds: float | None = None) -> str:
    """Makes a capability, as `hoplite token grant` does.

    Args:
        token: of the cluster.
        prefix: what the names of objects begin with, with a slash at the end: "team-a/"; "" takes every object.
        verbs: some of "put", "get", "delete", "reduce" and "list"; None allows all.
        seconds: for how long it is good from now on; None is for ever.

    Returns:
        A text for `hoplite.connect(capability=)`, to be shown to no one else.

    Raises:
        InvalidArgument: the token is none, the prefix has no slash at its end or is no beginning of a name, or a verb
            is none.
    """
    said = check_token("token", token), prefix and check_text("prefix", prefix)
    return _native.grant_capability(*said, _checked(verbs), _until(seconds))


def narrow(
    text: str, *, prefix: str | None = None, verbs: Iterable[str] | None = None, seconds: float | None = None
) -> str:
    """Makes a capability that allows less of one that a client has; needs no token.

    Args:
        text: the capability.
        prefix: a longer prefix; None leaves it as it is.
        verbs: some of its verbs; None leaves them as they are.
        seconds: for how long it is good from now on, but no longer than before; None leaves that as it is.

    Raises:
        InvalidArgument: the text is no capability, it would allow more, or nothing is to be narrowed.
    """
    longer = None if prefix is None else check_text("prefix", prefix)
    return _native.narrow_capability(check_text("capability", text), longer, _checked(verbs), _until(seconds))


def read(text: str) -> Capability:
    """Tells what a capability says; only a node knows whether the cluster's token made it.

    Raises:
        InvalidArgument: the text is no capability.
    """
    return Capability(*_native.read_capability(check_text("capability", text)))


def text_of(capability: str | os.PathLike[str]) -> str:
    """The text of a capability that is given by itself or by the path of its file.

    Raises:
        InvalidArgument: it is none, or the file can't be read, or others can read it.
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
        raise InvalidArgument(f"{what} can't be used: {error}") from None
    return text


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            check_private(file, os.fstat(opened.fileno()), "a capability")
            return opened.read(FILE_BYTES_MAX).decode(errors="replace")
    except OSError as error:
        raise InvalidArgument(f"the capability in {file} can't be read: {error.strerror or error}") from None


def _checked(verbs: Iterable[str] | None) -> list[str] | None:
    if isinstance(verbs, str):
        raise InvalidArgument(f"verbs is a list, not a single text; write [{verbs!r}]")
    return None if verbs is None else [check_text("verb", verb) for verb in verbs]


def _until(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not seconds > 0:
        raise InvalidArgument(f"a capability that is good for {seconds!r} s: it is a number above 0")
    return int(time.time() + seconds)
