"""What the kernel reports about this host and about the process of a node. Judges nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
from dataclasses import dataclass, field
from pathlib import Path

# Settings of the kernel that matter, by their names for sysctl.
SYSCTLS = (
    "net.core.somaxconn",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "vm.max_map_count",
    "vm.overcommit_memory",
)

# Limits of a process, by the names of /proc/PID/limits.
LIMITS = {
    "Max open files": "nofile",
    "Max file size": "fsize",
    "Max address space": "as",
    "Max processes": "nproc",
}

# When memory files consist of huge pages.
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/shmem_enabled"

# Memory to try shared memory with.
TRIAL_BYTES = 1 << 20

# Version 1 of control groups has this limit, rounded to pages, where none is set.
UNLIMITED_V1 = 1 << 62


@dataclass
class Facts:
    """A host, and the limits of a process.

    Attributes:
        kernel: version of the kernel.
        limits: soft and hard limits; None is unlimited.
        sysctls: settings of the kernel; those that can't be read are missing.
        memory: memory of the host in bytes.
        available: memory that the host can give to programs, in bytes.
        group: the smallest memory limit of the control groups in bytes, and the path of that group; None without one.
        shared_memory: why shared memory does not work; None if it does.
        huge_pages: when shared memory consists of huge pages, such as "never" or "advise"; None if that can't be read.
        process: the process that the limits apply to.
    """

    kernel: str
    limits: dict[str, tuple[int | None, int | None]]
    sysctls: dict[str, str] = field(default_factory=dict)
    memory: int = 0
    available: int = 0
    group: tuple[int, str] | None = None
    shared_memory: str | None = None
    huge_pages: str | None = None
    process: str = "this shell"


def gather(pid: int | None, root: Path = Path("/")) -> Facts:
    """Reads the facts.

    Args:
        pid: the process of the node; None for this process.
        root: where /proc and /sys are.
    """
    proc = root / "proc" / (str(pid) if pid is not None else "self")
    meminfo = dict(_pairs(root / "proc/meminfo"))
    return Facts(
        kernel=os.uname().release,
        limits=_limits(proc),
        sysctls={
            name: text for name in SYSCTLS if (text := _read(root / "proc/sys" / name.replace(".", "/"))) is not None
        },
        memory=meminfo.get("MemTotal", 0),
        available=meminfo.get("MemAvailable", 0),
        group=_group(proc, root),
        shared_memory=_try_shared_memory(),
        huge_pages=_chosen(_read(root / HUGE_PAGES) or ""),
        process="this shell" if pid is None else f"the node (process {pid})",
    )


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _chosen(text: str) -> str | None:
    """The word in brackets, as in "always [never]"."""
    _, _, rest = text.partition("[")
    return rest.partition("]")[0] or None


def _pairs(path: Path) -> list[tuple[str, int]]:
    """Lines of the form "Name:  123 kB"."""
    found = []
    for line in (_read(path) or "").splitlines():
        name, _, rest = line.partition(":")
        with contextlib.suppress(ValueError, IndexError):
            found.append((name, int(rest.split()[0]) * 1024))
    return found


def _limits(proc: Path) -> dict[str, tuple[int | None, int | None]]:
    found: dict[str, tuple[int | None, int | None]] = {}
    for line in (_read(proc / "limits") or "").splitlines():
        for name, short in LIMITS.items():
            if line.startswith(name):
                soft, hard = line.removeprefix(name).split()[:2]
                found[short] = (_limit(soft), _limit(hard))
    if not found:
        # Another user's process.
        soft_files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
        found["nofile"] = (_finite(soft_files), _finite(hard_files))
    return found


def _limit(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _finite(number: int) -> int | None:
    return None if number == resource.RLIM_INFINITY else number


def _group(proc: Path, root: Path) -> tuple[int, str] | None:
    """The smallest limit of the control groups of a process, with their parents."""
    limits = []
    for line in (_read(proc / "cgroup") or "").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, file = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        path = Path(name)
        # In a container, the path may be that of the host: then the root is the container's group.
        for one in (path, *path.parents):
            text = _read(root / "sys/fs/cgroup" / top / str(one).lstrip("/") / file)
            if text is not None and text.isdigit() and int(text) < UNLIMITED_V1:
                limits.append((int(text), str(one)))
    return min(limits, default=None)


def _try_shared_memory() -> str | None:
    try:
        descriptor = os.memfd_create("hoplite-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return f"memfd_create: {error.strerror}"
    try:
        os.ftruncate(descriptor, TRIAL_BYTES)
        with mmap.mmap(descriptor, TRIAL_BYTES) as memory:
            memory[:] = b"\1" * TRIAL_BYTES
    except OSError as error:
        return f"{TRIAL_BYTES} B of shared memory: {error.strerror}"
    finally:
        os.close(descriptor)
    return None
