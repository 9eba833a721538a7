"""The Unix sockets of this user's nodes: their paths, and which of them a running node serves."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import socket
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite import settings
from hoplite.errors import AddressInUse, ConnectError, HopliteError, InvalidArgument
from hoplite.files import take_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Size of sun_path in sockaddr_un, less the terminating zero.
PATH_BYTES_MAX = 107

# Parent of the runtime directory without XDG_RUNTIME_DIR. It exists on every host and is shared by all users.
SHARED_FOLDER = Path("/tmp")

# Name of the socket of this user's node.
USER_SOCKET = "node.sock"

# Set by Slurm in the processes of a job, which has sockets of its own.
JOB_VARIABLE = "SLURM_JOB_ID"

# Limit of a command line in a message.
COMMAND_CHARS_MAX = 80

# Set by Ray for its worker processes.
RAYLET_VARIABLE = "RAY_RAYLET_PID"

# Interval between two checks for a node that is starting.
START_POLL_S = 0.02


def runtime_dir() -> Path:
    """Returns the directory of this user's sockets. Creates it if it is missing, closed to other users.

    It is in XDG_RUNTIME_DIR, or in /tmp if that is not set, missing or not writable.

    Raises:
        HopliteError: another user owns the directory or can access it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = _made(Path(base) / "hoplite") if base else None
    if folder is None:
        wanted = SHARED_FOLDER / f"hoplite-{os.getuid()}"
        folder = _made(wanted)
        if folder is None:
            raise HopliteError(f"{wanted} is not writable: set XDG_RUNTIME_DIR to a directory of this user")
    # In /tmp, another user could have created it first, to serve a socket of its own.
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise HopliteError(
            f"{folder} is not a directory of this user: remove it, or set XDG_RUNTIME_DIR to a directory of this user"
        )
    if stat.S_IMODE(facts.st_mode) & 0o077:
        raise HopliteError(
            f"other users can access {folder}, the directory of this user's sockets: run chmod 700 {folder}"
        )
    return folder


def warn_of_a_missing_folder() -> None:
    """Warns if XDG_RUNTIME_DIR is missing: a node may run whose socket was there until a logout removed the directory.

    Does not warn in a Slurm job, whose processes inherit the variable from the host that submitted it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and not Path(base).is_dir() and JOB_VARIABLE not in os.environ:
        settings.warn(
            "XDG_RUNTIME_DIR",
            f"XDG_RUNTIME_DIR is {base}, which does not exist: this process found no node in {runtime_dir()} and "
            f"starts its own, but a node may be running whose socket was in {base}. Restart that node, or set "
            "HOPLITE_SOCKET to a path that is not removed at logout",
        )


def default_socket() -> Path:
    """Returns the default socket of this host's node: this user's, or in a Slurm job, the job's."""
    job = os.environ.get(JOB_VARIABLE, "")
    return runtime_dir() / (f"node-slurm{job}.sock" if job.isascii() and job.isdigit() else USER_SOCKET)


def embedded_socket(wanted: str | None) -> Path:
    """Returns the socket of a node that `hoplite.init()` starts.

    It differs from the socket of this host's node, so that `hoplite node` can still start.

    Args:
        wanted: the setting `socket`, if set.
    """
    of_host = Path(wanted) if wanted is not None else default_socket()
    return of_host.with_name(f"{of_host.stem}-embedded{of_host.suffix}")


def host_sockets(wanted: str | None) -> list[Path]:
    """Returns the sockets at which this host's node may serve this process, in order of preference.

    Args:
        wanted: the setting `socket`, if set.
    """
    if wanted is not None:
        return [Path(wanted)]
    of_ray = raylet_socket()
    if of_ray is not None and of_ray.exists():
        return [of_ray]
    # Without a node of its own, a job uses this user's node.
    return list(dict.fromkeys([default_socket(), runtime_dir() / USER_SOCKET]))


def find(wanted: str | None, *, embedded: bool = True) -> str | None:
    """Returns the socket of a running node for this process: this host's node, else an embedded one; else None.

    Args:
        wanted: the setting `socket`, if set.
        embedded: whether to look for embedded nodes too.
    """
    paths = [*host_sockets(wanted), *([embedded_socket(wanted)] if embedded else [])]
    return next((str(path) for path in paths if is_served(path)), None)


def wait_for(paths: Sequence[str | Path], timeout: float | None) -> str:
    """Waits until a node serves one of several sockets, and returns the path of that socket.

    Args:
        paths: paths of the sockets, in order of preference.
        timeout: seconds to wait; None waits without limit.

    Raises:
        ConnectError: no node served one in time.
    """
    begun = time.monotonic()
    while True:
        with needs_descriptors(f"attach to {paths[0]}"):
            path = next((path for path in paths if is_served(path)), None)
        if path is not None:
            return str(path)
        if timeout is not None and time.monotonic() - begun >= timeout:
            raise ConnectError(
                f"no node served {' or '.join(map(str, paths))} within {round(timeout, 3):g} s: start one with "
                "hoplite node, or set a longer timeout"
            )
        time.sleep(START_POLL_S)


def raylet_socket() -> Path | None:
    """Returns the socket of the node that `hoplite.ray` runs for this worker's Ray node; None outside of Ray workers.

    A host can have several Ray nodes, if Ray clusters share it. Each has a raylet, whose pid is in the environment of
    its workers.
    """
    pid = os.environ.get(RAYLET_VARIABLE, "")
    return runtime_dir() / f"ray-{pid}.sock" if pid.isascii() and pid.isdigit() else None


def is_served(path: str | Path) -> bool:
    """Whether a running process listens on a socket; false if the socket is missing or a dead process left it.

    Raises:
        InvalidArgument: the path is too long for a socket.
    """
    check_length(path)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
            return False
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EPERM) or isinstance(error, TimeoutError):
            # The backlog is full, or the socket belongs to another user: a process listens.
            return True
        raise
    return True


def pid_of(path: str | Path) -> int | None:
    """Returns the PID of the process that serves a socket; None if it has ended, or is in another PID namespace."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
            pid = int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
    except OSError:
        return None
    return pid or None


def server_of(path: str | Path) -> str:
    """Describes the process that serves a socket, such as "process 4711 (python train.py)"."""
    pid = pid_of(path)
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        return "another process"
    command = "".join(letter for letter in " ".join(words) if letter.isprintable())
    shown = command if len(command) <= COMMAND_CHARS_MAX else f"{command[:COMMAND_CHARS_MAX]}..."
    return f"process {pid} ({shown})"


@contextlib.contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Context for code that opens files: converts errors about missing file descriptors.

    Raises:
        HopliteError: this process has no file descriptors left.
    """
    try:
        yield
    except (OSError, HopliteError) as error:
        # The extension raises the kernel's message.
        if getattr(error, "errno", None) != errno.EMFILE and f"(os error {errno.EMFILE})" not in str(error):
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = hard if hard != resource.RLIM_INFINITY else "any number"
        raise HopliteError(
            f"can't {what}: this process has reached its limit of {soft} open files. Close some, or raise the "
            f"limit with ulimit -n (up to {highest})"
        ) from None


def check_length(path: str | Path) -> None:
    """Rejects a path that is too long for a Unix socket.

    Raises:
        InvalidArgument: the path is too long.
    """
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidArgument(
            f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes: choose a shorter path, or set "
            "XDG_RUNTIME_DIR to a directory with a short path"
        )


def check_folder(path: str | Path) -> None:
    """Rejects a socket path in a directory that does not exist.

    Raises:
        InvalidArgument: the directory does not exist.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise InvalidArgument(
            f"the directory {folder} of the socket {path} does not exist: create it (mkdir -p {folder}) or choose "
            "another path"
        )


def check_free(path: str | Path) -> str:
    """Rejects a path on which no node can listen. A node that listens replaces the socket of a dead one.

    Returns:
        The path. If another process takes it first, listening fails with `AddressInUse`.

    Raises:
        AddressInUse: a running process serves the path, or the file there is not a socket.
        InvalidArgument: the path is too long for a socket, or its directory does not exist.
    """
    check_folder(path)
    if is_served(path):
        raise AddressInUse(
            f"{server_of(path)} already serves the socket {path}: use its node, stop that process, or choose another "
            "socket"
        )
    _refuse_file(Path(path))
    return str(path)


def free_path(usual: Path) -> str:
    """Chooses the socket path of a node whose settings have none, and removes the sockets of dead nodes.

    Args:
        usual: the preferred path. If a running node serves it, the result is a new path.

    Returns:
        A path to listen on. If another process takes it first, listening fails with `AddressInUse`.

    Raises:
        AddressInUse: the file at the path is not a socket.
        InvalidArgument: the path is too long for a socket, or its directory does not exist.
    """
    check_folder(usual)
    # A node that starts to listen takes this lock too: a socket that does not listen yet looks like a dead node's.
    folder = runtime_dir()
    with _locked(folder):
        for left_over in folder.glob("node-*.sock"):
            if left_over.is_socket() and not is_served(left_over):
                left_over.unlink(missing_ok=True)
        path, number = usual, 0
        while is_served(path):
            number += 1
            path = folder / f"node-{os.getpid()}-{number}.sock"
    _refuse_file(path)
    return str(path)


@contextlib.contextmanager
def one_at_a_time(timeout: float | None) -> Iterator[None]:
    """Holds the lock for starting this user's node on this host: of several concurrent scripts, one starts it.

    Args:
        timeout: seconds to wait for another process that holds the lock; None waits without limit.

    Raises:
        ConnectError: another process held the lock for the whole time.
    """
    with _locked(runtime_dir() / "init.lock", timeout):
        yield


def _made(folder: Path) -> Path | None:
    """Creates a directory unless it exists. Returns None if it can't be created or is not writable."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        # A file or a broken link, not a directory: the caller rejects it.
        return folder
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _refuse_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise AddressInUse(f"{path} exists and is not a socket: choose another socket path")


@contextlib.contextmanager
def _locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Holds the lock of a directory, or of a file, which it creates if missing."""
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        raise HopliteError(f"can't open {path} ({error.strerror}): remove it") from None
    try:
        if not take_lock(descriptor, timeout):
            raise ConnectError(
                f"another process of this user has held the lock {path} for {timeout:g} s while it starts this host's "
                "node: wait, or end that process"
            )
        try:
            yield
        finally:
            # A child forked meanwhile has the descriptor too: closing it only here would leave the file locked.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
