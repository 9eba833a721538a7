"""The namespaces of a lab: keeper processes hold them, and threads or programs enter them to work.

A keeper is a `sleep` process with its own network, host name and mount namespace. The kernel removes a namespace and
its links when the last process in it has ended, so nothing of a lab is mounted or named anywhere else. This module does
not depend on links and hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite_bench.lab.errors import LabError
from hoplite_bench.processes import all_ids, fields_of, network_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

Result = TypeVar("Result")

CLONE_NEWNET = 0x40000000

# A namespace exists after about 10 ms, and a killed process is gone after 1 ms. A busy machine may take 1000 times as
# long.
DEADLINE_S = 15.0
POLL_S = 0.002

# Script of a keeper. A keeper waits for "go" before it creates namespaces. If its creator ends before it has written
# the record of its keepers, the keeper reads the end of the file and ends too. /sys shows the links of the namespace
# that mounted it, and programs read a link's speed there; the control groups below it are mounted again. /dev/shm and
# the folder of Hoplite's sockets belong to one host; all other files are shared.
KEEPER = """
set -e
if [ "$1" != - ]; then
    hostname "$1"
    mount --bind "$2/hosts" /etc/hosts
    mount -t tmpfs -o mode=700 hoplite-lab "$3"
    mount -t tmpfs -o mode=1777 hoplite-lab /dev/shm
    if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$2/cgroup"; fi
    mount -t sysfs hoplite-lab /sys
    if [ -d /sys/fs/cgroup ]; then mount --move "$2/cgroup" /sys/fs/cgroup; fi
fi
echo ready
exec sleep infinity <&- >&- 2>&-
"""


@dataclass(frozen=True)
class Keeper:
    """A process that holds namespaces.

    Attributes:
        process: process id.
        started: its start time in kernel ticks since boot; together with the id, it identifies one process uniquely.
    """

    process: int
    started: int

    def is_alive(self) -> bool:
        """Whether this process is alive, and not a later one with the same id."""
        return start_of(self.process) == self.started

    def network(self) -> int:
        """The identity of its network namespace.

        Raises:
            LabError: the namespace no longer exists.
        """
        inode = network_of(self.process) if self.is_alive() else None
        if inode is None:
            raise LabError(
                f"the namespaces of process {self.process} are gone, because the lab was closed or killed: "
                "create it again"
            )
        return inode


class Keepers:
    """Keepers that are being started: first all processes, then, once their record is written, the namespaces.

    Args:
        names: host name of each keeper; "-" for one that only needs a network.
        folder: folder of the lab, with a file `hosts` and a folder `cgroup`.
        sockets: folder of Hoplite's sockets, which each host gets as its own.
    """

    def __init__(self, names: Sequence[str], folder: Path, sockets: Path) -> None:
        self._names = names
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for name in names:
                wait = ["sh", "-c", 'read -r go || exit 1\n exec unshare --net --uts --mount sh -c "$0" "$@"', KEEPER]
                self._processes.append(
                    subprocess.Popen(
                        [*wait, "lab", name, str(folder), str(sockets)],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                        start_new_session=True,
                        cwd="/",
                    )
                )
        except BaseException:
            self.abandon()
            raise
        self.keepers = [Keeper(process.pid, start_of(process.pid) or 0) for process in self._processes]

    def go(self) -> None:
        """Creates the namespaces.

        Raises:
            LabError: one could not be created; includes the error output.
        """
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.close()
        for name, process in zip(self._names, self._processes, strict=True):
            if not _is_ready(process):
                process.kill()
                assert process.stderr is not None
                said = process.stderr.read().strip() or f"not ready after {DEADLINE_S:g} s"
                self.abandon()
                raise LabError(
                    f"the namespaces of {'the switch' if name == '-' else name} could not be created: {said}; "
                    "in a container, grant CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
                )
        self._close_pipes()

    def abandon(self) -> None:
        """Kills all keepers."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._close_pipes()

    def reap(self) -> None:
        """Waits for killed keepers, and closes their pipes."""
        for process in self._processes:
            process.wait(DEADLINE_S)
        self._close_pipes()

    def leave(self) -> None:
        """Lets the keepers outlive this process."""
        for process in self._processes:
            # Python warns about a child process without an exit status; these keepers are meant to continue.
            process.returncode = 0

    def _close_pipes(self) -> None:
        for process in self._processes:
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(DEADLINE_S)) and process.stdout.readline() == "ready\n"


def entry(keeper: int, folder: str) -> list[str]:
    """Returns the words to put before a command so that it runs in the namespaces of a keeper.

    nsenter replaces itself with the program, so process, signals and exit status are the program's own. It takes 2 ms.

    Args:
        keeper: process id of the keeper.
        folder: working directory of the program, as an absolute path.
    """
    # env rather than nsenter changes the directory: nsenter can do so inside the namespace (--wdns) since util-linux
    # 2.38.
    return ["nsenter", f"--target={keeper}", "--net", "--uts", "--mount", "--", "env", f"--chdir={folder}", "--"]


def inside(keeper: Keeper, work: Callable[[], Result]) -> Result:
    """Calls a function on a thread in a keeper's network namespace; sockets that it opens stay in that namespace.

    Returns:
        The result of the function; its exception is raised.

    Raises:
        LabError: the namespace no longer exists.
    """
    keeper.network()
    results: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            # os.setns requires Python 3.12. The thread ends here, so nothing else ever runs in the namespace.
            libc = ctypes.CDLL(None, use_errno=True)
            with Path(f"/proc/{keeper.process}/ns/net").open() as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, f"setns: {os.strerror(code)}")
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)

    thread = threading.Thread(target=enter, name="hoplite-lab")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def own_network() -> int:
    """The identity of the network namespace of this process."""
    network = network_of("self")
    assert network is not None, "this process has no network namespace in /proc"
    return network


def start_of(process: int) -> int | None:
    """Returns the start time of a process in ticks since boot; None if it does not exist or is a zombie."""
    fields = fields_of(process)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def processes_in(networks: Iterable[int]) -> list[int]:
    """The ids of all processes in the given network namespaces, in ascending order."""
    wanted = set(networks)
    return sorted(process for process in all_ids() if network_of(process) in wanted)


def processes_that_see(hosts: Path) -> list[int]:
    """The ids of all processes whose /etc/hosts is this file, in ascending order; empty if the file does not exist."""
    try:
        wanted = hosts.stat()
    except OSError:
        return []
    found = []
    for process in all_ids():
        with contextlib.suppress(OSError):
            seen = os.stat(f"/proc/{process}/root/etc/hosts")  # noqa: PTH116 - as in network_of
            if os.path.samestat(seen, wanted):
                found.append(process)
    return sorted(found)


def is_stopped(process: int) -> bool:
    """Whether a process is stopped, or has ended."""
    fields = fields_of(process)
    return fields is None or fields[0] in (b"T", b"t", b"Z", b"X")


def send(process: int, number: signal.Signals, networks: Collection[int]) -> None:
    """Sends a signal to a process if it is in one of the given namespaces; never to a later one with the same id."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            if network_of(process) in networks:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill_all(networks: Sequence[int], *, spare: Sequence[int] = ()) -> None:
    """Kills every process in the given network namespaces, including processes that start meanwhile.

    Args:
        networks: identities of namespaces, not including this process's own.
        spare: ids of processes to keep alive.

    Raises:
        LabError: a process did not end.
    """
    assert own_network() not in networks, f"a lab is never in the namespace of its creator: {networks}"
    wait_until(
        lambda: [process for process in processes_in(networks) if process not in spare],
        lambda process: send(process, signal.SIGKILL, networks),
        "are still alive",
    )


def wait_until(left: Callable[[], list[int]], act: Callable[[int], Any], complaint: str) -> None:
    """Repeats an action on processes until none is left.

    Raises:
        LabError: processes are left after 15 s.
    """
    deadline = time.monotonic() + DEADLINE_S
    while processes := left():
        if time.monotonic() > deadline:
            raise LabError(f"processes {processes} {complaint} after {DEADLINE_S:g} s")
        for process in processes:
            act(process)
        time.sleep(POLL_S)
