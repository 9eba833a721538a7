"""Starts a tiny job with a launcher, and reports on which host each rank ran.

Each process prints its rank, and every name and address of its host. A launcher that reaches hosts by another command
than ssh can set HOPLITE_HOST there. torchrun, Gloo and LightGBM have a command for each host, which ssh runs.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_topology import launchers
from hoplite_topology.problem import Wanted

if TYPE_CHECKING:
    from hoplite_topology.hosts import Host

PATIENCE_S = 60
REPORT = (
    'echo "hoplite-rank ${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-$RANK}} $(hostname) $(hostname -I 2>/dev/null) '
    '$HOPLITE_HOST"'
)
# Each process gets the host of every rank through Gloo (in torch); the first one prints them. They end without the
# shutdown of Python, in which a thread of torch that still runs can abort the process.
GATHER = """
import datetime, os, socket, subprocess, sys
import torch.distributed as dist
master, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
wait = datetime.timedelta(seconds=45)
dist.init_process_group("gloo", init_method=master, rank=rank, world_size=size, timeout=wait)
own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout
reports = [None] * size
dist.all_gather_object(reports, f"{socket.gethostname()} {own.strip()} {os.environ.get('HOPLITE_HOST', '')}")
if rank == 0:
    print("".join(f"hoplite-rank {at} {places}\\n" for at, places in enumerate(reports)), flush=True)
dist.barrier()
os._exit(0)
"""
# LightGBM determines its rank by its address, and logs it.
JOIN = """
import os, re, socket, subprocess, sys
import lightgbm, numpy
class Log:
    def __init__(self): self.words = ""
    def info(self, words): self.words += words
    warning = info
log = Log()
lightgbm.register_logger(log)
machines = sys.argv[1]
size, port = machines.count(",") + 1, int(machines.rpartition(":")[2])
network = {"machines": machines, "local_listen_port": port, "num_machines": size, "time_out": 1}
rows = numpy.arange(100.0)
lightgbm.Booster({**network, "tree_learner": "data", "pre_partition": True}, lightgbm.Dataset(rows[:, None], rows))
own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout
rank = re.search("Local rank: ([0-9]+)", log.words)[1]
print(f"\\nhoplite-rank {rank} {socket.gethostname()} {own.strip()} {os.environ.get('HOPLITE_HOST', '')}")
"""
# The launcher of each supported format, and its option for the file.
COMMANDS = {"mpich": ("mpiexec", ["-f"]), "openmpi4": ("mpirun", ["--rankfile"]), "openmpi5": ("mpirun", ["--map-by"])}
# Launchers with a command for each host, which a shell on that host runs.
EACH = ("torchrun", "gloo", "lightgbm")
FORMS = (*COMMANDS, *EACH)
TRACEBACK = "Traceback (most recent call last):"


def ranks(form: str, hosts: list[Host], launcher: str | None) -> list[str | None]:
    """Returns the host of each rank; None where a rank reported nothing, or an unknown host.

    Args:
        form: one of FORMS.
        hosts: hosts in the order of their ranks.
        launcher: command of the launcher with its options; None for the usual one. For the launchers in EACH, the
            command that takes a host and a command to run there; None for ssh.

    Raises:
        InvalidArgument: the launcher is not installed, or the job failed.
    """
    usual, option = COMMANDS.get(form, ("ssh", []))
    command = shlex.split(launcher or usual)
    if not command or shutil.which(command[0]) is None:
        raise InvalidArgument(f"{command[0] if command else 'the launcher'} is not installed on this host")
    if form in EACH:
        reports = _run([[*command, host, there] for host, there in _commands(form, hosts)])
    else:
        reports = _by_file(form, hosts, [*command, *option])
    seen: list[str | None] = [None] * sum(host.slots for host in hosts)
    for match in re.finditer(r"^hoplite-rank (\d+) (.*)$", reports, re.MULTILINE):
        places = match[2].split()
        if int(match[1]) < len(seen):
            seen[int(match[1])] = next((host.name for host in hosts if host.name in places), None)
    return seen


def _by_file(form: str, hosts: list[Host], command: list[str]) -> str:
    """Runs the job of a launcher that takes a file; returns its output."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hosts"
        file.write_text(launchers.write(form, hosts, Wanted("ring")).text)
        value = f"seq:file={file}" if form == "openmpi5" else str(file)
        count = sum(host.slots for host in hosts)
        return _run([[*command, value, "-n", str(count), "sh", "-c", REPORT]])


def _commands(form: str, hosts: list[Host]) -> list[tuple[str, str]]:
    """Returns each host with the command to run there."""
    text = launchers.write(form, hosts, Wanted("ring")).text.splitlines()
    if form == "lightgbm":
        machines = shlex.quote(",".join(line.replace(" ", ":") for line in text))
        return [(host.name, f"python3 -c {shlex.quote(JOIN)} {machines}") for host in hosts]
    lines = [line.split(": ", 1) for line in text]
    if form == "torchrun":
        program = f"--no_python sh -c {shlex.quote(REPORT)}"
        return [(host, there.replace(launchers.PROGRAM, program)) for host, there in lines]
    master = shlex.quote(f"tcp://{hosts[0].name}:{launchers.TORCH_PORT}")
    gather = f"python3 -c {shlex.quote(GATHER)} {master}"
    return [(host, f"{gather} {rank} {len(lines)}") for rank, (host, _) in enumerate(lines)]


def _where(command: list[str]) -> str:
    """The suffix for an error of a command for one host; such a command ends with the host and what runs there."""
    return f" on {command[-2]}" if command[-1].startswith("python3 -c ") else ""


def _reason(said: str) -> str:
    """The error output of a program; of a Python traceback, only the last line."""
    return said.splitlines()[-1] if TRACEBACK in said else said


def _run(commands: list[list[str]]) -> str:
    """Runs commands in parallel, and returns their output."""
    end = time.monotonic() + PATIENCE_S
    running = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    reports = []
    try:
        for process, command in zip(running, commands, strict=True):
            try:
                out, errors = process.communicate(timeout=max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise InvalidArgument(f"{command[0]} did not exit within {PATIENCE_S} s") from None
            if process.returncode != 0:
                raise InvalidArgument(f"{command[0]} failed{_where(command)}: {_reason(errors.strip() or out.strip())}")
            reports.append(out)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return "".join(reports)
