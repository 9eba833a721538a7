"""The links of a lab, configured over netlink: bridges, cables between namespaces, rates, delays and cuts.

    host e0 ==cable== hN bridge rackR upR ==cable== downR bridge core

With pods, a rack's cable leads to the bridge of its pod, and another one from there to the core:

    bridge rackR upR ==cable== downR bridge podP podupP ==cable== poddownP bridge core

Everything to the right of a host's e0 is in the namespace of the switch. A cable is a veth pair. Each of its ends sends
at the link's rate (HTB), so each direction has its own rate. A cut adds the kernel's `blackhole` queue below HTB:
packets are dropped silently, as if the cable were unplugged. Every kernel that has HTB has it, it needs neither nft nor
rules, and the kernel acknowledges each request, unlike pyroute2's nftables requests. A flow cap is a second HTB in the
same place (flows.py). This module does not depend on hosts and processes.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite_bench.lab import flows, namespaces
from hoplite_bench.lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite_bench.lab.namespaces import Keeper

Result = TypeVar("Result")

# Bytes that may leave in one burst before the rate applies: one full segmentation offload packet (64 KiB).
BURST_BYTES = 64 * 1024

# Quantum of an HTB class. The kernel logs a warning about the default quantum above 16 Mbit/s.
QUANTUM_BYTES = 60_000

# What all classes of links and flows have in common.
BURSTS = {"burst": BURST_BYTES, "cburst": BURST_BYTES, "quantum": QUANTUM_BYTES}

# Handles: the root queue of a link, its only class, and the queue below it.
ROOT, CLASS, LEAF = 0x10000, 0x10001, 0x20000

# How long a host caches the hardware address of another one, in ms: a day, longer than any test.
ADDRESS_KNOWN_MS = 24 * 3600 * 1000

# State of a neighbor entry that was configured, not learned.
NUD_PERMANENT = 0x80

CORE = "core"
LOOPBACK_INDEX = 1


def bridge_of(rack: int) -> str:
    """Returns the name of a rack's bridge."""
    return f"rack{rack}"


def port_of(host: int) -> str:
    """Returns the name of the switch's end of a host's link."""
    return f"h{host}"


def uplink_of(rack: int) -> tuple[str, str]:
    """Returns the names of the two ends of a rack's uplink: at the rack, and at its pod or the core."""
    return f"up{rack}", f"down{rack}"


def pod_bridge_of(pod: int) -> str:
    """Returns the name of a pod's bridge."""
    return f"pod{pod}"


def pod_uplink_of(pod: int) -> tuple[str, str]:
    """Returns the names of the two ends of a pod's uplink: at the pod, and at the core."""
    return f"podup{pod}", f"poddown{pod}"


def pass_filters(switch: Keeper) -> None:
    """Lets bridges forward packets without iptables, which has no rules here.

    If br_netfilter is loaded, as Docker does, iptables inspects each packet on each bridge. On two processors, sixteen
    hosts at 1 Gbit/s all at once reach 895 Mbit/s without it, and 861 Mbit/s with it.
    """

    def work() -> None:
        for table in ("iptables", "ip6tables", "arptables"):
            # The file is missing if the module is not loaded. In a container it may not be writable.
            with contextlib.suppress(OSError):
                Path(f"/proc/sys/net/bridge/bridge-nf-call-{table}").write_text("0")

    namespaces.inside(switch, work)


def make_bridge(switch: Keeper, name: str) -> None:
    """Creates a bridge that forwards without the usual delay."""

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        netlink.link("add", ifname=name, kind="bridge", br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0)
        netlink.link("set", index=_index(netlink, name), state="up")

    _with_netlink(switch, work)


def make_cable(switch: Keeper, bridge: str, end: str, other_end: str, other: Keeper) -> None:
    """Creates a cable from a bridge to another namespace, or to the same one. The other end is not connected yet."""

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        with Path(f"/proc/{other.process}/ns/net").open() as namespace:
            peer = {"ifname": other_end, "net_ns_fd": namespace.fileno()}
            netlink.link("add", ifname=end, kind="veth", peer=peer)
        netlink.link("set", index=_index(netlink, end), master=_index(netlink, bridge), state="up")

    _with_netlink(switch, work)


def connect(switch: Keeper, end: str, bridge: str) -> None:
    """Connects a loose end of a cable to a bridge."""
    _with_netlink(
        switch,
        lambda netlink: netlink.link("set", index=_index(netlink, end), master=_index(netlink, bridge), state="up"),
    )


def set_address(host: Keeper, interface: str, address: str, prefix: int) -> None:
    """Sets the address of a host and enables its loopback."""

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        index = _index(netlink, interface)
        netlink.link("set", index=LOOPBACK_INDEX, state="up")
        netlink.addr("add", index=index, address=address, prefixlen=prefix)
        netlink.link("set", index=index, state="up")
        # Otherwise a host whose incoming direction is cut checks after 30 s whether the other host still has its
        # address, gets no reply, and stops sending too. In a container the file may not be writable; then it does.
        with contextlib.suppress(OSError):
            Path(f"/proc/sys/net/ipv4/neigh/{interface}/base_reachable_time_ms").write_text(str(ADDRESS_KNOWN_MS))

    _with_netlink(host, work)


def set_rate(keeper: Keeper, interface: str, rate: int) -> None:
    """Sets the rate at which an interface sends, in bit/s; takes effect immediately and replaces an earlier rate."""

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        index = _index(netlink, interface)
        with contextlib.suppress(FileExistsError), _netlink_errors():
            netlink.tc("add", "htb", index, ROOT, default=1)
        netlink.tc(
            "replace-class",
            "htb",
            index,
            CLASS,
            parent=ROOT,
            # In bytes per second.
            rate=rate // 8,
            **BURSTS,
        )

    _with_netlink(keeper, work)


def set_cut(keeper: Keeper, interface: str, cut: bool, delay_s: float, flow_cap: int | None) -> None:
    """Drops all packets that an interface sends, or stops dropping them.

    Args:
        keeper: keeper of the interface's namespace.
        interface: name of the interface.
        cut: whether packets are dropped.
        delay_s: delay of the link in seconds, when it is not cut; 0 with a flow cap.
        flow_cap: maximum rate of each TCP connection in bit/s, when the link is not cut; None for no limit.
    """

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        index = _index(netlink, interface)
        if any(queue["handle"] == LEAF for queue in netlink.get_qdiscs(index=index)):
            netlink.tc("del", index=index, handle=LEAF, parent=CLASS)
        # "replace" rather than "add": a class always has a queue, at least the default one of HTB.
        if cut:
            netlink.tc("replace", "blackhole", index, LEAF, parent=CLASS)
        elif flow_cap is not None:
            flows.cap(netlink, index, LEAF, CLASS, rate=flow_cap // 8, **BURSTS)
        elif delay_s:
            # 100 000 packets: more than a second at 1 Gbit/s, so that the delay drops none.
            netlink.tc("replace", "netem", index, LEAF, parent=CLASS, delay=round(delay_s * 1e6), limit=100_000)

    _with_netlink(keeper, work)


def is_cut(keeper: Keeper, interface: str) -> bool:
    """Whether all packets that an interface sends are dropped."""

    def work(netlink: Any) -> bool:  # noqa: ANN401 - pyroute2 has no types
        queues = netlink.get_qdiscs(index=_index(netlink, interface))
        return any(queue.get_attr("TCA_KIND") == "blackhole" for queue in queues)

    return _with_netlink(keeper, work)


def set_misled(keeper: Keeper, interface: str, address: str, misled: bool) -> None:
    """Drops all packets that an interface sends to one address, or stops dropping them.

    Such packets are addressed to the hardware address of the sender, which no bridge sends back.
    """

    def work(netlink: Any) -> None:  # noqa: ANN401 - pyroute2 has no types
        index = _index(netlink, interface)
        if misled:
            (link,) = netlink.get_links(index)
            own = link.get_attr("IFLA_ADDRESS")
            netlink.neigh("replace", dst=address, lladdr=own, ifindex=index, state="permanent")
        elif address in _misled(netlink, index):
            netlink.neigh("del", dst=address, ifindex=index)

    _with_netlink(keeper, work)


def misled(keeper: Keeper, interface: str) -> set[str]:
    """The addresses to which packets of an interface are dropped."""
    return _with_netlink(keeper, lambda netlink: _misled(netlink, _index(netlink, interface)))


def _misled(netlink: Any, index: int) -> set[str]:  # noqa: ANN401 - pyroute2 has no types
    permanent = [row for row in netlink.get_neighbours(ifindex=index) if row["state"] & NUD_PERMANENT]
    return {row.get_attr("NDA_DST") for row in permanent}


def sent_bytes(keeper: Keeper, interface: str) -> int:
    """The bytes that an interface has sent so far, including headers."""

    def work(netlink: Any) -> int:  # noqa: ANN401 - pyroute2 has no types
        (link,) = netlink.get_links(_index(netlink, interface))
        return int(link.get_attr("IFLA_STATS64")["tx_bytes"])

    return _with_netlink(keeper, work)


def has_netem(keeper: Keeper) -> bool:
    """Whether this kernel can delay packets (netem); tried on the loopback of a namespace."""

    def work(netlink: Any) -> bool:  # noqa: ANN401 - pyroute2 has no types
        try:
            with _netlink_errors():
                netlink.tc("add", "netem", LOOPBACK_INDEX, ROOT, delay=1000)
                netlink.tc("del", index=LOOPBACK_INDEX, handle=ROOT)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
                return False
            raise
        return True

    return _with_netlink(keeper, work)


def _with_netlink(keeper: Keeper, work: Callable[[Any], Result]) -> Result:
    """Calls a function with a netlink socket in a namespace.

    Raises:
        LabError: the kernel refused a request; includes its reason.
    """
    from pyroute2 import IPRoute, NetlinkError
    from pyroute2.netlink.rtnl.tcmsg import plugins

    # pyroute2 attaches queues of an unknown kind to the root of an interface, whatever parent is given. So register the
    # kind; it has no options to encode.
    plugins.setdefault("blackhole", SimpleNamespace())

    def call() -> Result:
        with IPRoute() as netlink:
            return work(netlink)

    try:
        return namespaces.inside(keeper, call)
    except (NetlinkError, OSError) as error:
        raise LabError(
            f"the kernel rejected a link of the lab: {error}; load its modules veth, bridge, sch_htb, sch_blackhole "
            "and, for a flow cap, cls_bpf"
        ) from error


@contextlib.contextmanager
def _netlink_errors() -> Any:  # noqa: ANN401 - a generator
    """Converts an error of netlink into an OSError with the same number."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, os.strerror(error.code)) from error


def _index(netlink: Any, interface: str) -> int:  # noqa: ANN401 - pyroute2 has no types
    found = netlink.link_lookup(ifname=interface)
    if not found:
        raise LabError(
            f"interface {interface} is missing, because the lab is closed or another program removed it: "
            "create the lab again"
        )
    return int(found[0])
