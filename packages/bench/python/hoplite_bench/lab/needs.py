"""Checks the requirements of a lab before anything is created."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

from hoplite_bench.lab.errors import LabError

# Every Debian, Ubuntu, Fedora and Arch has them.
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "hostname": "hostname"}


def check() -> None:
    """Raises LabError if this machine can't run a lab; the message names what is missing and how to install it."""
    if sys.platform != "linux":
        raise LabError(f"a lab requires Linux network namespaces, but this is {sys.platform}: run it on Linux")
    if os.geteuid() != 0:
        raise LabError("a lab needs root to create network namespaces; run it with sudo or in a virtual machine")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise LabError(f"a lab needs the command {tool}; install it: apt-get install {package}")
    if importlib.util.find_spec("pyroute2") is None:
        raise LabError("a lab needs pyroute2; install it: pip install pyroute2")
