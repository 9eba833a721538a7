"""Parses a file with the names or addresses of machines, in the order of the matrix."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoplite.addresses import check_host, is_ip
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = re.compile(r"slots=([1-9]\d{0,3})")


@dataclass(frozen=True)
class Host:
    """A machine as launchers identify it.

    Attributes:
        name: name or address.
        slots: number of processes on it.
        at: address on the network to measure, if given.
    """

    name: str
    slots: int = 1
    at: str = ""

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The IP address, if the name is one."""
        try:
            return ipaddress.ip_address(self.name)
        except ValueError:
            return None


def read_hosts(path: Path) -> list[Host]:
    """Parses hosts, one per line: a name or address, the address to measure if it differs, and optionally `slots=N`.

    Raises:
        InvalidArgument: a line is malformed, a host is a duplicate, or there are no hosts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"can't read {path}: {error}") from None
    hosts: list[Host] = []
    seen: dict[object, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = SLOTS.fullmatch(words[-1]) if len(words) > 1 else None
        if not slots and words[-1].startswith("slots="):
            count = words[-1].removeprefix("slots=")
            raise InvalidArgument(
                f"line {number} of {path}: slots={count} is not a number of processes: set one from 1 to 9999"
            )
        at = words[1] if len(words) == (3 if slots else 2) else ""
        host = Host(words[0], int(slots[1]) if slots else 1, at)
        if len(words) > 1 + bool(at) + bool(slots) or (at and not is_ip(at)):
            raise InvalidArgument(
                f"line {number} of {path} is malformed: {line.strip()!r}; write a host, optionally its address and "
                "slots=N"
            )
        check_host(f"line {number} of {path}", host.name)
        key = host.address or host.name.casefold().rstrip(".")
        if key in seen:
            raise InvalidArgument(
                f"lines {seen[key]} and {number} of {path} are the same host, {host.name}: remove one"
            )
        seen[key] = number
        hosts.append(host)
    if not hosts:
        raise InvalidArgument(f"{path} has no host: write one per line, in the order of the matrix")
    return hosts


def addresses_of(hosts: list[Host], path: Path) -> dict[str, str]:
    """The address of each host by its name: from its line, or resolved here; unresolvable hosts are missing.

    Raises:
        InvalidArgument: two hosts have the same address, or a name resolves to the loopback address of this machine.
    """
    found: dict[str, str] = {}
    names: dict[str, str] = {}
    for host in hosts:
        address = host.at or (str(host.address) if host.address else _resolved(host.name))
        if address is None:
            continue
        if address in names:
            raise InvalidArgument(
                f"{path}: {names[address]} and {host.name} have the same address {address}: remove one, or write after "
                "each name its address on the network to measure"
            )
        names[address] = host.name
        found[host.name] = address
    loopback = [name for name, address in found.items() if ipaddress.ip_address(address).is_loopback]
    if loopback and len(loopback) < len(found):
        raise InvalidArgument(
            f"{path}: {loopback[0]} resolves to the loopback address {found[loopback[0]]} on this machine, which other "
            "hosts can't reach: write its address on the network after its name"
        )
    return found


def _resolved(name: str) -> str | None:
    try:
        return str(socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)[0][4][0])
    except OSError:
        return None
