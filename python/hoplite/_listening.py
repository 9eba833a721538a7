"""The address on which a node listens, from its settings: an address, a network interface, or a host name.

Does not know which ports are in use, or who may join.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite import settings
from hoplite.addresses import is_ip, split_address
from hoplite.errors import InvalidArgument, JoinError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite.settings import Values

# Default of a node with clustering configured: a free port that only this host can reach.
LOOPBACK = "127.0.0.1:0"

# Names of loopback.
LOOPBACK_NAMES = ("localhost", "ip6-localhost", "ip6-loopback")

# SIOCGIFADDR of linux/sockios.h, and the bytes of its `ifreq` with the IPv4 address of an interface.
SIOCGIFADDR = 0x8915
IFREQ = "16s24x"
IPV4_IN_IFREQ = slice(20, 24)

# File with the addresses of all interfaces (address, index, prefix, scope, flags, name), and the link-local scope.
IPV6_FILE = Path("/proc/net/if_inet6")
LINK_SCOPE = "20"


def listening(values: Values) -> str | None:
    """Returns the address on which a node with these settings listens; None if it has no port.

    Warns if the host name resolves to loopback.

    Raises:
        InvalidArgument: the interface does not exist or has no usable address, or the address is link-local.
    """
    wanted: str | None = values["listen"]
    if wanted is None:
        if not values.is_clustered():
            return None
        wanted = _towards(values["join"])
    listen = resolve_interface("listen", wanted)
    ip = split_address(listen)[0].partition("%")[0]
    if is_ip(ip) and ipaddress.ip_address(ip).is_link_local and values["advertise"] is None:
        raise InvalidArgument(
            f"listen {wanted!r} is a link-local address, which is not valid on other hosts: listen on another "
            "address of the interface, or set advertise"
        )
    alone = _loopback_of(listen)
    if alone is not None:
        settings.warn(
            f"listen {wanted}",
            f"listen {wanted!r}: {split_address(wanted)[0]} resolves to {alone} (/etc/hosts), so no other host can "
            "reach this node: listen on an address of the host, or name an interface, such as eth0:7420",
        )
    return listen


def _towards(join: Sequence[str]) -> str:
    """Returns port 0 on the interface that leads to the nodes to join, or on loopback if there are none.

    A name of this host may resolve to loopback: the first seed on another interface takes precedence.

    Raises:
        JoinError: no address of the nodes to join can be resolved or reached.
    """
    found, problems = [], []
    for seed in join:
        host, port = split_address(seed)
        try:
            for family, _, _, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
                # No packet is sent: the kernel only selects the source address.
                with socket.socket(family, socket.SOCK_DGRAM) as probe:
                    probe.connect(target)
                    own = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
                if own.is_loopback or not own.is_link_local:
                    found.append(own)
                    break
        except (socket.gaierror, UnicodeError) as error:
            problems.append(f"{seed}: can't resolve the host name ({getattr(error, 'strerror', None) or error})")
        except OSError as error:
            problems.append(f"{seed}: {error.strerror or error}")
    if join and not found:
        raise JoinError(
            f"could not join the cluster: {'; '.join(problems) or ', '.join(join)}: check the addresses in join"
        )
    chosen = next((own for own in found if not own.is_loopback), found[0] if found else None)
    if chosen is None:
        return LOOPBACK
    return f"[{chosen}]:0" if chosen.version == 6 else f"{chosen}:0"


def resolve_interface(what: str, address: str) -> str:
    """Replaces the name of a network interface in a checked address by numbers.

    "eth0:7420" becomes "10.0.0.1:7420", and "[fe80::1%eth0]:7420" becomes "[fe80::1%2]:7420". Other addresses are
    returned unchanged.

    Args:
        what: name of the argument, for the error.
        address: the address.

    Raises:
        InvalidArgument: the interface does not exist, or has no address that other hosts can use.
    """
    host, _, port = address.rpartition(":")
    names = _interfaces()
    if host not in names:
        return resolve_scope(what, address)
    found = _ipv4_of(host) or _ipv6_of(host)
    if found is None:
        raise InvalidArgument(
            f"{what} {address!r}: interface {host} has no address that other hosts can use: assign one, or name "
            f"another of {', '.join(names)}"
        )
    return f"[{found}]:{port}" if ":" in found else f"{found}:{port}"


def resolve_scope(what: str, address: str) -> str:
    """Replaces the interface name in the zone of an IPv6 address by its number. Other addresses stay unchanged.

    Raises:
        InvalidArgument: the interface does not exist.
    """
    host, port = split_address(address)
    ip, percent, scope = host.partition("%")
    if not percent:
        return address
    names = _interfaces()
    if scope not in names and not (scope.isascii() and scope.isdigit()):
        raise InvalidArgument(f"{what} {address!r}: this host has no interface {scope}: name one of {', '.join(names)}")
    return f"[{ip}%{names.get(scope, scope)}]:{port}"


def _loopback_of(address: str) -> str | None:
    """Returns the loopback address to which the host name in a checked address resolves; else None.

    Returns None for numeric addresses and for localhost, where loopback is intended. Distributions map the name of the
    host to 127.0.1.1 in /etc/hosts.
    """
    host, _ = split_address(address)
    if is_ip(host.partition("%")[0]) or host in LOOPBACK_NAMES:
        return None
    try:
        found = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        # The node reports it when it tries to listen.
        return None
    return found if is_ip(found) and ipaddress.ip_address(found).is_loopback else None


def _interfaces() -> dict[str, int]:
    """Returns the numbers of this host's network interfaces, by name."""
    return {name: index for index, name in socket.if_nameindex()}


def _ipv4_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack(IFREQ, interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(reply[IPV4_IN_IFREQ])


def _ipv6_of(interface: str) -> str | None:
    try:
        rows = [row.split() for row in IPV6_FILE.read_text().splitlines()]
    except OSError:
        return None
    found = (row[0] for row in rows if row[5] == interface and row[3] != LINK_SCOPE)
    return next((str(ipaddress.IPv6Address(int(digits, 16))) for digits in found), None)
