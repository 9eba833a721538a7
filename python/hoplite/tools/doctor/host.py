"""Judges a host: kernel, limits, memory, settings and ports. Needs no running node."""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite import peers, settings, sockets
from hoplite.addresses import split_address
from hoplite.errors import HopliteError
from hoplite.files import check_private
from hoplite.settings import SettingsWarning
from hoplite.tokens import read_tokens
from hoplite.tools.doctor import Finding
from hoplite.tools.doctor.facts import HUGE_PAGES
from hoplite.tools.quantities import write_size

if TYPE_CHECKING:
    from hoplite.settings import Values
    from hoplite.tools.doctor.facts import Facts

# The kernel needs seals that deny future writes, and io with descriptors of processes.
KERNEL_MIN = (5, 4)

# A node can request huge pages from this version on.
KERNEL_OF_ADVICE = (5, 14)

# docs/memory.md: higher values change nothing.
FILES_ENOUGH = 16384
FILES_MIN = 1024

# Length of the queue of connections that a node requests.
BACKLOG = 1024

# Bytes in flight to one receiver.
WINDOW_BYTES = 4 << 20

# Mappings of a process: its default, and enough.
MAPS_MIN = 65530

# Part of the memory limit that the store may take.
CAPACITY_PART = 0.8

CONNECT_S = 3.0


def kernel(facts: Facts) -> Finding:
    """Judges the version of the kernel."""
    if _version(facts.kernel) < KERNEL_MIN:
        least = ".".join(map(str, KERNEL_MIN))
        return Finding(
            "kernel", "problem", f"Linux {facts.kernel} is older than {least}", "Update the kernel: uname -r"
        )
    return Finding("kernel", "ok", f"Linux {facts.kernel}")


def _version(kernel: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", kernel)[:2]))


def shared_memory(facts: Facts) -> Finding:
    """Judges whether memory files work. The size of /dev/shm does not matter."""
    if facts.shared_memory is not None:
        return Finding(
            "shared memory",
            "problem",
            f"memory files do not work: {facts.shared_memory}",
            "Allow the call memfd_create: with Docker, remove --security-opt seccomp=FILE or add the call to FILE",
        )
    return Finding("shared memory", "ok", "memory files work; /dev/shm is not used")


def huge_pages(facts: Facts) -> Finding:
    """Judges whether objects get huge pages, which the kernel allocates in a quarter of the time."""
    setting = facts.huge_pages
    if setting is None:
        return Finding("huge pages", "unchecked", f"/{HUGE_PAGES} can't be read")
    wanted = "advise" if _version(facts.kernel) >= KERNEL_OF_ADVICE else "within_size"
    fix = f"Run as root, before the node starts: echo {wanted} > /{HUGE_PAGES}"
    if setting in ("always", "force"):
        text = f"shmem_enabled is {setting}: small objects also take 2 MiB each, beyond the capacity of the store"
        return Finding("huge pages", "warning", text, fix)
    if setting in (wanted, "within_size"):
        return Finding("huge pages", "ok", f"objects get huge pages: shmem_enabled is {setting}")
    text = "objects consist of pages of 4 KiB; with huge pages, a put into new memory takes a quarter of the time"
    return Finding("huge pages", "ok", text, fix)


def limits(facts: Facts) -> list[Finding]:
    """Judges the limits of the process (ulimit)."""
    found = []
    soft, hard = facts.limits.get("nofile", (None, None))
    # `hoplite node` raises its own limit.
    most = hard if "shell" in facts.process else soft
    if most is not None and most < FILES_ENOUGH:
        level: Any = "problem" if most < FILES_MIN else "warning"
        text = f"{facts.process} can open {most} files; a large store and many processes need {FILES_ENOUGH}"
        fix = f"Start the node after: ulimit -Hn {FILES_ENOUGH}; with systemd, set LimitNOFILE={FILES_ENOUGH}"
        found.append(Finding("open files", level, text, fix))
    else:
        found.append(Finding("open files", "ok", f"{facts.process} can open {most or 'any number of'} files"))
    size, _ = facts.limits.get("fsize", (None, None))
    if size is not None:
        text = f"files of {facts.process}, and so objects, are limited to {write_size(size)}"
        found.append(Finding("file size", "problem", text, "Start the node after: ulimit -f unlimited"))
    space, _ = facts.limits.get("as", (None, None))
    if space is not None:
        text = f"the address space of {facts.process} is limited to {write_size(space)}"
        found.append(Finding("address space", "warning", text, "Start the node after: ulimit -v unlimited"))
    return found


def memory(facts: Facts, capacity: int | None, used: int = 0) -> Finding:
    """Judges whether the store fits.

    Args:
        facts: the host.
        capacity: of the store in bytes; None for the default, which fits.
        used: bytes that the node has already.
    """
    most, where = facts.memory, "this host"
    if facts.group is not None and facts.group[0] < most:
        most, where = facts.group[0], f"the control group {facts.group[1]}"
    text = f"{where} has {write_size(most)}, {write_size(facts.available)} of the host are available"
    if capacity is None:
        return Finding("memory", "ok", text)
    text = f"the store may take {write_size(capacity)}; {text}"
    fix = f"Start the node with: hoplite node --capacity {max(1, int(most * 0.3) >> 20)}MiB"
    if capacity > most:
        return Finding("memory", "problem", text, fix)
    if capacity > most * CAPACITY_PART:
        return Finding("memory", "warning", text, fix)
    if capacity - used > facts.available > 0:
        return Finding("memory", "warning", text, "End programs that use much memory: ps aux --sort=-rss | head")
    return Finding("memory", "ok", text)


def kernel_settings(facts: Facts) -> list[Finding]:
    """Judges settings of the kernel (sysctl)."""
    found = []
    backlog = facts.sysctls.get("net.core.somaxconn", "")
    if backlog.isdigit() and int(backlog) < BACKLOG:
        text = f"net.core.somaxconn is {backlog}: connections may be rejected when many nodes join"
        found.append(Finding("sysctl", "warning", text, f"Run: sysctl -w net.core.somaxconn={BACKLOG}"))
    for name, example in (("net.ipv4.tcp_rmem", "4096 131072 6291456"), ("net.ipv4.tcp_wmem", "4096 65536 4194304")):
        numbers = facts.sysctls.get(name, "").split()
        if len(numbers) == 3 and int(numbers[2]) < WINDOW_BYTES:
            text = f"{name} is at most {write_size(int(numbers[2]))}: transfers over long distances are slow"
            found.append(Finding("sysctl", "warning", text, f'Run: sysctl -w {name}="{example}"'))
    maps = facts.sysctls.get("vm.max_map_count", "")
    if maps.isdigit() and int(maps) < MAPS_MIN:
        text = f"vm.max_map_count is {maps}: a process can map few objects"
        found.append(Finding("sysctl", "warning", text, f"Run: sysctl -w vm.max_map_count={MAPS_MIN}"))
    if facts.sysctls.get("vm.overcommit_memory") == "2":
        text = "vm.overcommit_memory is 2: the kernel may refuse memory that is free"
        found.append(Finding("sysctl", "warning", text, "Run: sysctl -w vm.overcommit_memory=0"))
    if not facts.sysctls:
        return [Finding("sysctl", "unchecked", "/proc/sys can't be read")]
    return found or [Finding("sysctl", "ok", f"{len(facts.sysctls)} settings of the kernel suffice")]


def node_settings() -> tuple[list[Finding], Values | None]:
    """Judges the settings of nodes that start in this environment, and the modes of their files.

    Returns:
        The findings, and the settings if they are valid.
    """
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values = settings.load_arguments({}, of_node=True)
        except HopliteError as error:
            return [Finding("settings", "problem", str(error), "Correct the setting: hoplite node --help")], None
    found = [
        Finding("settings", "warning", str(one.message), "Unset or rename the variable")
        for one in caught
        if isinstance(one.message, SettingsWarning)
    ]
    if not found:
        given = ", ".join(name for name in values if values.is_set(name))
        found.append(Finding("settings", "ok", f"the environment sets {given or 'nothing'}"))
    return [*found, *_secrets(values), *_spill(values)], values


def _secrets(values: Values) -> list[Finding]:
    found = []
    try:
        if values["token_file"] is not None:
            read_tokens(values["token_file"])
            found.append(Finding("token", "ok", f"only its owner can read {values['token_file']}"))
        if values["key"] is not None:
            file = Path(values["key"]).expanduser()
            check_private(file, file.stat(), "a private key")
            found.append(Finding("key", "ok", f"only its owner can read {file}"))
    except HopliteError as error:
        text, _, fix = str(error).partition(": run ")
        command = f"Run: {fix}" if fix else "Create a token: hoplite token new --out hoplite.token"
        found.append(Finding("secrets", "problem", text, command))
    except OSError as error:
        fix = f"Create the key again, or correct {values.origin('key')}"
        found.append(Finding("secrets", "problem", f"{values['key']} can't be read: {error.strerror}", fix))
    try:
        folder = sockets.runtime_dir()
    except HopliteError as error:
        found.append(Finding("runtime folder", "problem", str(error), "Set XDG_RUNTIME_DIR to a folder of this user"))
    else:
        found.append(Finding("runtime folder", "ok", f"sockets are in {folder}"))
    return found


def _spill(values: Values) -> list[Finding]:
    if values["spill"] is None:
        return []
    folder = Path(values["spill"]).expanduser()
    # The node creates the last part of the path.
    there = folder if folder.exists() else folder.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return [Finding("spill folder", "problem", f"{folder} can't be written", f"Run: mkdir -p -m 700 {folder}")]
    free = shutil.disk_usage(there).free
    wanted = values["spill_limit"]
    text = f"{folder} has {write_size(free)} free"
    if wanted is not None and wanted > free:
        fix = f"Free space on the disk, or set: --spill-limit {int(free * 0.8) >> 20}MiB"
        return [Finding("spill folder", "warning", f"{text}, less than its limit of {write_size(wanted)}", fix)]
    return [Finding("spill folder", "ok", text)]


def port(address: str) -> Finding:
    """Judges whether a node can listen on an address.

    Args:
        address: host and port, as in the setting `listen`.
    """
    host, number = split_address(address)
    # Of an interface, only the port is tried.
    name = "0.0.0.0" if host in (interface for _, interface in socket.if_nameindex()) else host
    try:
        families = socket.getaddrinfo(name, number, type=socket.SOCK_STREAM)
        with socket.socket(families[0][0], socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(families[0][4])
            listener.listen()
    except UnicodeError:
        return Finding("port", "problem", f"{host} is not a name of a host", "Choose another address with --listen")
    except OSError as error:
        fixes = {
            errno.EADDRINUSE: f"Find the program, and choose another port with --listen: ss -tlnp 'sport = :{number}'",
            errno.EADDRNOTAVAIL: "Choose an address of this host with --listen: ip -brief address",
            errno.EACCES: "Choose a port above 1023 with --listen",
        }
        fix = fixes.get(error.errno or 0, "Choose another address with --listen")
        return Finding("port", "problem", f"a node can't listen on {address}: {error.strerror or error}", fix)
    return Finding("port", "ok", f"a node can listen on {address}")


def peer(address: str, values: Values | None) -> Finding:
    """Judges whether the node at an address would admit a node of this host. The node joins nothing.

    Args:
        address: host and port.
        values: the settings of nodes that start in this environment; None if they are not valid.
    """
    host, number = split_address(address)
    try:
        socket.create_connection((host, number), CONNECT_S).close()
        return _admitted(address, values)
    except (socket.gaierror, UnicodeError) as error:
        fix = f"Correct the name, or add it to DNS or /etc/hosts: getent hosts {host}"
        why = getattr(error, "strerror", None) or "a part of it is empty or too long"
        return Finding("peer", "problem", f"the name {host} is unknown: {why}", fix)
    except TimeoutError:
        fix = f"Allow TCP port {number} in the firewall of {host}: nft list ruleset"
        return Finding("peer", "problem", f"{address} does not reply within {CONNECT_S:.0f} s", fix)
    except OSError as error:
        fix = f"Start a node there: hoplite node --listen {host}:{number}"
        return Finding("peer", "problem", f"{address} can't be reached: {error.strerror or error}", fix)


def _admitted(address: str, values: Values | None) -> Finding:
    """Judges the credentials of this environment at an open port."""
    text = f"{address} accepts connections"
    if values is None:
        return Finding("peer", "unchecked", f"{text}; whether it admits a node needs valid settings")
    try:
        reason = peers.refusal(values, address)
    except HopliteError as error:
        fix = "Set what that node has, such as HOPLITE_TOKEN_FILE, and check again"
        return Finding("peer", "warning", f"{text}, but no handshake was possible: {error}", fix)
    if reason is not None:
        fix = "Set the same cluster name, token or CA as that node: hoplite status, on its host"
        return Finding("peer", "problem", f"{text}, but admits no node with these settings: {reason}", fix)
    return Finding("peer", "ok", f"the node at {address} admits nodes with these settings")
