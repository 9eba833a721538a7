"""The location of a node's host, from its settings: the name of a rack, or a topology file.

`topology` reads the file. Does not know how nodes use locations.
"""

from __future__ import annotations

import ipaddress
import math
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite import topology
from hoplite.addresses import is_ip, split_address
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from hoplite.settings import Values
    from hoplite.topology import Placed

# Values of `topology` that are not files: hosts measure which of them share a link (the default), or do not.
MEASURE, OFF = "measure", "off"

# Maximum in the protocol.
CARRIES_MAX = 255


def place(values: Values, listen: str | None) -> list[tuple[str, int]] | None:
    """Returns the groups of a node's host, outermost first, each with the number of transfers that its link carries.

    Args:
        values: settings of the node.
        listen: address on which it listens.

    Returns:
        None if no setting states the location. A number is 0 if the file does not state the capacity of the link.

    Raises:
        InvalidArgument: the file is not readable or not valid, or does not list this host.
    """
    path = values["topology"]
    if path in (None, MEASURE, OFF):
        if values["topology_host"] is not None:
            raise InvalidArgument(
                f"topology_host ({values['topology_host']!r}) has no effect without a topology file: set topology"
            )
        return None if values["rack"] is None else [(values["rack"], 0)]
    file = Path(path).expanduser()
    found = topology.read(file)
    host = _own(file, found.hosts, values, listen)
    groups = [(label, _carries(found.uplinks.get(label), found.nic)) for label in host.groups]
    return groups or None


def _carries(uplink: float | None, nic: float | None) -> int:
    return 0 if uplink is None or nic is None else min(CARRIES_MAX, math.ceil(uplink / nic))


def _own(file: Path, hosts: list[Placed], values: Values, listen: str | None) -> Placed:
    """Finds the host of this node."""
    names = ", ".join(host.name for host in hosts[:8]) + (" ..." if len(hosts) > 8 else "")
    name = values["topology_host"]
    if name is not None:
        found = [host for host in hosts if host.name == name]
        if not found:
            raise InvalidArgument(f"{file} has no host {name!r} (topology_host): set one of {names}")
        return found[0]
    own = values["advertise"] or listen
    advice = f"set topology_host to the name of this host in the file, one of {names}"
    if own is None:
        raise InvalidArgument(f"{file}: this node has no TCP address to compare with the hosts: {advice}")
    address = own if is_ip(own) else split_address(own)[0]
    found = [host for host in hosts if any(_is_same(address, other) for other in (host.name, *host.addresses))]
    if not found:
        raise InvalidArgument(f"{file}: no host has the address {address}: {advice}")
    return found[0]


def _is_same(one: str, other: str) -> bool:
    if is_ip(one) and is_ip(other):
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    return one == other
