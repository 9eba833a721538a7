"""What the bench asks of a system, and what a system may ask of the bench.

A system is started in groups: all its processes on all hosts under one set of settings. A group stays up from the first
cell to the last, and is frozen (SIGSTOP) while another is measured, so that repeats can take turns between systems.
Each of its ranks, or one driver for all of them, connects to the bench and speaks the lines of `ranks/rank.py`.
"""

from __future__ import annotations

import abc
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench.places import python_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.environments import Environments

OPS = ("rtt", "broadcast", "gather", "reduce", "allreduce")
RANKS = Path(__file__).parent.parent / "ranks"


class Unavailable(HopliteError):
    """A system can't run here; the message says why, and what to do about it where something can be done."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One participant's machine.

    Attributes:
        number: 0 is the root of every operation.
        name: what the bench's rsh knows it by, and other hosts' too.
        address: where the others reach it, on the network that is measured.
        interface: of that network; empty if it is not known.
    """

    number: int
    name: str
    address: str
    interface: str = ""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way of one system to do an operation; each is a row.

    Attributes:
        name: "default" is what a user gets who says nothing.
        group: the settings that its processes are started with; variants of one group share processes.
    """

    name: str = "default"
    group: str = "default"


class Launch(abc.ABC):
    """What a system's `start` may use. Processes that it starts are ended, frozen and measured by the bench.

    Attributes:
        hosts: who takes part; a rank's number is its host's.
        control: where ranks connect to, "unix:/path" or "host:port".
        rsh: an executable that takes a host's name and a command, like ssh.
        folder: of this group, on each host under the same path; empty at first and removed at the end.
        network: the network of the hosts in CIDR notation, "10.77.0.0/16"; empty if it is not known.
        memory_bytes: the most that the group's store on one host may take. Not a share: the root of a gather takes much
            more than others, and what all take together is told by `memory`.
        shared_clock: whether all hosts have one monotonic clock, as those of a lab do; then a driver may take the time
            of an end where it happens.
    """

    hosts: Sequence[Host]
    control: str
    rsh: Path
    folder: Path
    network: str
    memory_bytes: int
    shared_clock: bool

    @abc.abstractmethod
    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        """Starts a process on a host and returns at once.

        Args:
            host: where.
            argv: the command; paths are the same on all hosts.
            env: variables to set beside those of the bench.
        """

    def rank_options(self, host: Host | None = None) -> list[str]:
        """The options of a program in `ranks/`; without a host, for one that finds its number itself or a driver."""
        options = ["--control", self.control, "--ranks", str(len(self.hosts))]
        return options if host is None else [*options, "--rank", str(host.number)]


class System(abc.ABC):
    """One system under measurement.

    Attributes:
        name: as in `--systems` and in the rows.
        driver: whether one connection speaks for all ranks.
        fewest: hosts without which there is nothing to run.
        several_inputs: whether a sum takes several arrays of one host; if not, it has no row for that.
    """

    name: str
    driver: bool = False
    fewest: int = 2
    several_inputs: bool = False

    @abc.abstractmethod
    def prepare(self, environments: Environments) -> None:
        """Installs on this host what is missing; quick if all is there. Called before any other method but `variants`.

        Raises:
            Unavailable: it can't be had here.
        """

    def adapt(  # noqa: B027 - few have a use for it
        self, hosts: Sequence[Host], topology: Mapping[str, Any] | None, *, plain: bool
    ) -> None:
        """Is told before `variants` where it will run.

        Args:
            hosts: that take part, in order of rank.
            topology: of the hosts, as in a topology file; None if it is not known, or all are in one rack.
            plain: whether a variant without encryption is measured too.
        """

    @abc.abstractmethod
    def variants(self, op: str) -> list[Variant]:
        """The ways to do an operation; empty if the system has none for it."""

    @abc.abstractmethod
    def start(self, launch: Launch, group: str) -> None:
        """Starts a group's processes; its ranks connect when they are ready.

        Raises:
            Unavailable: not with so many hosts, or not on these.
        """

    def memory(self, op: str, hosts: int, nbytes: int) -> int:
        """Bytes of memory that one round takes on all hosts together: inputs, results and the system's own copies.

        An estimate that must not be too small: a round that does not fit into the machine is not begun.
        """
        arrays = {"rtt": 4, "broadcast": hosts, "gather": 2 * hosts, "reduce": hosts + 1, "allreduce": 2 * hosts}
        return arrays[op] * nbytes


class Driven(System):
    """A system of which one program on host 0 speaks for all ranks, in an environment of its own.

    Attributes:
        requirements: of the environment, by exact version.
        program: the driver, in `ranks/`.
        settings: variables of all its processes.
    """

    driver = True
    requirements: Sequence[str]
    program: str
    settings: Mapping[str, str]

    def __init__(self) -> None:
        self._python: Path | None = None

    def prepare(self, environments: Environments) -> None:
        """Makes the environment.

        Raises:
            Unavailable: the requirements can't be had.
        """
        self._python = environments.python(self.name, self.requirements)

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        assert self._python is not None, "start came before prepare"
        return self._python

    @property
    def environment(self) -> dict[str, str]:
        """Variables of all processes; what they run finds the programs of `ranks/` by name."""
        return {**self.settings, "PYTHONPATH": str(RANKS)}

    def drive(self, launch: Launch, *options: str) -> None:
        """Starts the driver, with options of its own before those of ranks."""
        words = [*options, *launch.rank_options(), *(["--shared-clock"] if launch.shared_clock else [])]
        launch.spawn(launch.hosts[0], [self.python, RANKS / self.program, *words], env=self.environment)


def this_python() -> list[str]:
    """The interpreter that runs the bench, with the hoplite that it runs, which need not be installed there."""
    return ["env", f"PYTHONPATH={python_path()}", sys.executable]
