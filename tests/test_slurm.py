"""The batch script of deploy/slurm on Debian's Slurm: one controller and three hosts, as network namespaces.

The hosts share the file system of this machine, but have their own host names and folders of sockets.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hoplite_bench.lab import Lab
from labs import needs_lab
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = ["slurmctld", "slurmd", "munged", "sbatch", "srun", "scancel", "squeue", "scontrol"]
# As root, its folder may not be on the PATH.
FOUND = f"{os.environ['PATH']}:/usr/sbin"
MISSING = [name for name in COMMANDS if shutil.which(name, path=FOUND) is None]
SCRIPT = Path(__file__).parent.parent / "deploy" / "slurm" / "hoplite.sbatch"

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    needs_lab,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)}: apt-get install slurmd slurmctld slurm-client munge",
    ),
]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={first.name}({first.address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=INFINITE
"""

# Puts an object on each host, and gets it at SIGTERM, as a program does that writes a checkpoint.
PROGRAM = """
import os, signal, sys
import hoplite

hp = hoplite.init(timeout=60)
job, rank = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_PROCID"])
hp.put(b"x" * 100_000, name=f"{job}/{rank}")
hp.get(f"{job}/{(rank + 1) % 3}", timeout=60)

def checkpoint(*_):
    size = len(hp.get(f"{job}/{(rank + 1) % 3}", timeout=60))
    print(f"rank {rank} keeps {size} bytes\\n", end="", flush=True)
    os._exit(0)

if sys.argv[1] == "until TERM":
    signal.signal(signal.SIGTERM, checkpoint)
    print(f"rank {rank} waits\\n", end="", flush=True)
    while True:
        signal.pause()
"""


class Slurm:
    """A running Slurm, whose jobs run `hoplite` of this environment, with a spill folder for each host."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        commands = folder / "bin"
        commands.mkdir()
        hoplite = f'export HOPLITE_SPILL="{folder}/spill-$(hostname)" HOPLITE_SPILL_PERSISTENT=1\n'
        for name, text in {
            "hoplite": f'{hoplite}exec {sys.executable} -m hoplite.tools.cli "$@"',
            "python": f'exec {sys.executable} "$@"',
        }.items():
            (commands / name).write_text(f"#!/bin/sh\n{text}\n")
            (commands / name).chmod(0o755)
        (folder / "program.py").write_text(PROGRAM)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "XDG_"))}
        self.env = {**inherited, "SLURM_CONF": f"{folder}/slurm.conf", "PATH": f"{commands}:{FOUND}"}

    def run(self, *command: str) -> str:
        """Runs a command on the first host."""
        return self.lab.hosts[0].run(command, env=self.env, timeout=SOON, check=True).stdout.strip()

    def submit(self, *arguments: str) -> tuple[str, Path]:
        """Submits the script with the program, and returns the job and its output."""
        output = self.folder / f"output-{len(list(self.folder.glob('output-*')))}"
        options = ["--parsable", "--nodes=3", "--ntasks-per-node=1", f"--output={output}"]
        program = ["python", f"{self.folder}/program.py", *arguments]
        return self.run("sbatch", *options, str(SCRIPT), *program), output

    def finished(self, job: str) -> str:
        """Waits until a job has ended, and returns its state."""
        while not (state := self._state(job)).startswith(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")):
            time.sleep(0.1)
        return state

    def _state(self, job: str) -> str:
        facts = self.run("scontrol", "show", "job", job)
        return facts.partition("JobState=")[2].partition(" ")[0]

    def left(self) -> list[str]:
        """The sockets that are left on the hosts."""
        found = [
            host.run(["sh", "-c", "ls /tmp/hoplite-$(id -u)/*.sock"], env=self.env).stdout for host in self.lab.hosts
        ]
        return "".join(found).split()

    def spilled(self) -> int:
        """The objects that the nodes kept on disk for the next nodes."""
        return len(list(self.folder.glob("spill-*/*.spill")))


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    with contextlib.ExitStack() as stack:
        munge = ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket"]
        munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        log = stack.enter_context((folder / "daemons.log").open("w"))
        munged = stack.enter_context(
            subprocess.Popen(munge, stdout=log, stderr=log, env={**os.environ, "PATH": FOUND}),
        )
        stack.callback(munged.terminate)
        lab = stack.enter_context(Lab(hosts=3))
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=4\n" for host in lab.hosts]
        text = CONFIGURATION.format(first=lab.hosts[0], folder=folder) + "".join(nodes)
        (folder / "slurm.conf").write_text(text)
        slurm = Slurm(lab, folder)
        daemons = [lab.hosts[0].popen(["slurmctld", "-D"], env=slurm.env, stdout=log, stderr=log)]
        daemons += [
            host.popen(["slurmd", "-D", "-N", host.name], env=slurm.env, stdout=log, stderr=log) for host in lab.hosts
        ]
        for daemon in daemons:
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
        while "3 idle" not in lab.hosts[0].run(["sinfo", "-h", "-o", "%D %T"], env=slurm.env).stdout:
            time.sleep(0.1)
        yield slurm


def test_nodes_end_in_order_after_the_program(slurm: Slurm) -> None:
    before = slurm.spilled()
    job, output = slurm.submit("at once")
    assert slurm.finished(job) == "COMPLETED", output.read_text()
    text = output.read_text()
    assert text.count("leaving: handing over objects") == 3, text
    # A node that Slurm kills writes no file, and leaves its socket.
    assert "CANCELLED" not in text
    assert slurm.spilled() == before + 3
    assert slurm.left() == []
    assert "refused" not in text


def test_a_program_can_use_the_nodes_at_the_end_of_its_time(slurm: Slurm) -> None:
    """Slurm then sends TERM to the script only, as this does (`--signal=B:TERM@...`)."""
    before = slurm.spilled()
    job, output = slurm.submit("until TERM")
    while not output.exists() or output.read_text().count(" waits\n") < 3:
        assert slurm._state(job) in ("PENDING", "CONFIGURING", "RUNNING"), output.read_text()
        time.sleep(0.1)
    slurm.run("scancel", "--batch", "--signal=TERM", job)
    slurm.finished(job)
    text = output.read_text()
    for rank in range(3):
        assert f"rank {rank} keeps 100000 bytes" in text, text
    assert text.index("leaving:") > text.rindex("keeps"), text
    assert slurm.spilled() == before + 3
    assert slurm.left() == []
