"""What a lab needs of the machine, looked at before anything is made."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

from hoplite_bench.lab.errors import LabError

# All of them come with every Debian, Ubuntu, Fedora and Arch.
TOOLS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "hostname": "hostname"}


def check() -> None:
    """Raises LabError if no lab can be made here; the message says what is missing and how to get it."""
    if sys.platform != "linux":
        raise LabError(f"a lab is made of Linux network namespaces; this is {sys.platform}")
    if os.geteuid() != 0:
        raise LabError("a lab needs root, for it makes network namespaces; run it by sudo, or in a machine of its own")
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise LabError(f"a lab needs the command {tool}; install it: apt-get install {package}")
    if importlib.util.find_spec("pyroute2") is None:
        raise LabError("a lab needs pyroute2; install it: pip install hoplite-bench")
