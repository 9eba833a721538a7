"""Tokens, the secrets that let nodes into a cluster: how one is made, told from a text made up by hand, and read.

A token is `PREFIX` and, in base64url, 32 bytes of the system's entropy with their CRC-32. Knows no node and no setting.
"""

from __future__ import annotations

import base64
import os
import zlib
from pathlib import Path

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument
from hoplite.files import check_private

# The number is that of the form: another form begins otherwise.
PREFIX = "hpt1_"

# So many that guessing is hopeless, whatever an attacker has heard of a handshake.
SECRET_BYTES = 32
CHECKSUM_BYTES = 4

# Three bytes are four letters of base64, with nothing left to pad.
LENGTH = len(PREFIX) + (SECRET_BYTES + CHECKSUM_BYTES) // 3 * 4

# While one takes the place of another, a node takes both.
IN_FILE_MAX = 2
FILE_BYTES_MAX = 4096

MAKE_ONE = "make one with: hoplite token new"


def new_token() -> str:
    """Makes a token for a cluster, as `hoplite token new` does: 256 bits that none can guess.

    Returns:
        A text to give to every node of the cluster, and to show to no one else.
    """
    return _written(os.urandom(SECRET_BYTES))


def check_token(what: str, value: str) -> str:
    """Reads a token; the error tells nothing of it.

    Args:
        what: names the argument in the error.
        value: the token.

    Raises:
        InvalidArgument: it is no token that `new_token` made: a text made up by hand, or one with a typo.
    """
    text = check_text(what, value)
    if not text.startswith(PREFIX):
        raise InvalidArgument(f"{what} was not made by hoplite, so that others may guess it; {MAKE_ONE}")
    if len(text) != LENGTH:
        raise InvalidArgument(f"{what} has {len(text)} characters, a token has {LENGTH}: copy it again, or {MAKE_ONE}")
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), altchars=b"-_")[:SECRET_BYTES]
    except ValueError:
        # A character that base64 does not have, or a padding.
        secret = b""
    if _written(secret) != text:
        raise InvalidArgument(f"{what} has a typo, its checksum does not fit: copy it again, or {MAKE_ONE}")
    return text


def read_tokens(path: str | os.PathLike[str]) -> list[str]:
    """Reads a file of tokens, one on each line.

    Returns:
        One or two tokens: a node proves the first, and takes any of them from others.

    Raises:
        InvalidArgument: the file can't be read, others can read it, or it holds anything else.
    """
    file = Path(check_text("token_file", path)).expanduser()
    try:
        with file.open("rb") as opened:
            check_private(file, os.fstat(opened.fileno()))
            content = opened.read(FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidArgument(f"the tokens in {file} can't be read: {error.strerror or error}") from None
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    tokens = [check_token(f"{file}, line {number}", line) for number, line in enumerate(lines, start=1) if line]
    if not 1 <= len(tokens) <= IN_FILE_MAX:
        raise InvalidArgument(f"{file} has {len(tokens)} tokens, and not one or {IN_FILE_MAX}; {MAKE_ONE}")
    return tokens


def _written(secret: bytes) -> str:
    checksum = zlib.crc32(secret).to_bytes(CHECKSUM_BYTES, "little")
    return PREFIX + base64.urlsafe_b64encode(secret + checksum).decode()
