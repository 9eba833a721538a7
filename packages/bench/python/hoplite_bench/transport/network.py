"""Bytes that processes sent over networks: all that passed their interfaces, and what their own sockets received.

Interfaces count the bytes of all programs of a network namespace. A container has its own; on this machine's, only
sockets separate the bytes of some processes from those of others.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite_bench import processes

if TYPE_CHECKING:
    from collections.abc import Iterable

# Connections in the state TCP_ESTABLISHED, and the extension with counters of TCP: see sock_diag(7).
ESTABLISHED = 1 << 1
INET_DIAG_INFO = 2
SOCKET = re.compile(r"socket:\[(\d+)\]")


def interfaces(ranks: Iterable[int]) -> dict[str, int]:
    """Bytes that interfaces have sent, and segments of TCP, in all network namespaces of these processes."""
    total = {"interface_bytes": 0, "loopback_bytes": 0, "tcp_segments": 0}
    seen: set[int] = set()
    for rank in ranks:
        namespace = processes.network_of(rank)
        if namespace is None or namespace in seen:
            continue
        with contextlib.suppress(OSError):
            lines = processes.read(f"/proc/{rank}/net/dev").decode().splitlines()[2:]
            seen.add(namespace)
            for line in lines:
                name, _, counters = line.partition(":")
                total["loopback_bytes" if name.strip() == "lo" else "interface_bytes"] += int(counters.split()[8])
            names, values = (
                line.split() for line in Path(f"/proc/{rank}/net/snmp").read_text().splitlines() if line[:4] == "Tcp:"
            )
            total["tcp_segments"] += int(values[names.index("OutSegs")])
    return total


def sockets(ranks: Iterable[int]) -> dict[int, tuple[bool, int]] | None:
    """What each socket of TCP of these processes has received.

    Returns:
        For the inode of each socket: whether both ends are on this host, and the bytes; None if the kernel does not
        report them, or if a process is not in this process's network namespace.
    """
    own = processes.network_of("self")
    if any(processes.network_of(rank) != own for rank in ranks):
        return None
    inodes = {inode for rank in ranks for inode in _inodes(rank)}
    # Imported here, because it takes a tenth of a second.
    from pyroute2.netlink.diag import DiagSocket

    found = {}
    try:
        with DiagSocket() as diag:
            diag.bind()
            for family in (socket.AF_INET, socket.AF_INET6):
                for one in diag.get_sock_stats(family=family, states=ESTABLISHED, extensions=INET_DIAG_INFO):
                    info = one.get_attr("INET_DIAG_INFO")
                    if one["idiag_inode"] in inodes and info is not None:
                        found[one["idiag_inode"]] = _is_local(one), int(info["tcpi_bytes_received"])
    except OSError:
        return None
    return found


def received(before: dict[int, tuple[bool, int]] | None, after: dict[int, tuple[bool, int]] | None) -> dict[str, int]:
    """The bytes that sockets received between two looks, from other hosts and from this one; -1 if unknown."""
    # The counters of a closed socket are lost.
    if before is None or after is None or before.keys() - after.keys():
        return {"socket_interface_bytes": -1, "socket_loopback_bytes": -1}
    total = {False: 0, True: 0}
    for inode, (local, count) in after.items():
        total[local] += count - before.get(inode, (local, 0))[1]
    return {"socket_interface_bytes": total[False], "socket_loopback_bytes": total[True]}


def _inodes(rank: int) -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{rank}/fd"):  # noqa: PTH208 - names are enough
            with contextlib.suppress(OSError):
                if match := SOCKET.fullmatch(os.readlink(f"/proc/{rank}/fd/{name}")):  # noqa: PTH115
                    found.add(int(match[1]))
    return found


def _is_local(one: Any) -> bool:  # noqa: ANN401 - pyroute2 has no types
    address = str(one["idiag_dst"])
    return address == str(one["idiag_src"]) or ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback
