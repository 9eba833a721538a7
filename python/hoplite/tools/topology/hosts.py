"""Reads the names or addresses of the machines, in the order of the matrix."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
SLOTS = re.compile(r"slots=([1-9]\d{0,3})")


@dataclass(frozen=True)
class Host:
    """A machine as launchers know it.

    Attributes:
        name: its name or address.
        slots: how many processes it gets.
    """

    name: str
    slots: int = 1

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The address, if its name is one."""
        try:
            return ipaddress.ip_address(self.name)
        except ValueError:
            return None


def read_hosts(path: Path) -> list[Host]:
    """Reads hosts, one a line: a name or address, and `slots=N` if it gets several processes.

    Raises:
        InvalidArgument: a line is no host, a host is there twice, or there is none.
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
        slots = SLOTS.fullmatch(words[1]) if len(words) == 2 else None
        host = Host(words[0], int(slots[1]) if slots else 1)
        if len(words) > 2 or (len(words) == 2 and slots is None):
            raise InvalidArgument(f"line {number} of {path} is {line.strip()!r}, not a host and perhaps slots=N")
        if host.address is None and not NAME.fullmatch(host.name):
            raise InvalidArgument(f"line {number} of {path}: {host.name!r} is no name and no address of a host")
        key = host.address or host.name.casefold().rstrip(".")
        if key in seen:
            raise InvalidArgument(f"lines {seen[key]} and {number} of {path} are the same host, {host.name}")
        seen[key] = number
        hosts.append(host)
    if not hosts:
        raise InvalidArgument(f"{path} has no host; write one a line, in the order of the matrix")
    return hosts
