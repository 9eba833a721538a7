"""Tokens, the shared secrets of clusters: functions to generate, check and read them.

A token is `PREFIX`, followed in base64url by 32 bytes of system entropy and their CRC-32. Does not know nodes or
settings.
"""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument
from hoplite.files import check_private

# The number is the version of the format.
PREFIX = "hpt1_"

# Too many to guess, even for an attacker who has recorded handshakes.
SECRET_BYTES = 32
CHECKSUM_BYTES = 4

# Three bytes are four letters of base64, without padding.
LENGTH = len(PREFIX) + (SECRET_BYTES + CHECKSUM_BYTES) // 3 * 4

# Two during a rotation: a node accepts both.
IN_FILE_MAX = 2
FILE_BYTES_MAX = 4096

MAKE_ONE = "create one with: hoplite token new"


def new_token() -> str:
    """Creates a token for a cluster from 256 random bits, as `hoplite token new` does.

    Returns:
        A text for every node of the cluster. Keep it secret.
    """
    return _written(os.urandom(SECRET_BYTES))


def check_token(what: str, value: str) -> str:
    """Checks a token. The error does not reveal it.

    Args:
        what: name of the argument, for the error.
        value: the token.

    Raises:
        InvalidArgument: `new_token` did not create the token, or it has a typo.
    """
    text = check_text(what, value)
    if not text.startswith(PREFIX):
        raise InvalidArgument(f"{what} was not created by hoplite, so others may guess it: {MAKE_ONE}")
    if len(text) != LENGTH:
        raise InvalidArgument(f"{what} has {len(text)} characters instead of {LENGTH}: copy it again, or {MAKE_ONE}")
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), altchars=b"-_")[:SECRET_BYTES]
    except ValueError:
        # A character that is not base64, or padding.
        secret = b""
    if _written(secret) != text:
        raise InvalidArgument(f"{what} has a typo (checksum mismatch): copy it again, or {MAKE_ONE}")
    return text


def read_tokens(path: str | os.PathLike[str]) -> list[str]:
    """Reads a file with one or two tokens, one per line.

    Returns:
        The tokens: a node presents the first, and accepts all.

    Raises:
        InvalidArgument: the file is not readable, other users can read it, or its contents are not valid.
    """
    file = Path(check_text("token_file", path)).expanduser()
    try:
        with file.open("rb") as opened:
            check_private(file, os.fstat(opened.fileno()))
            content = opened.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(f"can't read the tokens in {file}: {error.strerror or error}") from None
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    tokens = [check_token(f"{file}, line {number}", line) for number, line in enumerate(lines, start=1) if line]
    if not 1 <= len(tokens) <= IN_FILE_MAX:
        raise InvalidArgument(f"{file} must have 1 or {IN_FILE_MAX} tokens, but has {len(tokens)}: {MAKE_ONE}")
    return tokens


def _written(secret: bytes) -> str:
    checksum = zlib.crc32(secret).to_bytes(CHECKSUM_BYTES, "little")
    return PREFIX + base64.urlsafe_b64encode(secret + checksum).decode()
