"""The namespaces of a lab: a keeper process holds each, and work is done inside by threads or programs that enter.

A keeper is `sleep` in a network, host name and mount namespace of its own. The kernel takes a namespace away, with all
its links, when the last process in it has ended; so nothing of a lab is mounted or named anywhere else.
Knows nothing of links and hosts.
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

# A namespace is there in some 10 ms, and a killed process gone in 1; a busy machine may take a thousand times that.
DEADLINE_S = 15.0
POLL_S = 0.002

# What a keeper runs before it sleeps. It begins when it hears "go": if its maker dies before it has written down which
# keepers to clean up, the keeper reads the end of the file and goes too.
# /sys shows the links of the namespace that mounted it, and programs look there for a link's speed; the control groups
# below it are put back. /dev/shm and the folder of Hoplite's sockets are a host's own; every other file is shared.
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
        process: its id.
        started: when it was started, in the kernel's ticks since boot; with the id, it names one process for ever.
    """

    process: int
    started: int

    def is_alive(self) -> bool:
        """Whether this very process, and not a later one of the same id, is alive."""
        return start_of(self.process) == self.started

    def network(self) -> int:
        """The identity of its network namespace.

        Raises:
            LabError: it is gone.
        """
        inode = network_of(self.process) if self.is_alive() else None
        if inode is None:
            raise LabError(f"the namespaces of process {self.process} are gone: the lab is closed, or was killed")
        return inode


class Keepers:
    """Keepers that are being started: first all processes, then, when they are written down, what they hold.

    Args:
        names: the host name of each; "-" for one that only needs a network.
        folder: of the lab, with a file `hosts` and a folder `cgroup`.
        sockets: the folder of Hoplite's sockets, to be each host's own.
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
        """Makes the namespaces.

        Raises:
            LabError: one could not be made; with what the system said.
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
                    f"the namespaces of {'the switch' if name == '-' else name} could not be made: {said}; "
                    "in a container they need CAP_SYS_ADMIN and CAP_NET_ADMIN (docker run --privileged)"
                )
        self._close_pipes()

    def abandon(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._close_pipes()

    def reap(self) -> None:
        """Waits for the ends of keepers that were killed, and closes what is open."""
        for process in self._processes:
            process.wait(DEADLINE_S)
        self._close_pipes()

    def leave(self) -> None:
        """Lets them live on after this process."""
        for process in self._processes:
            # Python warns of a process that its parent has not waited for; this one is meant to stay.
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
    """The words that run a program in the namespaces of a keeper: the program is to follow.

    nsenter becomes the program, so the process, its signals and its exit code are the program's own. It takes 2 ms.

    Args:
        keeper: the id of its process.
        folder: where the program starts, as an absolute path.
    """
    # env and not nsenter changes the folder: nsenter does so inside the namespace (--wdns) only since util-linux 2.38.
    return ["nsenter", f"--target={keeper}", "--net", "--uts", "--mount", "--", "env", f"--chdir={folder}", "--"]


def inside(keeper: Keeper, work: Callable[[], Result]) -> Result:
    """Calls something on a thread in a keeper's network namespace: the sockets that it opens stay there.

    Returns:
        What it returns; what it raises is raised.

    Raises:
        LabError: the namespace is gone.
    """
    keeper.network()
    results: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            # os.setns came with Python 3.12. The thread ends here, so nothing else ever runs in there.
            libc = ctypes.CDLL(None, use_errno=True)
            with Path(f"/proc/{keeper.process}/ns/net").open() as namespace:
                if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, f"setns: {os.strerror(code)}")
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
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
    """When a process was started, in ticks since boot; None if there is none, or if only its end is left to be read."""
    fields = fields_of(process)
    return None if fields is None or fields[0] in (b"Z", b"X") else int(fields[19])


def processes_in(networks: Iterable[int]) -> list[int]:
    """The ids of all processes in some network namespaces, lowest first."""
    wanted = set(networks)
    return sorted(process for process in all_ids() if network_of(process) in wanted)


def processes_that_see(hosts: Path) -> list[int]:
    """The ids of all processes to which a file is /etc/hosts, lowest first; none if it is not there."""
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
    """Whether a process is frozen, or gone."""
    fields = fields_of(process)
    return fields is None or fields[0] in (b"T", b"t", b"Z", b"X")


def send(process: int, number: signal.Signals, networks: Collection[int]) -> None:
    """Sends a signal to a process if it is in one of some namespaces; never to a later one of the same id."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            if network_of(process) in networks:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill_all(networks: Sequence[int], *, spare: Sequence[int] = ()) -> None:
    """Kills every process in some network namespaces, those that start meanwhile too.

    Args:
        networks: identities of namespaces, none of which is this process's own.
        spare: ids of processes to leave alive.

    Raises:
        LabError: one did not end.
    """
    assert own_network() not in networks, f"a lab is never in the namespace of its maker: {networks}"
    wait_until(
        lambda: [process for process in processes_in(networks) if process not in spare],
        lambda process: send(process, signal.SIGKILL, networks),
        "are still alive",
    )


def wait_until(left: Callable[[], list[int]], act: Callable[[int], Any], complaint: str) -> None:
    """Acts on processes again and again, until none is left to act on.

    Raises:
        LabError: some are left after 15 s.
    """
    deadline = time.monotonic() + DEADLINE_S
    while processes := left():
        if time.monotonic() > deadline:
            raise LabError(f"processes {processes} {complaint} after {DEADLINE_S:g} s")
        for process in processes:
            act(process)
        time.sleep(POLL_S)
