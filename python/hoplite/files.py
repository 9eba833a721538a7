"""Checks of owner and mode for trusted files and files with secrets, and file locks."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

# Mode bits that a file with a secret must not have. A file of root may be readable by a group, such as a service's.
CLOSED = 0o077
CLOSED_OF_ROOT = 0o037

LOCK_POLL_S = 0.01


def check_private(file: Path, facts: os.stat_result, what: str = "a token") -> None:
    """Rejects a file with a secret that other users can read or write.

    Args:
        file: path of the file, for the error.
        facts: its owner and mode.
        what: the secret in words, for the error.

    Raises:
        InvalidArgument: the file belongs to another user, or others can read or write it.
    """
    if facts.st_uid not in (0, os.getuid()):
        raise InvalidArgument(
            f"{file} contains {what} and belongs to another user ({facts.st_uid}): run chown and chmod 600 on it"
        )
    if stat.S_IMODE(facts.st_mode) & (CLOSED if facts.st_uid != 0 else CLOSED_OF_ROOT):
        raise InvalidArgument(f"{file} contains {what}, and other users can read or write it: run chmod 600 {file}")


def check_trusted(path: Path, facts: os.stat_result, *, is_shared: bool = True) -> None:
    """Rejects a file or directory that every user can write. Other types, such as /dev/null, are accepted.

    Args:
        path: path of the file, for the error.
        facts: its mode.
        is_shared: whether its group may write it. Often only one user is in that group.

    Raises:
        InvalidArgument: too many users can write the file.
    """
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        return
    if stat.S_IMODE(facts.st_mode) & (stat.S_IWOTH if is_shared else stat.S_IWOTH | stat.S_IWGRP):
        who, change = ("every user", "o-w") if is_shared else ("its group or every user", "go-w")
        raise InvalidArgument(f"{who} can write {path}: run chmod {change} {path}")


def take_lock(descriptor: int, timeout: float | None = None) -> bool:
    """Takes the exclusive lock (flock) of an open file or directory.

    Args:
        descriptor: descriptor of the file. The lock ends when it is closed here and in all forked children.
        timeout: seconds to wait for another process that has the lock; None waits without limit.

    Returns:
        Whether this process has the lock now.
    """
    if timeout is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOCK_POLL_S)
        else:
            return True
