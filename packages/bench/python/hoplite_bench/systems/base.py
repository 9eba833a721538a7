"""The interface between the bench and a system.

A system runs in groups. A group consists of all its processes on all hosts with one set of settings. It exists from the
first cell to the last, and is frozen (SIGSTOP) while another one is measured, so that repeats can be interleaved. Each
of its ranks, or one driver for all of them, connects to the bench and uses the protocol of `ranks/rank.py`.
"""

from __future__ import annotations

import abc
import dataclasses
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench.places import python_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.environments import Environments

OPS = ("rtt", "broadcast", "gather", "reduce", "allreduce")
# Every participant gets the arrays of all. Measured on request only.
ALLGATHER = "allgather"
COLLECTIVES = (*OPS, ALLGATHER)
# A training step of PyTorch's DistributedDataParallel, which only systems of PyTorch have.
DDP = "ddp"
# Training steps of the study, which only systems of PyTorch have: with rank 0 as parameter server, and with allreduce.
TRAIN_PS = "train-ps"
TRAIN_ALLREDUCE = "train-allreduce"
RANKS = Path(__file__).parent.parent / "ranks"


class Unavailable(HopliteError):
    """A system can't run here; the message contains the reason and, if possible, the fix."""


@dataclasses.dataclass(frozen=True)
class Host:
    """The machine of one participant.

    Attributes:
        number: rank; 0 is the root of every operation.
        name: name for the bench's rsh and for other hosts.
        address: address on the measured network.
        interface: interface of that network; empty if unknown.
    """

    number: int
    name: str
    address: str
    interface: str = ""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way in which a system runs an operation; each variant has its own rows.

    Attributes:
        name: "default" is the behavior without any settings.
        group: name of the settings of its processes; variants with the same group share processes.
    """

    name: str = "default"
    group: str = "default"


class Launch(abc.ABC):
    """The facilities for a system's `start`. The bench ends, freezes and measures the processes that it starts.

    Attributes:
        hosts: the participants; the number of a rank is that of its host.
        control: address to which ranks connect, "unix:/path" or "host:port".
        rsh: an executable that takes a host's name and a command, like ssh.
        folder: folder of this group, at the same path on each host; initially empty, removed at the end.
        network: network of the hosts in CIDR notation, "10.77.0.0/16"; empty if unknown.
        memory_bytes: maximum size of the group's store on one host. It is not a share: the root of a gather needs much
            more than others. `memory` returns the total for all hosts.
        shared_clock: whether all hosts share one monotonic clock, like those of a lab. A driver can then record the
            time of an end on the host where it happens.
        transports: "tcp" if all systems must use TCP on the measured network; "own" if each uses what it chooses.
    """

    hosts: Sequence[Host]
    control: str
    rsh: Path
    folder: Path
    network: str
    memory_bytes: int
    shared_clock: bool
    transports: str = "tcp"

    @abc.abstractmethod
    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        """Starts a process on a host and returns immediately.

        Args:
            host: the host.
            argv: the command; paths are the same on all hosts.
            env: variables to set in addition to those of the bench.
        """

    def port(self, usual: int) -> int:
        """The TCP port for a system's own use on the first host.

        Args:
            usual: the port, unless all participants share an address, where other benches may use it at the same time.
        """
        if not share_address(self.hosts):
            return usual
        # On any address: that of a container is not one of this process.
        with socket.create_server(("", 0)) as free:
            return int(free.getsockname()[1])

    def rank_options(self, host: Host | None = None) -> list[str]:
        """The options of a program in `ranks/`; without a host, for a driver or a program that determines its rank."""
        options = ["--control", self.control, "--ranks", str(len(self.hosts))]
        return options if host is None else [*options, "--rank", str(host.number)]


class System(abc.ABC):
    """A measured system.

    Attributes:
        name: name in `--systems` and in the rows.
        driver: whether one connection represents all ranks.
        fewest: minimum number of hosts.
        several_inputs: whether a sum can include several arrays of one host; if not, such cells have no row of it.
    """

    name: str
    driver: bool = False
    fewest: int = 2
    several_inputs: bool = False

    @abc.abstractmethod
    def prepare(self, environments: Environments) -> None:
        """Installs missing parts on this host; fast if there are none. Precedes all other methods except `variants`.

        Raises:
            Unavailable: the system can't be installed here.
        """

    def adapt(  # noqa: B027 - few systems need it
        self, hosts: Sequence[Host], topology: Mapping[str, Any] | None, *, plain: bool, transports: str = "tcp"
    ) -> None:
        """Configures the hosts on which the system will run, before `variants`.

        Args:
            hosts: the participants, in order of rank.
            topology: topology of the hosts, as in a topology file; None if unknown, or if all are in one rack.
            plain: whether to measure a variant without encryption too.
            transports: those of the network, as in `Launch`.
        """

    @abc.abstractmethod
    def variants(self, op: str) -> list[Variant]:
        """The variants of an operation; empty if the system does not support it."""

    @abc.abstractmethod
    def start(self, launch: Launch, group: str) -> None:
        """Starts a group's processes; its ranks connect once they are ready.

        Raises:
            Unavailable: not possible with this number of hosts, or on these hosts.
        """

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """The memory of one round on all hosts together, in bytes: inputs, results and the system's own copies.

        The estimate must not be too low: a round that does not fit into the machine is not started.
        """
        arrays = {"rtt": 4, "broadcast": hosts, "gather": 2 * hosts, "reduce": hosts + 1, "allreduce": 2 * hosts}
        arrays[ALLGATHER] = hosts + hosts * hosts
        return arrays[op] * nbytes


class Driven(System):
    """A system with one program on host 0 that represents all ranks, in its own environment.

    Attributes:
        requirements: packages of the environment, with exact versions.
        program: the driver, in `ranks/`.
        settings: environment variables of all its processes.
    """

    driver = True
    requirements: Sequence[str]
    program: str
    settings: Mapping[str, str]

    def __init__(self) -> None:
        self._python: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Creates the environment.

        Raises:
            Unavailable: the requirements can't be installed.
        """
        self._python = environments.python(self.name, self.requirements)

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        assert self._python is not None, "start was called before prepare"
        return self._python

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of all processes; they can import the programs of `ranks/` by name."""
        return {**self.settings, "PYTHONPATH": str(RANKS)}

    def drive(self, launch: Launch, *options: str) -> None:
        """Starts the driver, with its own options before those of ranks."""
        words = [*options, *launch.rank_options(), *(["--shared-clock"] if launch.shared_clock else [])]
        launch.spawn(launch.hosts[0], [self.python, RANKS / self.program, *words], env=self.environment)


def share_address(hosts: Sequence[Host]) -> bool:
    """Whether all participants are processes at one address, so that no launcher needs to reach another machine."""
    return len({host.address for host in hosts}) == 1


def this_python() -> list[str]:
    """The interpreter that runs the bench, with the path of hoplite, which need not be installed there."""
    return ["env", f"PYTHONPATH={python_path()}", sys.executable]
