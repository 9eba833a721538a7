"""Creates and removes labs."""

from __future__ import annotations

import itertools
import re
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument
from hoplite.sockets import runtime_dir
from hoplite.tools.quantities import write_rate
from hoplite_bench.lab import agent, links, measure, namespaces, needs, quantities, records
from hoplite_bench.lab.errors import LabError
from hoplite_bench.lab.hosts import INTERFACE, Host, Pod, Rack, reap, set_up
from hoplite_bench.lab.records import HostRecord, Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

# Every lab uses the addresses 10.77.RACK.NUMBER: labs are isolated from each other and from the machine's network.
NETWORK = "10.77"
PREFIX = 16
HOSTS_MAX = 200

# One-way delay that one extra bridge and its cable add, in seconds (measured: 2 to 3 us). Every host's link has the
# same number of them, and a packet crosses two links.
BRIDGE_DELAY_S = 2.5e-6
BRIDGES_MAX = 50

# Timeout of an echo in seconds, in addition to two round trips. The first echo includes address resolution (ARP).
ECHO_TIMEOUT_S = 2.0

_numbers = itertools.count()


class Lab:
    """Hosts on this machine, each with its own address, host name and link, for the duration of a `with` block.

    All hosts are connected to one bridge, or to one per rack. Racks are joined by a core bridge, or by one bridge per
    pod, and pods by a core bridge. The lab has no connection to other networks. Labs that killed processes left behind
    are removed first.

    Args:
        hosts: number of hosts, in one rack.
        racks: instead of `hosts`, the number of hosts in each rack, such as [4, 4].
        rate: rate of each host's link, per direction: "1gbit", "500mbit" or bit/s. It includes Ethernet headers, so TCP
            reaches 95.6 % of it.
        uplink: rate of each rack's link to its pod or to the core, per direction; by default the sum of the links of
            the largest rack (34 Gbit/s at most).
        pods: number of racks in each pod, such as [2, 2] for four racks; by default there are no pods.
        pod_uplink: rate of each pod's link to the core, per direction; by default the sum of the uplinks of the racks
            of the largest pod (34 Gbit/s at most).
        flow_cap: maximum rate at which a host sends on one TCP connection, as in clouds: "500mbit" or bit/s; no limit
            by default.
        latency: additional one-way delay between any two hosts: "50us", "1ms" or seconds. It is produced by netem if
            the kernel has it, otherwise by chained bridges, which reach about 250 us and cost processor time.
        name: name of the lab; by default one that is unique to this process.
        keep: whether the lab outlives this process, until `Lab.find(name).close()` or `hoplite lab down`.

    Attributes:
        hosts: the hosts; `hosts[3].name` is "node3".
        racks: the racks.
        pods: the pods; empty without `pods`.
        name: name of the lab.
        agent: path of a program that launchers call like ssh to run commands on the hosts.

    Raises:
        InvalidArgument: an argument is not valid.
        LabError: not root, not Linux, a tool is missing, or the kernel refused a request.
    """

    hosts: list[Host]
    racks: list[Rack]
    pods: list[Pod]
    name: str
    agent: Path
    _record: Record
    _closed: bool
    _keepers: namespaces.Keepers | None

    def __init__(
        self,
        *,
        hosts: int | None = None,
        racks: Sequence[int] | None = None,
        rate: float | str = "1gbit",
        uplink: float | str | None = None,
        pods: Sequence[int] | None = None,
        pod_uplink: float | str | None = None,
        flow_cap: float | str | None = None,
        latency: float | str | None = None,
        name: str | None = None,
        keep: bool = False,
    ) -> None:
        sizes = _sizes(hosts, racks)
        bits = quantities.parse_rate(rate)
        uplink_bits = _uplink(uplink, sizes, bits)
        pod_of = _pods(pods, len(sizes))
        pod_uplink_bits = _pod_uplink(pod_uplink, pods, uplink_bits)
        flow_cap_bits = None if flow_cap is None else quantities.parse_rate(flow_cap, "flow_cap")
        delay_s = 0.0 if latency is None else quantities.parse_time(latency, "latency")
        needs.check()
        records.remove_abandoned()
        owner = records.this_process()
        record = Record(
            name=_name(name) if name is not None else f"{owner.process}-{owner.started}-{next(_numbers)}",
            owner=owner,
            boot=records.boot_id(),
            outside=namespaces.own_network(),
            rate=bits,
            uplink=uplink_bits,
            latency_s=delay_s,
            pods=pod_of,
            pod_uplink=pod_uplink_bits,
            flow_cap=flow_cap_bits,
        )
        self._keepers = None
        with ExitStack() as undo:
            records.begin(record)
            undo.callback(lambda: records.remove(record))
            record = self._made(record, sizes, undo)
            self._set(record)
            if len(self.hosts) > 1:
                rtt_us = round(self.measure_rtt(self.hosts[0], self.hosts[-1]) * 1e6, 1)
                self._record = replace(record, rtt_us=rtt_us)
            self._record = replace(self._record, owner=None if keep else owner)
            records.write(self._record)
            undo.pop_all()
        if keep:
            assert self._keepers is not None
            self._keepers.leave()
            self._keepers = None

    @classmethod
    def find(cls, name: str | None = None) -> Lab:
        """Attaches to a lab that another process created and that outlives it (`keep=True`, `hoplite lab up`).

        Args:
            name: name of the lab; None for the only one.

        Raises:
            LabError: no such lab exists, or several do.
        """
        needs.check()
        found = [record for record in records.read_all() if not record.is_abandoned() and record.switch is not None]
        if name is None:
            found = [record for record in found if record.owner is None]
        chosen = [record for record in found if name in (None, record.name)]
        if not chosen:
            others = ", ".join(record.name for record in found)
            wanted = f"no lab named {name!r} is up" if name is not None else "no lab is up"
            raise LabError(f"{wanted}{f' (up: {others})' if others else ''}; create one: hoplite lab up --hosts 4")
        if len(chosen) > 1:
            raise LabError(f"several labs are up: set the name to one of {', '.join(lab.name for lab in chosen)}")
        lab = cls.__new__(cls)
        lab._keepers = None
        lab._set(chosen[0])
        return lab

    @property
    def network(self) -> str:
        """The network of all hosts in CIDR notation."""
        return f"{NETWORK}.0.0/{PREFIX}"

    @property
    def rsh(self) -> list[str]:
        """The command that precedes a host and a command, like ["ssh"]: the agent."""
        return [str(self.agent)]

    @property
    def owner(self) -> int | None:
        """The id of the process that removes the lab at its end; None if the lab outlives it."""
        return None if self._record.owner is None else self._record.owner.process

    def host(self, name: str) -> Host:
        """Returns a host by its name or address.

        Raises:
            InvalidArgument: no such host exists.
        """
        for host in self.hosts:
            if name in (host.name, host.address):
                return host
        names = f"{self.hosts[0].name} to {self.hosts[-1].name}"
        raise InvalidArgument(f"the lab has no host {name!r}: use {names}")

    def facts(self) -> dict[str, Any]:
        """Describes the lab, ready for JSON.

        Rates are in bit/s and times in seconds. The round trip, measured on the idle lab, is in microseconds.
        """
        return {
            "name": self.name,
            "hosts": len(self.hosts),
            "racks": [len(rack.hosts) for rack in self.racks],
            "rate": self._record.rate,
            "uplink": self._record.uplink,
            "pods": [len(pod.racks) for pod in self.pods] or None,
            "pod_uplink": self._record.pod_uplink,
            "flow_cap": self._record.flow_cap,
            "latency_s": self._record.latency_s,
            "latency_by": self._record.latency_by,
            "bridges_per_link": self._record.bridges,
            "rtt_us": self._record.rtt_us,
        }

    def topology(self) -> dict[str, Any]:
        """Describes the groups of the hosts, in the JSON format of `Node(topology=)` and `hoplite topology plan`.

        If the lab has one rack, hosts are in no group.
        """
        several = len(self.racks) > 1
        places = {
            host.name: [f"pod{rack.pod}"] * (rack.pod is not None) + [rack.name] * several
            for rack in self.racks
            for host in rack.hosts
        }
        uplinks = {rack.name: self._record.uplink for rack in self.racks if several}
        return {
            "format": "hoplite topology 1",
            "hosts": [{"name": host.name, "address": host.address, "groups": places[host.name]} for host in self.hosts],
            "uplinks": uplinks | {pod.name: self._record.pod_uplink for pod in self.pods},
            "nic": self._record.rate,
        }

    def measure_rtt(self, a: Host, b: Host) -> float:
        """Measures the round trip between two hosts, in seconds: the median of up to 50 ICMP echoes.

        Raises:
            LabError: no echo arrived, because a link is cut.
        """
        return measure.round_trip(a, b, ECHO_TIMEOUT_S + 4 * self._record.latency_s)

    def measure_rate(self, a: Host, b: Host) -> float:
        """Measures the rate of one TCP stream between two hosts for one second, in bit/s of payload."""
        return self.measure_rates_at_once([(a, b)])[0]

    def measure_rates_at_once(self, pairs: Sequence[tuple[Host, Host]], *, seconds: float = 1.0) -> list[float]:
        """Measures one TCP stream per pair of hosts, all at the same time.

        Args:
            pairs: the sender and the receiver of each stream.
            seconds: duration, after half a second that is not counted.

        Returns:
            The rate of each stream, in bit/s of payload.

        Raises:
            LabError: a stream did not start, or carried no data.
        """
        return measure.rates(pairs, seconds, self._record.rate)

    def close(self) -> None:
        """Kills all processes on the hosts, and removes the hosts and links. Does nothing when called again.

        Raises:
            LabError: a process did not end.
        """
        if self._closed:
            return
        records.remove(self._record)
        self._closed = True
        for host in self.hosts:
            reap(host)
        if self._keepers is not None:
            self._keepers.reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Lab {self.name} of {len(self.hosts)} hosts at {write_rate(self._record.rate)}>"

    def _set(self, record: Record) -> None:
        self._record = record
        self._closed = False
        self.name = record.name
        self.agent = records.folder_of(record.name) / "agent"
        self.hosts = [Host(record, number) for number in range(len(record.hosts))]
        racks = sorted({host.rack for host in self.hosts})
        self.racks = [Rack(record, rack, [host for host in self.hosts if host.rack == rack]) for rack in racks]
        pods = sorted(set(record.pods))
        self.pods = [Pod(record, pod, [rack for rack in self.racks if rack.pod == pod]) for pod in pods]

    def _made(self, record: Record, sizes: list[int], undo: ExitStack) -> Record:
        """Creates the hosts and links of a lab; registers with `undo` how to remove them."""
        folder = records.folder_of(record.name)
        places = [(rack, place) for rack, size in enumerate(sizes) for place in range(size)]
        names = [f"node{number}" for number in range(len(places))]
        addresses = [f"{NETWORK}.{rack}.{place + 1}" for rack, place in places]
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
        (folder / "hosts").write_text("\n".join(lines) + "\n")

        self._keepers = namespaces.Keepers([*names, "-"], folder, runtime_dir())
        undo.callback(self._keepers.abandon)
        *keepers, switch = self._keepers.keepers
        hosts = tuple(
            HostRecord(name, rack, address, keeper)
            for name, (rack, _), address, keeper in zip(names, places, addresses, keepers, strict=True)
        )
        record = replace(record, hosts=hosts, switch=switch)
        # From here on, the next lab can clean up if this process is killed.
        records.write(record)
        self._keepers.go()
        agent.write(folder / "agent", record.name, hosts)

        record = _with_latency(record)
        records.write(record)
        _wire(record, len(sizes))
        return record


def _wire(record: Record, racks: int) -> None:
    """Creates all links of a lab."""
    switch = record.switch
    assert switch is not None
    links.pass_filters(switch)
    for rack in range(racks):
        links.make_bridge(switch, links.bridge_of(rack))
    for number, host in enumerate(record.hosts):
        bridge = links.bridge_of(host.rack)
        for extra in range(record.bridges):
            chained, near, far = f"x{number}-{extra}", f"n{number}-{extra}", f"f{number}-{extra}"
            links.make_bridge(switch, chained)
            links.make_cable(switch, bridge, near, far, switch)
            links.connect(switch, far, chained)
            bridge = chained
        links.make_cable(switch, bridge, links.port_of(number), INTERFACE, host.keeper)
        links.set_address(host.keeper, INTERFACE, host.address, PREFIX)
        set_up(Host(record, number))
    if record.uplink is not None:
        links.make_bridge(switch, links.CORE)
        for pod in sorted(set(record.pods)):
            links.make_bridge(switch, links.pod_bridge_of(pod))
            _wire_uplink(switch, links.pod_bridge_of(pod), links.pod_uplink_of(pod), links.CORE)
            set_up(Pod(record, pod, []))
        for rack in range(racks):
            outer = links.pod_bridge_of(record.pods[rack]) if record.pods else links.CORE
            _wire_uplink(switch, links.bridge_of(rack), links.uplink_of(rack), outer)
            set_up(Rack(record, rack, []))


def _wire_uplink(switch: namespaces.Keeper, bridge: str, ends: tuple[str, str], outer: str) -> None:
    """Creates the cable from the bridge of a group to the bridge above it."""
    near, far = ends
    links.make_cable(switch, bridge, near, far, switch)
    links.connect(switch, far, outer)


def _with_latency(record: Record) -> Record:
    """Chooses how the latency of a lab is produced."""
    if record.latency_s == 0:
        return record
    assert record.switch is not None
    if links.has_netem(record.switch):
        return replace(record, latency_by="netem")
    bridges = max(1, round(record.latency_s / BRIDGE_DELAY_S / 2))
    if bridges > BRIDGES_MAX:
        raise LabError(
            f"this kernel has no netem (CONFIG_NET_SCH_NETEM), and chained bridges add at most about "
            f"{2 * BRIDGES_MAX * BRIDGE_DELAY_S * 1e6:.0f} us, not {record.latency_s * 1e6:.0f} us: set a lower latency"
        )
    return replace(record, latency_by="chained bridges", bridges=bridges)


def _sizes(hosts: int | None, racks: Sequence[int] | None) -> list[int]:
    if (hosts is None) == (racks is None):
        raise InvalidArgument("set either hosts=8 or racks=[4, 4]")
    name, kind, given = ("hosts", "a number", hosts) if racks is None else ("racks", "a list of numbers", racks)
    sizes = [given] if racks is None else given
    if not isinstance(sizes, list | tuple) or not sizes or not all(_is_count(size) for size in sizes):
        raise InvalidArgument(f"{name} must be {kind} of 1 or more, not {given!r}")
    if sum(sizes) > HOSTS_MAX:
        raise InvalidArgument(f"{sum(sizes)} hosts are too many for a lab: set {name} to at most {HOSTS_MAX} in total")
    return list(sizes)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _uplink(uplink: float | str | None, sizes: list[int], rate: int) -> int | None:
    if len(sizes) > 1:
        if uplink is None:
            return min(rate * max(sizes), quantities.RATE_MAX)
        return quantities.parse_rate(uplink, "uplink")
    if uplink is not None:
        raise InvalidArgument(f"uplink={uplink!r} requires two or more racks: set racks=[4, 4]")
    return None


def _pods(pods: Sequence[int] | None, racks: int) -> tuple[int, ...]:
    """Returns the pod of each rack."""
    if pods is None:
        return ()
    if not isinstance(pods, list | tuple) or len(pods) < 2 or not all(_is_count(count) for count in pods):
        raise InvalidArgument(
            f"pods must list the number of racks of two or more pods, such as [2, 2] for four racks, not {pods!r}"
        )
    if sum(pods) != racks:
        raise InvalidArgument(
            f"pods={pods!r} needs {sum(pods)} racks, but the lab has {racks}: list {sum(pods)} in racks="
        )
    return tuple(pod for pod, count in enumerate(pods) for _ in range(count))


def _pod_uplink(pod_uplink: float | str | None, pods: Sequence[int] | None, uplink: int | None) -> int | None:
    if pods is None:
        if pod_uplink is not None:
            raise InvalidArgument(f"pod_uplink={pod_uplink!r} applies to pods: set racks=[2, 2, 2, 2], pods=[2, 2]")
        return None
    assert uplink is not None, "pods have two or more racks"
    if pod_uplink is None:
        return min(uplink * max(pods), quantities.RATE_MAX)
    return quantities.parse_rate(pod_uplink, "pod_uplink")


def _name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
        raise InvalidArgument(f"name must be up to 40 lowercase letters, digits and dashes, not {name!r}")
    return name
