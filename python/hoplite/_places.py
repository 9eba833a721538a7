"""Where a node's host stands, as its settings say: by the name of a rack, or by a file of a topology.

`topology` reads the file. Does not know what nodes make of places.
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

# In place of the name of a file: hosts find out by themselves, which they do if nothing is said, or don't.
MEASURE, OFF = "measure", "off"

# As the protocol has it.
CARRIES_MAX = 255


def place(values: Values, listen: str | None) -> list[tuple[str, int]] | None:
    """The groups that a node's host is in, outermost first, each with how many full transfers its link carries at once.

    Args:
        values: the settings of the node.
        listen: where it listens.

    Returns:
        None if no setting says where it stands. A number is 0 where the file does not say what a link carries.

    Raises:
        InvalidArgument: the file can't be read, makes no sense, or does not have this host.
    """
    path = values["topology"]
    if path in (None, MEASURE, OFF):
        if values["topology_host"] is not None:
            raise InvalidArgument(
                f"topology_host is {values['topology_host']!r}, and no topology is said: name its file"
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
    """The host of this node."""
    names = ", ".join(host.name for host in hosts[:8]) + (" ..." if len(hosts) > 8 else "")
    name = values["topology_host"]
    if name is not None:
        found = [host for host in hosts if host.name == name]
        if not found:
            raise InvalidArgument(f"{file} has no host {name!r} (topology_host); it has {names}")
        return found[0]
    said = values["advertise"] or listen
    advice = f"it has {names}; say topology_host, the name of this host there"
    if said is None:
        raise InvalidArgument(
            f"{file}: this node listens nowhere, and so no host there is known to be this one; {advice}"
        )
    address = said if is_ip(said) else split_address(said)[0]
    found = [host for host in hosts if any(_is_same(address, other) for other in (host.name, *host.addresses))]
    if not found:
        raise InvalidArgument(f"{file}: no host has the address {address}; {advice}")
    return found[0]


def _is_same(one: str, other: str) -> bool:
    if is_ip(one) and is_ip(other):
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    return one == other
