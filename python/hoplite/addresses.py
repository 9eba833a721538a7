"""Addresses of nodes as people write them: "10.0.0.1:7420", "[::1]:7420"."""

from __future__ import annotations

import ipaddress

from hoplite._arguments import check_text
from hoplite.errors import InvalidArgument


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
    return True
