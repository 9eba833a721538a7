"""Reader of topology files: hosts with their groups, and the capacity of links.

Nodes and `hoplite topology` share this reader, so a node accepts the same files as a plan. It does not check the keys
that are for people and for plans.
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

# Keys for people and for plans. "clusters" is in the output of the command.
MORE = ("times_us", "quantiles_us", "lost", "measured", "quality", "clusters")
KEYS = ("format", "hosts", "uplinks", "nic", *MORE)
HOST_KEYS = ("name", "address", "addresses", "groups", "slots")

# Limits of the protocol.
LEVELS_MAX = 4
LABEL_BYTES_MAX = 63
PLACE_BYTES_MAX = 96

# Limit of the hosts files of launchers.
SLOTS_MAX = 9999

# Above the rate of any link, and small enough to sum over all hosts in a plan.
RATE_MAX = 1e15


class Placed(NamedTuple):
    """A host and its location.

    Attributes:
        name: name of the host.
        addresses: its addresses; may be empty in a file written by hand.
        groups: labels of its groups, outermost first.
        slots: number of processes that a launcher starts on it; nodes ignore it.
    """

    name: str
    addresses: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    slots: int = 1


class Topology(NamedTuple):
    """The contents of a topology file.

    Attributes:
        hosts: hosts in the order of the file, at least one.
        uplinks: capacity of the link of a group to the others, in bit/s each way; unknown ones are missing.
        nic: capacity of the link of each host, in bit/s; None if it is unknown.
        more: the other keys of the file, unchanged.
    """

    hosts: list[Placed]
    uplinks: dict[str, float]
    nic: float | None
    more: dict[str, Any]


def read(file: Path) -> Topology:
    """Reads a topology file.

    Args:
        file: path of the file, a JSON object as docs/topology describes it. Keys for people and for plans are not
            checked.

    Raises:
        InvalidArgument: the file is not readable or not valid.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"can't read the topology in {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{file} is not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidArgument(f'{file} is not a topology: set "format" to "{FORMAT}"')
    _check_keys(str(file), document, KEYS)
    hosts = _hosts(file, document.get("hosts"))
    uplinks = _uplinks(file, document.get("uplinks", {}), {label for host in hosts for label in host.groups})
    nic = None if document.get("nic") is None else _rate(f'{file}: "nic"', document["nic"])
    return Topology(hosts, uplinks, nic, {key: document[key] for key in MORE if key in document})


def _check_keys(where: str, value: dict[str, Any], keys: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(keys))
    if unknown:
        raise InvalidArgument(f"{where}: unknown key {json.dumps(unknown[0])}: use {', '.join(keys)}")


def _hosts(file: Path, value: object) -> list[Placed]:
    if not isinstance(value, list) or not value:
        raise InvalidArgument(
            f'{file}: "hosts" must be a list of hosts, such as {{"name": "h0", "address": "10.0.0.1"}}'
        )
    hosts = []
    seen: dict[str, str] = {}
    for number, one in enumerate(value):
        where = f'{file}: "hosts"[{number}]'
        if not isinstance(one, dict) or not isinstance(one.get("name"), str) or not one["name"]:
            raise InvalidArgument(f'{where} has no "name"')
        check_host(f'{where}: "name"', one["name"])
        _check_keys(where, one, HOST_KEYS)
        if "address" in one and "addresses" in one:
            raise InvalidArgument(f'{where} has both "address" and "addresses": remove one of them')
        addresses = _texts(where, "address", [one["address"]] if "address" in one else one.get("addresses", []))
        for address in addresses:
            if not is_ip(address):
                raise InvalidArgument(
                    f'{where}: "address" {address!r} is not an IP address: use an address such as 10.0.0.1'
                )
        groups = _texts(where, "groups", one.get("groups", []))
        _check_groups(where, groups)
        slots = one.get("slots", 1)
        if type(slots) is not int or not 1 <= slots <= SLOTS_MAX:
            raise InvalidArgument(
                f'{where}: "slots" is {json.dumps(slots)}: set the number of processes, 1 to {SLOTS_MAX}'
            )
        for key in (f"name {one['name']!r}", *(f"address {ipaddress.ip_address(address)}" for address in addresses)):
            if key in seen:
                raise InvalidArgument(f"{where} has the same {key} as {seen[key]}: remove one of them")
            seen[key] = f'"hosts"[{number}]'
        hosts.append(Placed(one["name"], addresses, groups, slots))
    return hosts


def _check_groups(where: str, groups: tuple[str, ...]) -> None:
    if len(groups) > LEVELS_MAX:
        raise InvalidArgument(f'{where}: "groups" has {len(groups)} labels: list at most {LEVELS_MAX}, outermost first')
    if sum(len(label.encode()) + 1 for label in groups) > PLACE_BYTES_MAX:
        raise InvalidArgument(
            f'{where}: the labels in "groups" exceed {PLACE_BYTES_MAX - len(groups)} bytes in total: shorten them'
        )
    for label in groups:
        if not label.isprintable() or len(label.encode()) > LABEL_BYTES_MAX:
            raise InvalidArgument(
                f'{where}: label {label!r} in "groups" is not valid: use at most {LABEL_BYTES_MAX} printable bytes'
            )


def _texts(where: str, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text for text in value):
        raise InvalidArgument(f'{where}: "{key}" must be a string, or a list of strings')
    return tuple(value)


def _uplinks(file: Path, value: object, labels: set[str]) -> dict[str, float]:
    if not isinstance(value, dict):
        raise InvalidArgument(f'{file}: "uplinks" must be an object that maps groups to bits per second')
    for label in value:
        if label not in labels:
            raise InvalidArgument(f'{file}: "uplinks" has the group {label!r}, which has no hosts: remove it')
    return {label: _rate(f'{file}: "uplinks" of {label!r}', rate) for label, rate in value.items()}


def _rate(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < RATE_MAX:
        raise InvalidArgument(
            f"{what} is {json.dumps(value)}: set a number of bits per second above 0 and below {RATE_MAX:g}"
        )
    return float(value)
