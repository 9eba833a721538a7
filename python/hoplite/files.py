"""The owners and modes of files that a program trusts or that hold its secrets, and locks of files."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

# What a file with a secret may not be for others: of this user anything; of root a group may read it, as of a service.
CLOSED = 0o077
CLOSED_OF_ROOT = 0o037

LOCK_POLL_S = 0.01


def check_private(file: Path, facts: os.stat_result, what: str = "a token") -> None:
    """Refuses a file with a secret that other users can read or write.

    Args:
        file: names it in the error.
        facts: its owner and mode.
        what: the secret, in words.

    Raises:
        InvalidArgument: says what to do.
    """
    if facts.st_uid not in (0, os.getuid()):
        raise InvalidArgument(f"{file} has {what} and belongs to another user ({facts.st_uid}): chown and chmod 600 it")
    if stat.S_IMODE(facts.st_mode) & (CLOSED if facts.st_uid != 0 else CLOSED_OF_ROOT):
        raise InvalidArgument(f"{file} has {what} and others can read or write it: chmod 600 {file}")


def check_trusted(path: Path, facts: os.stat_result, *, is_shared: bool = True) -> None:
    """Refuses a file or a folder that every user can write; what is neither, such as /dev/null, is taken.

    Args:
        path: names it in the error.
        facts: its mode.
        is_shared: whether its group may write it, which is often that of one user alone.

    Raises:
        InvalidArgument: says what to do.
    """
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode)):
        return
    if stat.S_IMODE(facts.st_mode) & (stat.S_IWOTH if is_shared else stat.S_IWOTH | stat.S_IWGRP):
        who, change = ("every user", "o-w") if is_shared else ("its group or every user", "go-w")
        raise InvalidArgument(f"{who} can write {path}: chmod {change} {path}")


def take_lock(descriptor: int, timeout: float | None = None) -> bool:
    """Takes the exclusive lock (flock) of an open file or folder.

    Args:
        descriptor: of the file; the lock ends when it is closed here and in all forks.
        timeout: seconds to wait for another process; None waits as long as that has it.

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
