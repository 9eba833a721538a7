"""Starts a tiny job by a launcher, and says on which host each rank ran.

Each process tells its rank, and every name and address of where it runs; a launcher that reaches hosts by another
command than ssh can have that set HOPLITE_HOST.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite.tools.topology import launchers
from hoplite.tools.topology.problem import Wanted

if TYPE_CHECKING:
    from hoplite.tools.topology.hosts import Host

PATIENCE_S = 60
TELL = 'echo "hoplite-rank ${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $(hostname) $(hostname -I 2>/dev/null) $HOPLITE_HOST"'
# The launcher of each format that can be looked at, and how it takes the file.
COMMANDS = {"mpich": ("mpiexec", ["-f"]), "openmpi4": ("mpirun", ["--rankfile"]), "openmpi5": ("mpirun", ["--map-by"])}


def ranks(form: str, hosts: list[Host], launcher: str | None) -> list[str | None]:
    """The host of each rank, as the job told; None where a rank told nothing, or another host than any of these.

    Args:
        form: one of COMMANDS.
        hosts: in the order of their ranks.
        launcher: the launcher's command with its options; None takes the usual one.

    Raises:
        InvalidArgument: the launcher isn't installed, or the job failed.
    """
    usual, option = COMMANDS[form]
    command = shlex.split(launcher or usual)
    if not command or shutil.which(command[0]) is None:
        raise InvalidArgument(f"{command[0] if command else 'the launcher'} is not installed on this host")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hosts"
        file.write_text(launchers.write(form, hosts, Wanted("ring")).text)
        count = sum(host.slots for host in hosts)
        value = f"seq:file={file}" if form == "openmpi5" else str(file)
        told = _run([*command, *option, value, "-n", str(count), "sh", "-c", TELL])
    seen: list[str | None] = [None] * count
    for match in re.finditer(r"^hoplite-rank (\d+) (.*)$", told, re.MULTILINE):
        places = match[2].split()
        if int(match[1]) < count:
            seen[int(match[1])] = next((host.name for host in hosts if host.name in places), None)
    return seen


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidArgument(f"{command[0]} didn't end within {PATIENCE_S} s") from None
    if done.returncode != 0:
        raise InvalidArgument(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
