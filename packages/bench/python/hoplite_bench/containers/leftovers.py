"""Names of runs with containers, and what killed ones left behind: a folder of files and empty control groups.

A run's mounts, namespaces and processes end with it, whatever ends it, because its containers end when its pipes close.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

from hoplite_bench.lab import namespaces

PREFIX = "hoplite-study"
CONTROL_GROUPS = Path("/sys/fs/cgroup")

_numbers = itertools.count()


def new_name() -> str:
    """A name that no other run has: it contains this process's id and start time."""
    owner = os.getpid()
    return f"{PREFIX}-{owner}-{namespaces.start_of(owner)}-{next(_numbers)}"


def folder_of(name: str) -> Path:
    """The folder of a run's files."""
    return Path(tempfile.gettempdir()) / name


def remove(name: str) -> None:
    """Removes the folder and the control groups of a run, whose processes have ended."""
    # A control group of version 1 exists once per controller. A used one can't be removed, and is not one of this run.
    for group in [*CONTROL_GROUPS.glob(f"{name}-*"), *CONTROL_GROUPS.glob(f"*/{name}-*")]:
        with contextlib.suppress(OSError):
            group.rmdir()
    shutil.rmtree(folder_of(name), ignore_errors=True)


def remove_abandoned() -> list[str]:
    """Removes what runs of ended processes left behind; returns their names."""
    places = (Path(tempfile.gettempdir()), CONTROL_GROUPS, *CONTROL_GROUPS.glob("*/"))
    found = {path.name for place in places for path in place.glob(f"{PREFIX}-*")}
    runs = {match[0]: match for name in found if (match := re.match(rf"{PREFIX}-(\d+)-(\d+)-\d+", name))}
    ended = [name for name, match in runs.items() if namespaces.start_of(int(match[1])) != int(match[2])]
    for name in ended:
        remove(name)
    return sorted(ended)
