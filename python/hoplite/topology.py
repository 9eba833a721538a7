"""The file of a topology: hosts with the groups that they are in, and what links carry.

Nodes and `hoplite topology` read it by this one reader, so that a node takes what a plan takes. Knows neither how its
figures were found nor the keys that are for people and for plans.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.addresses import check_host, is_ip
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = "hoplite topology 1"

# What is for people and for plans. "clusters" is of what the command prints.
MORE = ("times_us", "quantiles_us", "lost", "measured", "quality", "clusters")
KEYS = ("format", "hosts", "uplinks", "nic", *MORE)
HOST_KEYS = ("name", "address", "addresses", "groups", "slots")

# As the protocol has them.
LEVELS_MAX = 4
LABEL_BYTES_MAX = 63
PLACE_BYTES_MAX = 96

# As a launcher's file of hosts may have them.
SLOTS_MAX = 9999

# More than any link carries, and little enough for a plan to add up those of all hosts.
RATE_MAX = 1e15


class Placed(NamedTuple):
    """A host and where it is.

    Attributes:
        name: of the host.
        addresses: its addresses; may be empty in a file that was written by hand.
        groups: labels of the places it is in, the outermost first.
        slots: how many processes a launcher starts on it; nodes don't ask for it.
    """

    name: str
    addresses: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    slots: int = 1


class Topology(NamedTuple):
    """What a file says.

    Attributes:
        hosts: in the order of the file, at least one.
        uplinks: what the link of a group to the others carries each way, in bit/s; unknown ones are missing.
        nic: what each host's link carries, in bit/s; None if it isn't known.
        more: the other keys of the file, as they stand there.
    """

    hosts: list[Placed]
    uplinks: dict[str, float]
    nic: float | None
    more: dict[str, Any]


def read(file: Path) -> Topology:
    """Reads the file of a topology.

    Args:
        file: a JSON object, as docs/topology describes it. Keys that are for people and for plans are not judged.

    Raises:
        InvalidArgument: the file can't be read, or something in it makes no sense; named.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"the topology in {file} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{file} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument(f'{file} is no topology: its "format" is not "{FORMAT}"')
    _check_keys(str(file), document, KEYS)
    hosts = _hosts(file, document.get("hosts"))
    uplinks = _uplinks(file, document.get("uplinks", {}), {label for host in hosts for label in host.groups})
    nic = None if document.get("nic") is None else _rate(f'{file}: "nic"', document["nic"])
    return Topology(hosts, uplinks, nic, {key: document[key] for key in MORE if key in document})


def _check_keys(where: str, value: dict[str, Any], keys: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise InvalidArgument(f"{where}: {json.dumps(unknown[0])} is no key of a topology; there are {', '.join(keys)}")


def _hosts(file: Path, value: object) -> list[Placed]:
    if not isinstance(value, list) or not value:
        raise InvalidArgument(f'{file}: "hosts" is a list of hosts, each as {{"name": "h0", "address": "10.0.0.1"}}')
    hosts = []
    seen: dict[str, str] = {}
    for number, one in enumerate(value):
        where = f'{file}: "hosts"[{number}]'
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
            raise InvalidArgument(f'{where} has no "name"')
        check_host(f'{where}: "name"', one["name"])
        _check_keys(where, one, HOST_KEYS)
        if "address" in one and "addresses" in one:
            raise InvalidArgument(f'{where} has "address" and "addresses"; write one of them')
        addresses = _texts(where, "address", [one["address"]] if "address" in one else one.get("addresses", []))
        for address in addresses:
            if not is_ip(address):
                raise InvalidArgument(f'{where}: "address" {address!r} is no IP address')
        groups = _texts(where, "groups", one.get("groups", []))
        _check_groups(where, groups)
        slots = one.get("slots", 1)
        if type(slots) is not int or not 1 <= slots <= SLOTS_MAX:
            raise InvalidArgument(
                f'{where}: "slots" is {json.dumps(slots)}; it is a count of processes, 1 to {SLOTS_MAX}'
            )
        for key in (f"name {one['name']!r}", *(f"address {ipaddress.ip_address(address)}" for address in addresses)):
            if key in seen:
                raise InvalidArgument(f"{where} has the {key}, as {seen[key]} has")
            seen[key] = f'"hosts"[{number}]'
        hosts.append(Placed(one["name"], addresses, groups, slots))
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
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < RATE_MAX:
        raise InvalidArgument(
            f"{what} is {json.dumps(value)}; it is a number of bits per second above 0 and below {RATE_MAX:g}"
        )
    return float(value)
