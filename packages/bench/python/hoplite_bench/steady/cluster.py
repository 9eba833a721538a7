"""A node on each host of a lab, and the processes attached to them, for any pattern.

A process writes JSON lines to its standard output and errors to a log. All processes end with the `with` block.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import hoplite
from hoplite.errors import HopliteError
from hoplite.tools.channels import Channel, Lost, gather
from hoplite_bench.places import python_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.lab import Host, Lab
    from hoplite_bench.steady.job import Job

PORT = 7420
# Sixteen hosts on two cores start, and survey their racks.
START_TIMEOUT_S = 60.0
POLL_S = 0.1
# Maximum number of bytes of a log in an error.
QUOTED_BYTES = 1500

PROGRAM = "hoplite_bench.steady.program"


class Process:
    """A process on a host.

    Args:
        host: host of the process.
        name: name for errors and the log.
        arguments: arguments of the interpreter.
        folder: folder of the log.
        environment: environment variables.
    """

    def __init__(
        self, host: Host, name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]
    ) -> None:
        self.name = f"{name} on {host.name}"
        self._log = folder / f"{name} {host.number} {time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.popen: subprocess.Popen[bytes] = host.popen(
                [sys.executable, "-P", *arguments],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.channel = Channel(self.name, self.popen.stdout.fileno(), self.popen.stdin.fileno())

    def check(self) -> None:
        """Raises HopliteError if the process has ended, with the end of its log."""
        if self.popen.poll() is not None:
            raise HopliteError(f"{self.name} exited with status {self.popen.returncode}: {self.quote()}")

    def quote(self) -> str:
        """The end of the log."""
        text = self._log.read_text(errors="replace")[-QUOTED_BYTES:].strip()
        return text or "its log is empty"

    def close(self) -> None:
        """Kills the process and closes its pipes."""
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Cluster:
    """Nodes on the hosts of a lab, joined and surveyed, for the duration of a `with` block.

    Args:
        lab: the hosts.
        capacities: capacity of each node's store, in bytes.
        survey: whether nodes survey which hosts share a rack.
    """

    def __init__(self, lab: Lab, capacities: Sequence[int], *, survey: bool = True) -> None:
        self.lab = lab
        self._capacities = capacities
        self._survey = survey
        self._processes: list[Process] = []
        self._undo = contextlib.ExitStack()
        self.clients: list[hoplite.Client] = []

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            name = undo.enter_context(tempfile.TemporaryDirectory(prefix="hsteady-", ignore_cleanup_errors=True))
            self.folder = Path(name)
            undo.callback(self._end)
            self.wait_ready([self._node(self.lab.hosts[0])])
            self.wait_ready([self._node(host) for host in self.lab.hosts[1:]])
            for host in self.lab.hosts:
                self.clients.append(undo.enter_context(hoplite.connect(f"unix:{self.socket(host)}")))
            self._wait_joined()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def socket(self, host: Host) -> Path:
        """The socket of a host's node; all hosts share the file system."""
        return self.folder / f"{host.number}.sock"

    def start(self, host: Host, job: Job, name: str) -> Process:
        """Starts a process of a job on a host; `name` is for errors."""
        process = Process(host, name, ["-m", PROGRAM, job.to_argument()], self.folder, self._environment())
        self._processes.append(process)
        return process

    def wait_ready(self, processes: Sequence[Process]) -> None:
        """Waits until each process has written its first line.

        Raises:
            HopliteError: a process ended before; includes the end of its log.
        """
        try:
            gather([process.channel for process in processes], START_TIMEOUT_S)
        except Lost as error:
            quotes = "; ".join(f"{one.name}: {one.quote()}" for one in processes if one.name in error.names)
            raise HopliteError(f"{error}: {quotes}") from None

    def counters(self) -> dict[str, dict[str, int]]:
        """The counters of each node, by the name of its host."""
        return {
            host.name: client.status()["counters"] for host, client in zip(self.lab.hosts, self.clients, strict=True)
        }

    def _node(self, host: Host) -> Process:
        first = self.lab.hosts[0]
        arguments = ["-m", "hoplite.tools.cli", "node", "--no-auth", "--listen", f"{host.address}:{PORT}"]
        arguments += ["--socket", str(self.socket(host)), "--capacity", str(self._capacities[host.number])]
        if host is not first:
            arguments += ["--join", f"{first.address}:{PORT}"]
        process = Process(host, "node", arguments, self.folder, self._environment())
        self._processes.append(process)
        return process

    def _wait_joined(self) -> None:
        """Waits until each node has all members, and the surveys of racks are finished."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for host, client in zip(self.lab.hosts, self.clients, strict=True):
            while True:
                status = client.status()
                joined = len(status["members"])
                if joined == len(self.lab.hosts) and status["survey"] != "waiting":
                    break
                if time.monotonic() > deadline:
                    raise HopliteError(
                        f"the node on {host.name} has {joined} of {len(self.lab.hosts)} members after "
                        f"{START_TIMEOUT_S:.0f} s, and its survey is {status['survey']!r}"
                    )
                time.sleep(POLL_S)

    def _environment(self) -> dict[str, str]:
        own = {name: text for name, text in os.environ.items() if not name.startswith(("HOPLITE_", "PYTHON"))}
        own["PYTHONPATH"] = python_path()
        if not self._survey:
            own["HOPLITE_TOPOLOGY"] = "off"
        return own

    def _end(self) -> None:
        for host in self.lab.hosts:
            host.kill()
        for process in self._processes:
            process.close()
        self._processes.clear()


def read(process: Process) -> list[dict[str, Any]]:
    """Returns the JSON lines that a process has written since the last call; waits if there are none.

    Raises:
        HopliteError: the process ended.
    """
    try:
        process.channel.read()
    except Lost:
        process.popen.wait()
        process.check()
        raise
    lines = []
    while (line := process.channel.line()) is not None:
        lines.append(json.loads(line))
    return lines
