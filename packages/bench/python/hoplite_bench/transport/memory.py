"""Memory that several processes share, and how much of it they used, from /proc."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite_bench import processes

if TYPE_CHECKING:
    from collections.abc import Iterable

# Fields of a line of /proc/PID/maps: addresses, permissions, offset, device, inode and the start of the path.
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ (\S{4}) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) *(/SYSV)?")
ANONYMOUS = "00:00"

# The device, the inode and, for System V, the IPC namespace of a piece of memory: there, the inode is only an id.
Memory = tuple[str, int, int]


def clear(ranks: Iterable[int]) -> None:
    """Clears the kernel's marks of used pages of files and of shared memory: see proc(5)."""
    for rank in ranks:
        with contextlib.suppress(OSError):
            Path(f"/proc/{rank}/clear_refs").write_text("3")


def shared_by(ranks: Iterable[int]) -> set[Memory]:
    """Memory that at least two of these processes map, and at least one of them to write into it."""
    mapped: dict[Memory, set[int]] = {}
    writable: set[Memory] = set()
    for rank in ranks:
        with contextlib.suppress(OSError):
            for line in processes.read(f"/proc/{rank}/maps").decode(errors="replace").splitlines():
                match = MAPPING.match(line)
                if match and match[1].endswith("s") and match[2] != ANONYMOUS:
                    memory = _memory(rank, match)
                    mapped.setdefault(memory, set()).add(rank)
                    if "w" in match[1]:
                        writable.add(memory)
    return {memory for memory in writable if len(mapped[memory]) > 1}


def _memory(rank: int, match: re.Match[str]) -> Memory:
    """Identifies the memory of a line of maps."""
    namespace = os.stat(f"/proc/{rank}/ns/ipc").st_ino if match[4] else 0  # noqa: PTH116 - as in `network_of`
    return match[2], int(match[3]), namespace


def touched(ranks: Iterable[int], shared: set[Memory]) -> int:
    """Bytes of pages of shared memory that processes used since their marks were cleared; -1 if unknown."""
    total = 0
    for rank in ranks:
        try:
            inside = False
            for line in processes.read(f"/proc/{rank}/smaps").decode(errors="replace").splitlines():
                if match := MAPPING.match(line):
                    inside = match[1].endswith("s") and _memory(rank, match) in shared
                elif inside and line.startswith("Referenced:"):
                    total += int(line.split()[1]) * 1024
        except FileNotFoundError:
            continue
        except OSError:
            return -1
    return total
