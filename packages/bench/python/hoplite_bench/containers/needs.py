"""Checks the requirements of a container set-up before anything is created."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hoplite.tools.quantities import write_size
from hoplite_bench.lab import LabError, needs
from hoplite_bench.systems.base import Unavailable

SHARED_MEMORY = Path("/dev/shm")
# Docker's default for a container; below it, libraries fail or use slower transports.
SHARED_MEMORY_MIN = 64 << 20
# The program and the Debian package of each set-up with containers.
RUNTIMES = {"hpc": ("ch-run", "charliecloud"), "single": ("runc", "runc"), "cross": ("runc", "runc")}


def check(name: str) -> None:
    """Checks the requirements of a set-up.

    Raises:
        Unavailable: root, a program, or space in /dev/shm is missing; the message contains the fix.
    """
    if name in RUNTIMES:
        try:
            needs.check()
        except LabError as error:
            raise Unavailable(f"the container set-up {name!r} needs what a lab needs: {error}") from None
        program, package = RUNTIMES[name]
        if shutil.which(program) is None:
            raise Unavailable(
                f"the container set-up {name!r} needs the command {program}: install it with "
                f"`apt-get install {package}` or `make bench-packages`"
            )
    # Containers of runc have their own.
    if name in ("bare", "hpc") and (free := free_shared_memory()) < SHARED_MEMORY_MIN:
        raise Unavailable(
            f"{SHARED_MEMORY} has {write_size(free)} free, which is too little for libraries that use shared memory: "
            f"delete files there, or remount it larger, until {write_size(SHARED_MEMORY_MIN)} are free"
        )


def free_shared_memory() -> int:
    """Free bytes of this machine's /dev/shm; 0 if it is missing."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def shared_memory_size() -> int:
    """Size of this machine's /dev/shm in bytes, which containers get too; of half the memory if it is missing."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return found.f_blocks * found.f_frsize


def environment() -> dict[str, str]:
    """The environment of runtimes and containers: that of this process, and the user's name, which ch-run requires."""
    return {**os.environ, "USER": os.environ.get("USER", "root")}


def version_of(name: str) -> str:
    """The runtime of a set-up and its version; "none" for bare processes.

    Raises:
        Unavailable: the runtime does not run.
    """
    if name not in RUNTIMES:
        return "none"
    program, package = RUNTIMES[name]
    try:
        found = subprocess.run(
            [program, "--version"], check=True, capture_output=True, text=True, timeout=10, env=environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{program} --version failed: {error}; reinstall the package {package}") from None
    # ch-run writes its version to stderr.
    lines = (found.stdout + found.stderr).splitlines()
    return f"{package} {lines[0].removeprefix(program).removeprefix(' version').strip()}" if lines else package
