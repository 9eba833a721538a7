"""Describes the machine and build of a measurement, without which its figures mean nothing."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from pathlib import Path

import hoplite
from hoplite.errors import HopliteError


def refuse_debug_build() -> None:
    """Raises if the extension was built without optimization."""
    if build() == "debug":
        raise HopliteError("a debug build is too slow to measure: run make build")


def build() -> str:
    """The build of the extension: "debug" or "release"."""
    return hoplite.__build__


def facts() -> dict[str, str | int | float]:
    """Returns processor, cores, memory, kernel, Python, version and commit."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        # It determines how a stream starts and reacts to losses, for every system that uses TCP.
        "congestion_control": _congestion_control(),
        "python": platform.python_version(),
        "version": hoplite.__version__,
        "commit": _commit(),
    }


def _congestion_control() -> str:
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@functools.cache
def _commit() -> str:
    """The commit of the checkout that contains this package; "+" marks uncommitted changes."""
    here = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.stdout.strip()
