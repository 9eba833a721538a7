"""Helpers for tests that need a lab: whether one can be created here, its links' limits, and nodes on its hosts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from hoplite_bench.lab import LabError, links, needs
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.lab import Host, Lab
    from hoplite_bench.lab.hosts import Link


def missing() -> str:
    """Returns what this machine lacks for a lab; empty if one can be created."""
    try:
        needs.check()
    except LabError as error:
        return str(error)
    return ""


needs_lab = pytest.mark.skipif(bool(missing()), reason=missing())


class Shaped(NamedTuple):
    """One direction of a link: its rate in bit/s, and how often it delayed packets that exceeded the rate."""

    rate: int
    held_back: int


def shaped(link: Link) -> list[Shaped]:
    """Reads the kernel's settings and counters of both directions of a link.

    They do not depend on the machine's load.
    """
    return [_shaped(end.keeper, end.interface) for end in link._ends.values()]


def rates(link: Link) -> set[int]:
    """Returns the rates of both directions of a link, in bit/s."""
    return {direction.rate for direction in shaped(link)}


def held_back(link: Link) -> list[int]:
    """Returns how often each direction of a link delayed packets that exceeded its rate."""
    return [direction.held_back for direction in shaped(link)]


def _shaped(keeper: Any, interface: str) -> Shaped:  # noqa: ANN401 - a keeper
    def work(netlink: Any) -> Shaped:  # noqa: ANN401 - pyroute2 has no types
        (index,) = netlink.link_lookup(ifname=interface)
        (queue,) = [queue for queue in netlink.get_qdiscs(index=index) if queue["handle"] == links.ROOT]
        (shaper,) = [shaper for shaper in netlink.get_classes(index=index) if shaper["handle"] == links.CLASS]
        bytes_per_second = shaper.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"]
        return Shaped(8 * bytes_per_second, queue.get_attr("TCA_STATS")["overlimits"])

    return links._with_netlink(keeper, work)


def flow_rates(host: Host) -> set[int]:
    """Returns the rates of the classes that limit single connections which a host sends on, in bit/s."""
    return {8 * row.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["rate"] for row in _flow_classes(host)}


def flows(host: Host) -> dict[int, int]:
    """Returns the bytes that each of these classes has sent."""
    return {row["handle"]: row.get_attr("TCA_STATS")["bytes"] for row in _flow_classes(host)}


def _flow_classes(host: Host) -> list[Any]:
    def work(netlink: Any) -> list[Any]:  # noqa: ANN401 - pyroute2 has no types
        (index,) = netlink.link_lookup(ifname=host.interface)
        return [row for row in netlink.get_classes(index=index) if links.LEAF < row["handle"] < links.LEAF + 0x10000]

    return links._with_netlink(host.keeper, work)


def start_node(lab: Lab, host: Host, *options: str) -> subprocess.Popen[str]:
    """Starts a node on a host. All nodes join the first host's."""
    places = ["--listen", f"{host.address}:7420", "--join", f"{lab.hosts[0].name}:7420", "--capacity", "256MiB"]
    command = [sys.executable, "-m", "hoplite.tools.cli", "node", "--no-auth", "--json", *places, *options]
    node = host.popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert node.stdout is not None
    assert json.loads(node.stdout.readline())["address"] == f"{host.address}:7420"
    return node


# Prints the status of a node once its survey of the members' links has finished.
FOUND = """
import json, sys, time, hoplite
client = hoplite.init()
while len((status := client.status())["members"]) < int(sys.argv[1]) or status["survey"] == "waiting":
    time.sleep(0.1)
print(json.dumps(status))
"""


def surveyed(lab: Lab, order: Sequence[int]) -> dict[str, Any]:
    """Starts nodes without topology settings on hosts, in the given order.

    Returns the status of one of them after the survey.
    """
    with contextlib.ExitStack() as stack:
        for number in order:
            host = lab.hosts[number]
            node = start_node(lab, host)
            stack.callback(node.communicate, timeout=SOON)
            stack.callback(host.kill)
        output = lab.hosts[1].run([sys.executable, "-c", FOUND, str(len(order))], check=True).stdout
    status: dict[str, Any] = json.loads(output)
    return status
