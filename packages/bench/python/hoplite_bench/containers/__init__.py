"""Container set-ups of the study: where ranks run, and what they share. Not what they measure.

set-up   ranks                              shared by all ranks
bare     processes on this machine          everything
hpc      in one container of Charliecloud   everything; it has its own user and mount namespace
single   in one container of runc           everything; it has its own network, IPC, process ids and /dev/shm
cross    in one container of runc each      files; each has its own network, IPC, process ids and /dev/shm
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite.settings import closest
from hoplite_bench.containers import leftovers, needs
from hoplite_bench.containers.container import ENTER, Container
from hoplite_bench.containers.switch import NETWORK, PREFIX, Switch, address_of
from hoplite_bench.hosts import Network
from hoplite_bench.lab import LabError, agent
from hoplite_bench.lab.hosts import INTERFACE
from hoplite_bench.systems.base import Host, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["NAMES", "opened"]

NAMES = ("bare", "hpc", "single", "cross")
# More ranks than this measure the processors of one machine rather than its libraries.
RANKS_MAX = 16
LOOPBACK = ("127.0.0.1", "lo")


@contextlib.contextmanager
def opened(name: str, ranks: int) -> Iterator[Network]:
    """Creates a container set-up, and removes it at the end.

    What killed runs left behind is removed first.

    Args:
        name: one of NAMES.
        ranks: number of hosts of the network, which have one address each in "cross" and one for all elsewhere.

    Raises:
        InvalidArgument: an unknown name, or a number of ranks that is not valid.
        Unavailable: it can't be created here; the message contains the reason.
    """
    if name not in NAMES:
        raise InvalidArgument(
            f"unknown container set-up {name!r}{closest(name, NAMES)}: choose from {', '.join(NAMES)}"
        )
    if not 1 <= ranks <= RANKS_MAX:
        raise InvalidArgument(f"a container set-up of {ranks} ranks is not valid: set 1 to {RANKS_MAX}")
    with contextlib.ExitStack() as undo:
        try:
            network = _open(name, ranks, undo)
        except OSError as error:
            raise Unavailable(
                f"can't create the container set-up {name!r}: {error}; check the free space of temporary files (TMPDIR "
                "sets their folder), free memory and the limit of processes"
            ) from None
        yield network


def _open(name: str, ranks: int, undo: contextlib.ExitStack) -> Network:
    """Creates a set-up, and adds to `undo` what removes it."""
    needs.check(name)
    runtime = needs.version_of(name)
    leftovers.remove_abandoned()
    run = leftovers.new_name()
    folder = leftovers.folder_of(run)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise Unavailable(
            f"can't create {folder}: {error.strerror}; set TMPDIR to a writable folder with free space"
        ) from None
    undo.callback(leftovers.remove, run)
    own = name == "cross"
    hosts = [Host(number, f"node{number}", *_place(number, own=own)) for number in range(ranks)]
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{host.address} {host.name}" for host in hosts)]
    (folder / "hosts").write_text("\n".join(lines) + "\n")
    containers = _started(run, name, hosts if own else hosts[:1], undo) if name != "bare" else []
    if own:
        _connect(containers, undo)
    (folder / "tmp").mkdir()
    # Hosts of one container have the last socket. Bare processes only need a folder of temporary files.
    ways = [str(one.socket) for one in containers] or [str(folder / "tmp")]
    targets = {(host.name, host.address): ways[min(host.number, len(ways) - 1)] for host in hosts}
    enter = ENTER if containers else 'env "TMPDIR=$target" /bin/sh -c "$*"'
    agent.write_script(folder / "rsh", f"the container set-up {name}", targets, enter)
    return Network(
        hosts,
        folder / "rsh",
        "",
        shared_clock=True,
        cidr=f"{NETWORK}.0/{PREFIX}" if own else "127.0.0.0/8",
        rate=0,
        facts={"kind": "study", "container": name, "hosts": ranks, "runtime": runtime},
        transports="own",
    )


def _place(number: int, *, own: bool) -> tuple[str, str]:
    """The address and the interface of a host."""
    return (address_of(number), INTERFACE) if own else LOOPBACK


def _started(run: str, name: str, hosts: Sequence[Host], undo: contextlib.ExitStack) -> list[Container]:
    """Starts a container for each of these hosts, all at once."""
    containers: list[Container] = []

    def close() -> None:
        for one in containers:
            one.begin_close()
        for one in containers:
            one.close()

    undo.callback(close)
    _, runtime = needs.RUNTIMES[name]
    for host in hosts:
        one = Container(runtime, f"{run}-{host.name}", host.name, leftovers.folder_of(run))
        containers.append(one)
    for one in containers:
        one.wait()
    return containers


def _connect(containers: Sequence[Container], undo: contextlib.ExitStack) -> None:
    """Connects the networks of containers."""
    switch = Switch()
    undo.callback(switch.close)
    try:
        switch.connect([one.keeper() for one in containers])
    except (LabError, OSError) as error:
        raise Unavailable(f"can't connect the containers by a bridge: {error}; it needs CAP_NET_ADMIN") from None
