"""One container: starts it, and ends it with everything inside. Not the network between containers.

Its root file system is an overlay of this machine's, whose changes stay in memory, so no image is downloaded. The
folders of temporary files, of the cache and of this package are this machine's own, at the same paths. Everything is
mounted in a mount namespace of its own and ends with it.

A container exists until its first process, the server of `server.py`, ends; that happens when its stdin is closed.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.sockets import PATH_BYTES_MAX
from hoplite_bench.containers import bundle, needs
from hoplite_bench.environments import Environments
from hoplite_bench.lab.namespaces import Keeper, start_of
from hoplite_bench.places import python_path
from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

START_TIMEOUT_S = 30.0
# The server waits for 15 s until commands have ended.
END_TIMEOUT_S = 25.0
SERVER = Path(__file__).with_name("server.py")
CLIENT = Path(__file__).with_name("client.py")
# The shell command that runs `$*` in the container whose socket is `$target`.
ENTER = f'{shlex.join([sys.executable, "-I", "-S", str(CLIENT)])} "$target" "$*"'

# Arguments: an empty folder, the hosts file, and the command, which finds the root file system in `root`. Layers of an
# overlay must not contain each other; those in a new tmpfs are not in this machine's root.
MOUNT = """
set -e
mount -t tmpfs -o mode=700 hoplite-study "$1"
cd "$1"
mkdir -m 755 upper work root upper/etc
cp "$2" upper/etc/hosts
mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work hoplite-study root
shift 2
exec "$@"
"""


class Container:
    """A container that runs commands, from its start to `close`.

    Args:
        runtime: "charliecloud" or "runc".
        name: name of the container; no other one has it.
        hostname: its host name, if it has its own.
        folder: folder of the run, on which `hosts` is the content of its /etc/hosts.

    Attributes:
        hostname: its host name.
        socket: path of its server's socket, for `client.py`.

    Raises:
        Unavailable: the folder's path is too long.
        OSError: no space, memory or process is left.
    """

    def __init__(self, runtime: str, name: str, hostname: str, folder: Path) -> None:
        self.hostname = hostname
        self.socket = folder / f"{hostname}.sock"
        if (length := len(os.fsencode(self.socket))) > PATH_BYTES_MAX:
            raise Unavailable(
                f"the path {self.socket} has {length} bytes, but that of a Unix socket has at most {PATH_BYTES_MAX}: "
                "set TMPDIR to a folder with a shorter path"
            )
        self._name = name
        self._pid_file = folder / f"{hostname}.pid"
        self._runtime = runtime
        mounts, temporary = folder / hostname, folder / f"{hostname}.tmp"
        mounts.mkdir()
        # Process ids repeat in containers, and libraries name temporary files by them.
        temporary.mkdir()
        server = [sys.executable, "-I", "-S", str(SERVER), str(self.socket), str(temporary)]
        command = self._runc(server, mounts, folder) if runtime == "runc" else _charliecloud(server, mounts)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the container lives
        try:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(mounts), str(folder / "hosts"), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                # Ctrl-C goes to the bench, which then ends everything in order.
                start_new_session=True,
                env=needs.environment(),
                cwd="/",
            )
        except OSError:
            self._errors.close()
            raise

    def _runc(self, server: Sequence[str], mounts: Path, folder: Path) -> list[str]:
        """Writes the bundle of a container; returns the command that runs it."""
        place = folder / f"{self.hostname}.bundle"
        place.mkdir()
        facts = bundle.configuration(
            self._name,
            self.hostname,
            server,
            root=str(mounts / "root"),
            binds=shared_folders(),
            environment=needs.environment(),
            shm_bytes=needs.shared_memory_size(),
        )
        (place / "config.json").write_text(json.dumps(facts))
        # Its state, like everything that is mounted, ends with the mount namespace.
        options = ["--root", str(mounts / "state")]
        return ["runc", *options, "run", "--bundle", str(place), "--pid-file", str(self._pid_file), self._name]

    def wait(self) -> None:
        """Waits until its server runs.

        Raises:
            Unavailable: it ended, or did not start in time.
        """
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = bool(selector.select(START_TIMEOUT_S)) and self._process.stdout.readline() == b"ready\n"
        if not ready:
            self._kill()
            raise Unavailable(
                f"the container {self._name} did not start with {self._runtime}: {self._said()}; it needs root with "
                "CAP_SYS_ADMIN and writable control groups (in a container: docker run --privileged)"
            )

    def keeper(self) -> Keeper:
        """Its first process on this machine, which holds its namespaces."""
        process = int(self._pid_file.read_text()) if self._runtime == "runc" else self._process.pid
        return Keeper(process, start_of(process) or 0)

    def begin_close(self) -> None:
        """Lets the container end, without waiting for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        """Ends the container and all its processes."""
        self.begin_close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _kill(self) -> None:
        """Kills the first process of the container, and with it all others in its process namespace."""
        if self._pid_file.exists() and (keeper := self.keeper()).is_alive():
            os.kill(keeper.process, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait(END_TIMEOUT_S)

    def _said(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else f"no answer within {START_TIMEOUT_S:.0f} s"


def _charliecloud(server: Sequence[str], mounts: Path) -> list[str]:
    """The command that runs a container of Charliecloud."""
    # It shares /tmp by itself, and refuses folders inside.
    binds = [path for path in shared_folders() if Path("/tmp") not in (Path(path), *Path(path).parents)]
    return ["ch-run", "--write", *(f"--bind={path}" for path in binds), str(mounts / "root"), "--", *server]


def shared_folders() -> list[str]:
    """The folders that containers share with this machine, outermost first: the overlay has files of one file system.

    Only these have the same files afterward: changes elsewhere stay in the container.
    """
    root = Path("/").stat().st_dev
    cache = Environments().root
    cache.mkdir(parents=True, exist_ok=True)
    shared = {Path(tempfile.gettempdir()).resolve(), cache.resolve()}
    used = [*python_path().split(os.pathsep), sys.prefix, sys.base_prefix]
    shared |= {path for one in used if (path := Path(one).resolve()).stat().st_dev != root}
    return [str(path) for path in sorted(shared) if not shared.intersection(path.parents)]
