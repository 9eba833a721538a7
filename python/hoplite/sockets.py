"""Where the Unix sockets of this user's nodes are, and which of them a living node serves."""

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

# sun_path of sockaddr_un, less the closing zero.
PATH_BYTES_MAX = 107

# Where the folder of a user without XDG_RUNTIME_DIR is made: there on every host, and of no one user.
SHARED_FOLDER = Path("/tmp")

# The socket of this user's node, and what Slurm sets in the processes of a job, which has sockets of its own.
USER_SOCKET = "node.sock"
JOB_VARIABLE = "SLURM_JOB_ID"

# Of a command line in a message.
COMMAND_CHARS_MAX = 80

# Set by Ray for its worker processes.
RAYLET_VARIABLE = "RAY_RAYLET_PID"

# Between two looks for a node that is starting.
START_POLL_S = 0.02

# Between two looks at a lock that another process holds.


def runtime_dir() -> Path:
    """The folder of this user's sockets, made if it is not there, closed to other users.

    It is in XDG_RUNTIME_DIR or, where that is not set, not there or not writable, in /tmp.

    Raises:
        HopliteError: someone else owns it or may look into it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = _made(Path(base) / "hoplite") if base else None
    if folder is None:
        wanted = SHARED_FOLDER / f"hoplite-{os.getuid()}"
        folder = _made(wanted)
        if folder is None:
            raise HopliteError(f"{wanted} can't be written; set XDG_RUNTIME_DIR to a folder of yours")
    # In /tmp anyone could have made it first, to serve us a socket of theirs.
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise HopliteError(
            f"{folder} is not a folder of this user's alone; remove it, or set XDG_RUNTIME_DIR to one that is"
        )
    return folder


def warn_of_a_missing_folder() -> None:
    """Says that a node may run whose socket was in a folder that a logout has removed.

    Not in a Slurm job: its processes have the variable of the host that it was submitted from, and look in one folder.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and not Path(base).is_dir() and JOB_VARIABLE not in os.environ:
        settings.warn(
            "XDG_RUNTIME_DIR",
            f"XDG_RUNTIME_DIR is {base}, which is not there: this process found no node in {runtime_dir()} and starts "
            f"one of its own, though one may run whose socket was in {base}; start that again, or set HOPLITE_SOCKET "
            "to a path that outlives logins",
        )


def default_socket() -> Path:
    """The path at which the node of this host serves this user's processes or, in a Slurm job, those of the job."""
    job = os.environ.get(JOB_VARIABLE, "")
    return runtime_dir() / (f"node-slurm{job}.sock" if job.isascii() and job.isdigit() else USER_SOCKET)


def embedded_socket(wanted: str | None) -> Path:
    """The path at which a node that `hoplite.init()` starts serves other processes of its scope.

    It is beside that of the host's node, so that none keeps `hoplite node` from starting.

    Args:
        wanted: the socket that the settings name, if they name one.
    """
    of_host = Path(wanted) if wanted is not None else default_socket()
    return of_host.with_name(f"{of_host.stem}-embedded{of_host.suffix}")


def host_sockets(wanted: str | None) -> list[Path]:
    """The paths at which the node of this host may serve this process, the first choice first.

    Args:
        wanted: the socket that the settings name, if they name one.
    """
    if wanted is not None:
        return [Path(wanted)]
    of_ray = raylet_socket()
    if of_ray is not None and of_ray.exists():
        return [of_ray]
    # A job on a host that has a node of this user for all jobs uses that.
    return list(dict.fromkeys([default_socket(), runtime_dir() / USER_SOCKET]))


def find(wanted: str | None, *, embedded: bool = True) -> str | None:
    """The path of the node that this process uses if nothing else is said: that of the host, or an embedded one.

    Args:
        wanted: the socket that the settings name, if they name one.
        embedded: look for an embedded one too.
    """
    paths = [*host_sockets(wanted), *([embedded_socket(wanted)] if embedded else [])]
    return next((str(path) for path in paths if is_served(path)), None)


def wait_for(paths: Sequence[str | Path], timeout: float | None) -> str:
    """Waits until a node serves one of some sockets, and returns the path of that.

    Args:
        paths: of the sockets, the first choice first.
        timeout: seconds to wait; None waits as long as it takes.

    Raises:
        ConnectError: none did in time.
    """
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        with needs_descriptors(f"attach to {paths[0]}"):
            path = next((path for path in paths if is_served(path)), None)
        if path is not None:
            return str(path)
        if until is not None and time.monotonic() >= until:
            raise ConnectError(
                f"no node serves {' or '.join(map(str, paths))} after {timeout:g} s: start one with hoplite node, or "
                "allow a longer timeout"
            )
        time.sleep(START_POLL_S)


def raylet_socket() -> Path | None:
    """The path of the node that `hoplite.ray` runs for a Ray node, in a worker process of that; None elsewhere.

    A host has several Ray nodes where clusters of Ray share it: each has a raylet, whose pid its workers know.
    """
    pid = os.environ.get(RAYLET_VARIABLE, "")
    return runtime_dir() / f"ray-{pid}.sock" if pid.isascii() and pid.isdigit() else None


def is_served(path: str | Path) -> bool:
    """Whether a living process listens on a socket; false if there is none, or only a dead one's.

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
            # Full of other callers, or another user's: alive.
            return True
        raise
    return True


def server_of(path: str | Path) -> str:
    """Names the process that serves a socket, as "process 4711 (python train.py)"."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(str(path))
            pid = int.from_bytes(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except OSError:
        # It is gone, or in another PID namespace.
        return "another process"
    command = "".join(letter for letter in " ".join(words) if letter.isprintable())
    shown = command if len(command) <= COMMAND_CHARS_MAX else f"{command[:COMMAND_CHARS_MAX]}..."
    return f"process {pid} ({shown})"


@contextlib.contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Runs what opens files, to say it in one way if there are none left.

    Raises:
        HopliteError: this process has used up its file descriptors.
    """
    try:
        yield
    except (OSError, HopliteError) as error:
        # The extension says it in the kernel's words.
        if getattr(error, "errno", None) != errno.EMFILE and f"(os error {errno.EMFILE})" not in str(error):
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = hard if hard != resource.RLIM_INFINITY else "any number"
        raise HopliteError(
            f"can't {what}: this process may open {soft} files and has opened them all; close some, or raise the limit "
            f"with ulimit -n (up to {highest})"
        ) from None


def check_length(path: str | Path) -> None:
    """Refuses a path that no Unix socket can have.

    Raises:
        InvalidArgument: it is too long.
    """
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise InvalidArgument(
            f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes; choose a shorter one, or set "
            "XDG_RUNTIME_DIR to a folder with a short path"
        )


def check_folder(path: str | Path) -> None:
    """Refuses a path for a socket in a folder that is not there.

    Raises:
        InvalidArgument: there is no such folder.
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise InvalidArgument(
            f"there is no folder {folder} for the socket {path}: make it (mkdir -p {folder}) or choose another path"
        )


def check_free(path: str | Path) -> str:
    """Refuses a path at which no node can come to listen; a dead node's socket is replaced as the new one does.

    Returns:
        The path. Another process may take it first, and then listening fails with `AddressInUse`.

    Raises:
        AddressInUse: a living process serves the path, or the file there is no socket.
        InvalidArgument: the path is too long for a socket, or in no folder.
    """
    check_folder(path)
    if is_served(path):
        raise AddressInUse(
            f"{server_of(path)} serves the socket {path} already: use the node there, stop that process, or choose "
            "another socket"
        )
    _refuse_file(Path(path))
    return str(path)


def free_path(usual: Path) -> str:
    """Chooses the socket path of a node that need not have a certain one, and removes what dead ones have left.

    Args:
        usual: its first choice; if a living node serves that, it gets a path of its own.

    Returns:
        A path to listen on. Another process may take it first, and then listening fails with `AddressInUse`.

    Raises:
        AddressInUse: the file there is no socket.
        InvalidArgument: the path is too long for a socket, or in no folder.
    """
    check_folder(usual)
    # The lock of the node that listens: a socket that does not listen yet looks like a dead one's.
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
    """Holds the right to become this user's node on this host, so that two scripts that look at once find one node.

    Args:
        timeout: seconds to wait for another process that holds it; None waits as long as that takes.

    Raises:
        ConnectError: another process held it all the time.
    """
    with _locked(runtime_dir() / "init.lock", timeout):
        yield


def _made(folder: Path) -> Path | None:
    """A folder that is there or could be made, if this process may write there."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        # No folder but a file, or a link to nowhere: for the caller to refuse.
        return folder
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _refuse_file(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise AddressInUse(f"{path} exists and is no socket; choose another socket path")


@contextlib.contextmanager
def _locked(path: Path, timeout: float | None = None) -> Iterator[None]:
    """Holds the lock of a folder, or of a file, which is made if it is not there."""
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise
        raise HopliteError(f"can't open {path}: {error.strerror}; remove it") from None
    try:
        if not take_lock(descriptor, timeout):
            raise ConnectError(
                f"another process of yours has been starting this host's node for {timeout:g} s: it holds {path}"
            )
        try:
            yield
        finally:
            # A child that was forked meanwhile has the descriptor too, and closing ours alone would leave it locked.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
