"""Where a node's host stands, as its settings say: by the name of a rack, or by a file of a topology.

Knows what such a file holds; does not know how it was measured, or what nodes make of places.
"""

from __future__ import annotations

import ipaddress
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.addresses import is_ip, split_address
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from hoplite.settings import Values

FORMAT = "hoplite topology 1"

# In place of the name of a file: hosts that are told nothing find out by themselves.
MEASURE = "measure"

# What a node reads, and what else may be there, which is for people and for plans.
READ = ("format", "hosts", "uplinks", "nic")
KEYS = (*READ, "times_us", "quantiles_us", "lost", "measured", "quality", "clusters")
HOST_KEYS = ("name", "address", "addresses", "groups")

# As the protocol has them.
LEVELS_MAX = 4
LABEL_BYTES_MAX = 63
PLACE_BYTES_MAX = 96
CARRIES_MAX = 255


class Host(NamedTuple):
    """A host of a topology, its addresses and the groups that it is in, outermost first."""

    name: str
    addresses: tuple[str, ...]
    groups: tuple[str, ...]


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
    if path in (None, MEASURE):
        if values["topology_host"] is not None:
            raise InvalidArgument(
                f"topology_host is {values['topology_host']!r}, and no topology is said: name its file"
            )
        return None if values["rack"] is None else [(values["rack"], 0)]
    file = Path(path).expanduser()
    document = _read(file)
    hosts = _hosts(file, document.get("hosts"))
    rates = _uplinks(file, document.get("uplinks", {}), {label for host in hosts for label in host.groups})
    nic = None if document.get("nic") is None else _rate(f'{file}: "nic"', document["nic"])
    host = _own(file, hosts, values, listen)
    groups = [(label, _carries(rates.get(label), nic)) for label in host.groups]
    return groups or None


def _carries(uplink: float | None, nic: float | None) -> int:
    return 0 if uplink is None or nic is None else min(CARRIES_MAX, math.ceil(uplink / nic))


def _own(file: Path, hosts: list[Host], values: Values, listen: str | None) -> Host:
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


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"the topology in {file} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument(f'{file} is no topology: its "format" is not "{FORMAT}"')
    _check_keys(str(file), document, KEYS)
    return document


def _check_keys(where: str, value: dict[str, Any], keys: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise InvalidArgument(f"{where}: {json.dumps(unknown[0])} is no key of a topology; there are {', '.join(keys)}")


def _hosts(file: Path, value: object) -> list[Host]:
    if not isinstance(value, list) or not value:
        raise InvalidArgument(f'{file}: "hosts" is a list of hosts, each as {{"name": "h0", "address": "10.0.0.1"}}')
    hosts = []
    seen: dict[str, str] = {}
    for number, one in enumerate(value):
        where = f'{file}: "hosts"[{number}]'
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
            raise InvalidArgument(f'{where} has no "name"')
        _check_keys(where, one, HOST_KEYS)
        if "address" in one and "addresses" in one:
            raise InvalidArgument(f'{where} has "address" and "addresses"; write one of them')
        addresses = _texts(where, "address", [one["address"]] if "address" in one else one.get("addresses", []))
        for address in addresses:
            if not is_ip(address):
                raise InvalidArgument(f'{where}: "address" {address!r} is no IP address')
        groups = _texts(where, "groups", one.get("groups", []))
        _check_groups(where, groups)
        for key in (f"name {one['name']!r}", *(f"address {ipaddress.ip_address(address)}" for address in addresses)):
            if key in seen:
                raise InvalidArgument(f"{where} has the {key}, as {seen[key]} has")
            seen[key] = f'"hosts"[{number}]'
        hosts.append(Host(one["name"], addresses, groups))
    return hosts


def _check_groups(where: str, groups: tuple[str, ...]) -> None:
    if len(groups) > LEVELS_MAX:
        raise InvalidArgument(f'{where}: "groups" has {len(groups)} labels; at most {LEVELS_MAX}, the outermost first')
    if sum(len(label.encode()) + 1 for label in groups) > PLACE_BYTES_MAX:
        raise InvalidArgument(
            f'{where}: "groups" has labels of more than {PLACE_BYTES_MAX - len(groups)} bytes together; shorten them'
        )
    for label in groups:
        if not label.isprintable() or len(label.encode()) > LABEL_BYTES_MAX:
            raise InvalidArgument(
                f'{where}: "groups" has {label!r}; a label is printable and has at most {LABEL_BYTES_MAX} bytes'
            )


def _texts(where: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise InvalidArgument(f'{where}: "{key}" is not text, or a list of texts')
    return tuple(value)


def _uplinks(file: Path, value: object, labels: set[str]) -> dict[str, float]:
    if not isinstance(value, dict):
        raise InvalidArgument(f'{file}: "uplinks" is an object of groups and bits per second')
    for label in value:
        if label not in labels:
            raise InvalidArgument(f'{file}: "uplinks" has {label!r}, a group that no host is in')
    return {label: _rate(f'{file}: "uplinks" of {label!r}', rate) for label, rate in value.items()}


def _rate(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidArgument(f"{what} is {json.dumps(value)}; it is a number of bits per second above 0")
    return float(value)
