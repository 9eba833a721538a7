"""The hosts, racks and pods of a lab: programs run on them, and what goes wrong with machines and links."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from hoplite.errors import InvalidArgument
from hoplite_bench.lab import links, namespaces, quantities
from hoplite_bench.lab.errors import LabError
from hoplite_bench.processes import network_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.lab.namespaces import Keeper
    from hoplite_bench.lab.records import HostRecord, Record

# As seen from the host, the rack or the pod: "out" is what it sends, "in" what it is sent.
Direction = Literal["both", "in", "out"]

INTERFACE = "e0"


class Moved(NamedTuple):
    """What a link has carried.

    Attributes:
        out_bytes: what was sent from here.
        in_bytes: what was sent to here.
    """

    out_bytes: int
    in_bytes: int


class Link:
    """What can be done to a link: that of a host to its rack's bridge, or that of a rack or pod to what is further out.

    Args:
        name: of what is at its near end, for errors.
        near: keeper and interface that send what goes out.
        far: keeper and interface that send what comes in.
        rate: bit/s, in each direction.
        delay_s: what the near end delays, in seconds.
    """

    def __init__(self, name: str, near: tuple[Keeper, str], far: tuple[Keeper, str], rate: int, delay_s: float) -> None:
        self._name = name
        self._ends = {"out": (*near, delay_s), "in": (*far, 0.0)}
        self._rate = rate

    def cut(self, direction: Direction = "both") -> None:
        """Lets everything vanish that goes over the link, as by a pulled cable; no process is told.

        Args:
            direction: "out" for what is sent from here, "in" for what is sent to here, or "both". What was cut before
                stays cut.

        Raises:
            InvalidArgument: another direction.
            LabError: the lab is closed.
        """
        for end in self._chosen(direction):
            links.set_cut(end[0], end[1], True, end[2])

    def heal(self, direction: Direction = "both") -> None:
        """Undoes `cut`; a link that is not cut stays as it is."""
        for end in self._chosen(direction):
            if links.is_cut(end[0], end[1]):
                links.set_cut(end[0], end[1], False, end[2])

    def slow(self, rate: float | str | None) -> None:
        """Gives the link another rate, in both directions, at once.

        Args:
            rate: such as "100mbit", or bit/s; None for the one it was made with.

        Raises:
            InvalidArgument: no rate.
            LabError: the lab is closed.
        """
        bits = self._rate if rate is None else quantities.parse_rate(rate)
        for keeper, interface, _ in self._ends.values():
            links.set_rate(keeper, interface, bits)

    def is_cut(self) -> list[str]:
        """The directions that are cut: some of "out" and "in"."""
        return [direction for direction, end in self._ends.items() if links.is_cut(end[0], end[1])]

    def moved(self) -> Moved:
        """What the link has carried so far, headers too.

        Raises:
            LabError: the lab is closed.
        """
        return Moved(**{f"{name}_bytes": links.sent_bytes(end[0], end[1]) for name, end in self._ends.items()})

    def _chosen(self, direction: Direction) -> list[tuple[Keeper, str, float]]:
        if direction not in get_args(Direction):
            raise InvalidArgument(f'direction must be "both", "in" or "out", not {direction!r}')
        return [end for name, end in self._ends.items() if direction in ("both", name)]


class Host(Link):
    """A host of a lab: a network, a host name and a few files of its own; everything else is the machine's.

    Its own are /etc/hosts, /dev/shm, /sys and the folder of Hoplite's sockets.

    Attributes:
        name: its host name, such as "node0".
        number: its place in `Lab.hosts`.
        address: its IPv4 address.
        interface: the name of its link, inside.
        rack: the number of its rack.
    """

    def __init__(self, record: Record, number: int) -> None:
        host: HostRecord = record.hosts[number]
        assert record.switch is not None, f"lab {record.name} is not made yet"
        # netem delays on one side only: a packet between two hosts leaves just one of them.
        delay_s = record.latency_s if record.latency_by == "netem" else 0.0
        ends = (host.keeper, INTERFACE), (record.switch, links.port_of(number))
        super().__init__(host.name, *ends, record.rate, delay_s)
        self.name = host.name
        self.number = number
        self.address = host.address
        self.interface = INTERFACE
        self.rack = host.rack
        self.keeper = host.keeper
        self._started: list[subprocess.Popen[Any]] = []

    def cut(self, direction: Direction = "both", other: Host | None = None) -> None:
        """Lets everything vanish that goes over the link, as by a pulled cable; no process is told.

        Args:
            direction: "out" for what is sent from here, "in" for what is sent to here, or "both". What was cut before
                stays cut.
            other: only between this host and that one; both can still reach all others.

        Raises:
            InvalidArgument: another direction; or `other` is this host.
            LabError: the lab is closed.
        """
        if other is None:
            super().cut(direction)
        else:
            self._mislead(direction, other, True)

    def heal(self, direction: Direction = "both", other: Host | None = None) -> None:
        """Undoes `cut`; what is not cut stays as it is.

        Args:
            direction: as for `cut`.
            other: undoes what was cut between this host and that one.
        """
        if other is None:
            super().heal(direction)
        else:
            self._mislead(direction, other, False)

    def lost_to(self) -> set[str]:
        """The addresses of hosts to which what this one sends vanishes, though its link is not cut."""
        return links.misled(self.keeper, INTERFACE)

    def _mislead(self, direction: Direction, other: Host, misled: bool) -> None:
        # Says whether there is such a direction.
        self._chosen(direction)
        if other.address == self.address:
            raise InvalidArgument(f"{self.name} can't be cut off from itself: name another host")
        if direction in ("both", "out"):
            links.set_misled(self.keeper, INTERFACE, other.address, misled)
        if direction in ("both", "in"):
            links.set_misled(other.keeper, INTERFACE, self.address, misled)

    def entry(self, folder: str | os.PathLike[str] | None = None) -> list[str]:
        """The words that run a program here, to stand before its own; it starts in `folder`, or in the present one."""
        return namespaces.entry(self.keeper.process, str(Path(folder or ".").absolute()))

    def popen(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
        """Starts a program on this host.

        Args:
            command: its words. A program that is not there ends with exit code 127.
            options: those of subprocess.Popen. The program gets a session of its own unless `start_new_session=False`.

        Returns:
            The program itself; its id, signals and exit code are not those of a wrapper. It is killed with the lab.

        Raises:
            LabError: the lab is closed, or the machine is too busy to start it.
        """
        network = self.keeper.network()
        options.setdefault("start_new_session", True)
        words = [*self.entry(options.pop("cwd", None)), *(os.fspath(word) for word in command)]
        process = subprocess.Popen(words, **options)
        self._started = [earlier for earlier in self._started if earlier.returncode is None]
        self._started.append(process)
        # Or else what is done to this host next would miss it.
        namespaces.wait_until(
            lambda: [] if network_of(process.pid) in (network, None) else [process.pid],
            lambda _: None,
            f"have not come to {self.name}",
        )
        return process

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        timeout: float = 60.0,
        input: str | None = None,  # noqa: A002 - as in subprocess.run
        check: bool = False,
        **options: Any,  # noqa: ANN401 - as in subprocess
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program on this host to its end.

        Args:
            command: its words.
            timeout: seconds after which it and its children are killed.
            input: what it reads; nothing by default.
            check: whether an exit code other than 0 raises.
            options: those of subprocess.Popen. Output is text and is captured unless these say otherwise.

        Returns:
            Its exit code, and what it wrote.

        Raises:
            subprocess.TimeoutExpired: it took too long.
            subprocess.CalledProcessError: it failed, and `check` is set.
            LabError: the lab is closed.
        """
        source = subprocess.DEVNULL if input is None else subprocess.PIPE
        options = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        with self.popen(command, **options) as process:
            try:
                output, errors = process.communicate(input, timeout)
            except BaseException:
                # In a session of its own, its group is it and its children.
                os.killpg(process.pid, signal.SIGKILL) if options.get("start_new_session", True) else process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def processes(self) -> list[int]:
        """The ids of everything that runs here, as this process sees them."""
        network = self.keeper.network()
        return [process for process in namespaces.processes_in([network]) if process != self.keeper.process]

    def freeze(self) -> None:
        """Stops every process here where it is (SIGSTOP); returns when all stand still.

        Raises:
            LabError: one did not stop, or the lab is closed.
        """
        networks = [self.keeper.network()]
        namespaces.wait_until(
            lambda: [process for process in self.processes() if not namespaces.is_stopped(process)],
            lambda process: namespaces.send(process, signal.SIGSTOP, networks),
            f"of {self.name} still run",
        )

    def thaw(self) -> None:
        """Lets every process here go on."""
        networks = [self.keeper.network()]
        for process in self.processes():
            namespaces.send(process, signal.SIGCONT, networks)

    def kill(self) -> None:
        """Kills every process here (SIGKILL); returns when all have ended. The host itself and its link stay.

        Raises:
            LabError: one did not end, or the lab is closed.
        """
        namespaces.kill_all([self.keeper.network()], spare=[self.keeper.process])

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} in rack {self.rack}>"


class Pod(Link):
    """Racks behind one bridge. Cut, heal and slow are those of its uplink: hosts of one pod always reach each other.

    Attributes:
        name: such as "pod0".
        number: its place in `Lab.pods`.
        racks: the racks in it.
        hosts: the hosts in these.
    """

    def __init__(self, record: Record, number: int, racks: list[Rack]) -> None:
        assert record.switch is not None, f"lab {record.name} is not made yet"
        assert record.pod_uplink is not None, f"lab {record.name} has no pods"
        self.name = links.pod_bridge_of(number)
        self.number = number
        self.racks = racks
        self.hosts = [host for rack in racks for host in rack.hosts]
        near, far = links.pod_uplink_of(number)
        super().__init__(self.name, (record.switch, near), (record.switch, far), record.pod_uplink, 0.0)

    def __repr__(self) -> str:
        return f"<Pod {self.name} of {len(self.racks)} racks>"


class Rack(Link):
    """Hosts behind one bridge. Cut, heal and slow are those of its uplink: hosts of one rack always reach each other.

    Attributes:
        name: such as "rack0".
        number: its place in `Lab.racks`.
        pod: the number of its pod; None in a lab without pods.
        hosts: the hosts in it.
    """

    def __init__(self, record: Record, number: int, hosts: list[Host]) -> None:
        assert record.switch is not None, f"lab {record.name} is not made yet"
        self.name = links.bridge_of(number)
        self.number = number
        self.pod = record.pods[number] if record.pods else None
        self.hosts = hosts
        self._has_uplink = record.uplink is not None
        near, far = links.uplink_of(number)
        super().__init__(self.name, (record.switch, near), (record.switch, far), record.uplink or record.rate, 0.0)

    def _chosen(self, direction: Direction) -> list[tuple[Keeper, str, float]]:
        self._check_uplink()
        return super()._chosen(direction)

    def slow(self, rate: float | str | None) -> None:
        """Gives the uplink another rate; see `Host.slow`."""
        self._check_uplink()
        super().slow(rate)

    def moved(self) -> Moved:
        """What the uplink has carried so far; see `Host.moved`."""
        self._check_uplink()
        return super().moved()

    def is_cut(self) -> list[str]:
        """The directions in which the uplink is cut."""
        return super().is_cut() if self._has_uplink else []

    def _check_uplink(self) -> None:
        if not self._has_uplink:
            raise LabError(f"{self.name} is the only rack, so it has no uplink; make more: Lab(racks=[4, 4])")

    def __repr__(self) -> str:
        return f"<Rack {self.name} of {len(self.hosts)} hosts>"


def set_up(link: Link) -> None:
    """Gives a new link its rate and its delay."""
    link.slow(None)
    for keeper, interface, delay_s in link._ends.values():
        if delay_s:
            links.set_cut(keeper, interface, False, delay_s)


def reap(host: Host) -> None:
    """Reads the ends of the programs that were started through a host, once all are killed."""
    for process in host._started:
        process.wait(namespaces.DEADLINE_S)
