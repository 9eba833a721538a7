"""Syntax of node addresses, such as "10.0.0.1:7420" or "[::1]:7420", and of host names."""

from __future__ import annotations

import ipaddress
import re

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument

# Maximum length of a DNS name.
HOST_MAX = 253

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")


def check_address(what: str, value: str) -> str:
    """Checks "host:port", with an IPv6 address in brackets: "[::1]:7420".

    Args:
        what: name of the argument, for the error.
        value: the address.

    Raises:
        InvalidArgument: the address is not valid.
    """
    text = check_text(what, value)
    host, colon, port = text.rpartition(":")
    if "/" in text:
        raise InvalidArgument(f'{what} {text!r} is not an address: write only "host:port", such as "10.0.0.1:7420"')
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        meant = [f'"[{host}]:{port}"'] if is_ip(host) or not is_ip(text) else []
        meant += [f'"[{text}]:7420"'] if is_ip(text) else []
        raise InvalidArgument(
            f"{what} {text!r} is ambiguous: write an IPv6 address in brackets, such as {' or '.join(meant)}"
        )
    if not colon or host in ("", "[]") or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidArgument(
            f'{what} {text!r} is not an address: write "host:port", such as "10.0.0.1:7420" or "[::1]:7420"'
        )
    return text


def split_address(address: str) -> tuple[str, int]:
    """Splits a checked address into the host, without brackets, and the port."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address without a port."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # Python accepts any characters as the zone of an address, as in "fe80::1%eth0".
    _, percent, zone = text.partition("%")
    return not percent or is_interface(zone)


def is_interface(text: str) -> bool:
    """Whether a text is a valid name of a network interface."""
    return _INTERFACE.fullmatch(text) is not None


def check_host(what: str, value: str) -> str:
    """Checks the name or address of a host, optionally with a user for ssh, as in "me@gpu-17".

    A valid name is one word in a shell, a hosts file and a terminal, and can't be mistaken for a command-line option.

    Args:
        what: name of the argument or line, for the error.
        value: the name.

    Raises:
        InvalidArgument: the value is neither a name nor an address of a host.
    """
    user, at, host = value.rpartition("@")
    if (at and not _USER.fullmatch(user)) or not (is_ip(host) or (len(host) <= HOST_MAX and _HOST.fullmatch(host))):
        raise InvalidArgument(
            f"{what} has {value[:200]!r}, which is not the name or address of a host: use letters, digits, '.', '-' "
            'and \'_\', as in "gpu-17", "10.0.0.1" or "me@gpu-17"'
        )
    return value
