"""Where the Unix sockets of this user's nodes are, and which of them a living node serves."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.errors import AddressInUse, HopliteError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

# sun_path of sockaddr_un, less the closing zero.
PATH_BYTES_MAX = 107


def runtime_dir() -> Path:
    """The folder of this user's sockets, made if it is not there, closed to other users.

    Raises:
        HopliteError: someone else owns it or may look into it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.access(base, os.W_OK | os.X_OK):
        folder = Path(base) / "hoplite"
    else:
        folder = Path(f"/tmp/hoplite-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # In /tmp anyone could have made it first, to serve us a socket of theirs.
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise HopliteError(
            f"{folder} is not a folder of this user's alone; remove it, or set XDG_RUNTIME_DIR to one that is"
        )
    return folder


def default_socket() -> Path:
    """The path at which scripts of this user look for the host's node."""
    return runtime_dir() / "node.sock"


def is_served(path: str | Path) -> bool:
    """Whether a living process listens on a socket; false if there is none, or only a dead one's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
                return False
            if error.errno in (errno.EAGAIN, errno.EACCES, errno.EPERM) or isinstance(error, TimeoutError):
                # Full of other callers, or another user's: alive.
                return True
            raise
    return True


def free_path(wanted: str | None) -> str:
    """Chooses the socket path of a node that starts, and removes what a dead node left there.

    Args:
        wanted: a path; None means this user's default one or, if a living node serves that, one of this node's own.

    Returns:
        A path to listen on. Another process may take it first, and then listening fails with `AddressInUse`.

    Raises:
        AddressInUse: a living node serves the wanted path, or the file there is no socket.
        InvalidArgument: the path is too long for a socket.
    """
    if wanted is not None:
        path = Path(wanted)
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise InvalidArgument(f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes; choose a shorter one")
        if is_served(path):
            raise AddressInUse(f"a living node serves {path}; choose another socket path")
        _remove_dead(path)
        return str(path)

    # One process at a time, or one would remove the socket that another has just begun to serve.
    with _locked(runtime_dir() / "lock"):
        path = default_socket()
        for left_over in path.parent.glob("node-*.sock"):
            _remove_dead(left_over)
        number = 0
        while is_served(path):
            number += 1
            path = path.with_name(f"node-{os.getpid()}-{number}.sock")
        _remove_dead(path)
        return str(path)


def _remove_dead(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressInUse(f"{path} exists and is no socket; choose another socket path")
    if not is_served(path):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
