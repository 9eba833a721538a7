"""Addresses of nodes as people write them, "10.0.0.1:7420" or "[::1]:7420", and names of hosts."""

from __future__ import annotations

import ipaddress
import re

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument

# As long as a name of DNS may be.
HOST_MAX = 253

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")


def check_address(what: str, value: str) -> str:
    """Reads "host:port", with an IPv6 address in brackets: "[::1]:7420".

    Args:
        what: names the argument in the error.
        value: the address.

    Raises:
        InvalidArgument: it is no address; says how to write one.
    """
    text = check_text(what, value)
    host, colon, port = text.rpartition(":")
    if "/" in text:
        raise InvalidArgument(f'{what} {text!r} is no address; write "host:port" alone, as "10.0.0.1:7420"')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        meant = [f'"[{host}]:{port}"'] if is_ip(host) or not is_ip(text) else []
        meant += [f'"[{text}]:7420"'] if is_ip(text) else []
        raise InvalidArgument(
            f"{what} {text!r} is ambiguous; write an IPv6 address in brackets, as {' or '.join(meant)}"
        )
    if not colon or host in ("", "[]") or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidArgument(f'{what} {text!r} is no address; write "host:port", as "10.0.0.1:7420" or "[::1]:7420"')
    return text


def split_address(address: str) -> tuple[str, int]:
    """Takes a checked address apart: the host without brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address alone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # Python takes any characters for the zone of an address, as in "fe80::1%eth0".
    _, percent, zone = text.partition("%")
    return not percent or is_interface(zone)


def is_interface(text: str) -> bool:
    """Whether a text may be the name of a network interface."""
    return _INTERFACE.fullmatch(text) is not None


def check_host(what: str, value: str) -> str:
    """Reads the name of a host, or its address, with a user before it if ssh is to log in as that: "me@gpu-17".

    What passes is one word in a shell, a file of hosts and a terminal, and no option of a command.

    Args:
        what: names the argument or the line in the error.
        value: the name.

    Raises:
        InvalidArgument: it is no name and no address of a host; says how to write one.
    """
    user, at, host = value.rpartition("@")
    if (at and not _USER.fullmatch(user)) or not (is_ip(host) or (len(host) <= HOST_MAX and _HOST.fullmatch(host))):
        raise InvalidArgument(
            f"{what} has {value[:200]!r}, which is no name and no address of a host: write letters, digits, '.', '-' "
            'and \'_\', as "gpu-17", "10.0.0.1" or "me@gpu-17"'
        )
    return value
