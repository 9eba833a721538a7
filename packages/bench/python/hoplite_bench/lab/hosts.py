"""The hosts, racks and pods of a lab: runs programs on hosts, and injects faults into hosts and links."""

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

# As seen from the host, rack or pod: "out" is traffic that it sends, "in" is traffic that it receives.
Direction = Literal["both", "in", "out"]

INTERFACE = "e0"


class Moved(NamedTuple):
    """The bytes that a link has carried.

    Attributes:
        out_bytes: bytes sent by the host, rack or pod.
        in_bytes: bytes sent to it.
    """

    out_bytes: int
    in_bytes: int


class End(NamedTuple):
    """One direction of a link: the interface that sends.

    Attributes:
        keeper: keeper of its namespace.
        interface: its name.
        delay_s: delay in seconds.
        flow_cap: maximum rate of each TCP connection in bit/s; None for no limit.
    """

    keeper: Keeper
    interface: str
    delay_s: float = 0.0
    flow_cap: int | None = None

    def set_cut(self, cut: bool) -> None:
        """Drops all packets that it sends, or stops dropping them."""
        links.set_cut(self.keeper, self.interface, cut, self.delay_s, self.flow_cap)

    def is_cut(self) -> bool:
        """Whether all packets that it sends are dropped."""
        return links.is_cut(self.keeper, self.interface)


class Link:
    """A link that can be cut, slowed and measured: from a host to its rack's bridge, or the uplink of a rack or pod.

    Args:
        name: name of the host, rack or pod at the near end, for errors.
        near: the end that sends outgoing traffic.
        far: the end that sends incoming traffic.
        rate: bit/s per direction.
    """

    def __init__(self, name: str, near: End, far: End, rate: int) -> None:
        self._name = name
        self._ends = {"out": near, "in": far}
        self._rate = rate

    def cut(self, direction: Direction = "both") -> None:
        """Drops all packets on the link silently, as if the cable were unplugged.

        Args:
            direction: "out" for traffic sent from here, "in" for traffic sent to here, or "both". A direction that is
                already cut stays cut.

        Raises:
            InvalidArgument: unknown direction.
            LabError: the lab is closed.
        """
        for end in self._chosen(direction):
            end.set_cut(True)

    def heal(self, direction: Direction = "both") -> None:
        """Undoes `cut`; a link that is not cut does not change."""
        for end in self._chosen(direction):
            if end.is_cut():
                end.set_cut(False)

    def slow(self, rate: float | str | None) -> None:
        """Sets the rate of the link, in both directions, with immediate effect.

        Args:
            rate: such as "100mbit", or bit/s; None restores the original rate.

        Raises:
            InvalidArgument: not a rate.
            LabError: the lab is closed.
        """
        bits = self._rate if rate is None else quantities.parse_rate(rate)
        for end in self._ends.values():
            links.set_rate(end.keeper, end.interface, bits)

    def is_cut(self) -> list[str]:
        """The directions that are cut: a subset of "out" and "in"."""
        return [direction for direction, end in self._ends.items() if end.is_cut()]

    def moved(self) -> Moved:
        """The bytes that the link has carried so far, including headers.

        Raises:
            LabError: the lab is closed.
        """
        return Moved(
            **{f"{name}_bytes": links.sent_bytes(end.keeper, end.interface) for name, end in self._ends.items()}
        )

    def _chosen(self, direction: Direction) -> list[End]:
        if direction not in get_args(Direction):
            raise InvalidArgument(f'direction must be "both", "in" or "out", not {direction!r}')
        return [end for name, end in self._ends.items() if direction in ("both", name)]


class Host(Link):
    """A host of a lab, with its own network, host name and a few files; everything else is shared with the machine.

    Its own files are /etc/hosts, /dev/shm, /sys and the folder of Hoplite's sockets.

    Attributes:
        name: host name, such as "node0".
        number: index in `Lab.hosts`.
        address: IPv4 address.
        interface: name of its network interface, inside the host.
        rack: number of its rack.
    """

    def __init__(self, record: Record, number: int) -> None:
        host: HostRecord = record.hosts[number]
        assert record.switch is not None, f"lab {record.name} is not created yet"
        # netem delays at one end only: a packet between two hosts leaves exactly one host, and reaches exactly one. The
        # queue of the near end is that of the flow cap, if there is one.
        delay_s = record.latency_s if record.latency_by == "netem" else 0.0
        near_s, far_s = (delay_s, 0.0) if record.flow_cap is None else (0.0, delay_s)
        near = End(host.keeper, INTERFACE, near_s, record.flow_cap)
        super().__init__(host.name, near, End(record.switch, links.port_of(number), far_s), record.rate)
        self.name = host.name
        self.number = number
        self.address = host.address
        self.interface = INTERFACE
        self.rack = host.rack
        self.keeper = host.keeper
        self._started: list[subprocess.Popen[Any]] = []

    def cut(self, direction: Direction = "both", other: Host | None = None) -> None:
        """Drops all packets on the link silently, as if the cable were unplugged.

        Args:
            direction: "out" for traffic sent from here, "in" for traffic sent to here, or "both". A direction that is
                already cut stays cut.
            other: cuts only the traffic between this host and the other one; both still reach all other hosts.

        Raises:
            InvalidArgument: unknown direction, or `other` is this host.
            LabError: the lab is closed.
        """
        if other is None:
            super().cut(direction)
        else:
            self._mislead(direction, other, True)

    def heal(self, direction: Direction = "both", other: Host | None = None) -> None:
        """Undoes `cut`; a link that is not cut does not change.

        Args:
            direction: as for `cut`.
            other: heals only the traffic between this host and the other one.
        """
        if other is None:
            super().heal(direction)
        else:
            self._mislead(direction, other, False)

    def lost_to(self) -> set[str]:
        """The addresses of hosts to which packets from here are dropped although the link is not cut."""
        return links.misled(self.keeper, INTERFACE)

    def _mislead(self, direction: Direction, other: Host, misled: bool) -> None:
        # Validates the direction.
        self._chosen(direction)
        if other.address == self.address:
            raise InvalidArgument(f"{self.name} can't be cut off from itself: name another host")
        if direction in ("both", "out"):
            links.set_misled(self.keeper, INTERFACE, other.address, misled)
        if direction in ("both", "in"):
            links.set_misled(other.keeper, INTERFACE, self.address, misled)

    def entry(self, folder: str | os.PathLike[str] | None = None) -> list[str]:
        """The words to put before a command so that it runs here, in `folder` or in the current folder."""
        return namespaces.entry(self.keeper.process, str(Path(folder or ".").absolute()))

    def popen(self, command: Sequence[str | os.PathLike[str]], **options: Any) -> subprocess.Popen[Any]:  # noqa: ANN401
        """Starts a program on this host.

        Args:
            command: program and arguments. If the program does not exist, the exit status is 127.
            options: options of subprocess.Popen. The program gets its own session unless `start_new_session=False`.

        Returns:
            The process of the program itself, without a wrapper. It is killed when the lab is closed.

        Raises:
            LabError: the lab is closed, or the machine is too busy to start it.
        """
        network = self.keeper.network()
        options.setdefault("start_new_session", True)
        words = [*self.entry(options.pop("cwd", None)), *(os.fspath(word) for word in command)]
        process = subprocess.Popen(words, **options)
        self._started = [earlier for earlier in self._started if earlier.returncode is None]
        self._started.append(process)
        # Otherwise a fault that is injected into this host next could miss the process.
        namespaces.wait_until(
            lambda: [] if network_of(process.pid) in (network, None) else [process.pid],
            lambda _: None,
            f"have not entered {self.name}",
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
        """Runs a program on this host until it ends.

        Args:
            command: program and arguments.
            timeout: seconds after which it and its children are killed.
            input: its standard input; empty by default.
            check: whether a nonzero exit status raises.
            options: options of subprocess.Popen. Output is captured as text unless they change that.

        Returns:
            Its exit status and output.

        Raises:
            subprocess.TimeoutExpired: it did not end within `timeout`.
            subprocess.CalledProcessError: its exit status is not 0, and `check` is set.
            LabError: the lab is closed.
        """
        source = subprocess.DEVNULL if input is None else subprocess.PIPE
        options = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        with self.popen(command, **options) as process:
            try:
                output, errors = process.communicate(input, timeout)
            except BaseException:
                # With its own session, its process group consists of it and its children.
                os.killpg(process.pid, signal.SIGKILL) if options.get("start_new_session", True) else process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
        if check:
            done.check_returncode()
        return done

    def processes(self) -> list[int]:
        """The ids of all processes that run here, as this process sees them."""
        network = self.keeper.network()
        return [process for process in namespaces.processes_in([network]) if process != self.keeper.process]

    def freeze(self) -> None:
        """Pauses every process here (SIGSTOP); returns when all are paused.

        Raises:
            LabError: one did not stop, or the lab is closed.
        """
        networks = [self.keeper.network()]
        namespaces.wait_until(
            lambda: [process for process in self.processes() if not namespaces.is_stopped(process)],
            lambda process: namespaces.send(process, signal.SIGSTOP, networks),
            f"of {self.name} are still running",
        )

    def thaw(self) -> None:
        """Resumes every process here."""
        networks = [self.keeper.network()]
        for process in self.processes():
            namespaces.send(process, signal.SIGCONT, networks)

    def kill(self) -> None:
        """Kills every process here (SIGKILL); returns when all have ended. The host and its link remain.

        Raises:
            LabError: one did not end, or the lab is closed.
        """
        namespaces.kill_all([self.keeper.network()], spare=[self.keeper.process])

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} in rack {self.rack}>"


class Pod(Link):
    """Racks behind one bridge. `cut`, `heal` and `slow` affect its uplink; hosts of one pod always reach each other.

    Attributes:
        name: such as "pod0".
        number: index in `Lab.pods`.
        racks: its racks.
        hosts: the hosts in its racks.
    """

    def __init__(self, record: Record, number: int, racks: list[Rack]) -> None:
        assert record.switch is not None, f"lab {record.name} is not created yet"
        assert record.pod_uplink is not None, f"lab {record.name} has no pods"
        self.name = links.pod_bridge_of(number)
        self.number = number
        self.racks = racks
        self.hosts = [host for rack in racks for host in rack.hosts]
        near, far = links.pod_uplink_of(number)
        super().__init__(self.name, End(record.switch, near), End(record.switch, far), record.pod_uplink)

    def __repr__(self) -> str:
        return f"<Pod {self.name} of {len(self.racks)} racks>"


class Rack(Link):
    """Hosts behind one bridge. `cut`, `heal` and `slow` affect its uplink; hosts of one rack always reach each other.

    Attributes:
        name: such as "rack0".
        number: index in `Lab.racks`.
        pod: number of its pod; None in a lab without pods.
        hosts: its hosts.
    """

    def __init__(self, record: Record, number: int, hosts: list[Host]) -> None:
        assert record.switch is not None, f"lab {record.name} is not created yet"
        self.name = links.bridge_of(number)
        self.number = number
        self.pod = record.pods[number] if record.pods else None
        self.hosts = hosts
        self._has_uplink = record.uplink is not None
        near, far = links.uplink_of(number)
        super().__init__(self.name, End(record.switch, near), End(record.switch, far), record.uplink or record.rate)

    def _chosen(self, direction: Direction) -> list[End]:
        self._check_uplink()
        return super()._chosen(direction)

    def slow(self, rate: float | str | None) -> None:
        """Sets the rate of the uplink; see `Link.slow`."""
        self._check_uplink()
        super().slow(rate)

    def moved(self) -> Moved:
        """The bytes that the uplink has carried so far; see `Link.moved`."""
        self._check_uplink()
        return super().moved()

    def is_cut(self) -> list[str]:
        """The directions in which the uplink is cut."""
        return super().is_cut() if self._has_uplink else []

    def _check_uplink(self) -> None:
        if not self._has_uplink:
            raise LabError(f"{self.name} is the only rack, so it has no uplink: create several with Lab(racks=[4, 4])")

    def __repr__(self) -> str:
        return f"<Rack {self.name} of {len(self.hosts)} hosts>"


def set_up(link: Link) -> None:
    """Sets the rate, the delay and the flow cap of a new link."""
    link.slow(None)
    for end in link._ends.values():
        if end.delay_s or end.flow_cap is not None:
            end.set_cut(False)


def reap(host: Host) -> None:
    """Waits for the killed programs that were started through a host."""
    for process in host._started:
        process.wait(namespaces.DEADLINE_S)
