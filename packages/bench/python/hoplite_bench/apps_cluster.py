"""A Ray cluster on the hosts of a lab, and two programs on its first host that run applications alternately.

The programs are `ranks/ray_apps.py`; this module does not depend on the applications.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError
from hoplite_bench.places import python_path
from hoplite_bench.systems.base import RANKS, Host, Launch
from hoplite_bench.systems.ray import SETTINGS, address, node_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hoplite_bench.lab import Lab

WAYS = ("plain", "with_hoplite")

# Otherwise Ray starts a process per core of each host for each driver, in addition to the requested ones.
QUIET = {"RAY_enable_worker_prestart": "0"}

# Maximum length of a program's output in an error.
SAID_BYTES = 3000


class Spawns(Launch):
    """Starts Ray's nodes on the hosts of a lab.

    Args:
        lab: the hosts.
        folder: folder of all nodes.
        memory_bytes: maximum size of Ray's store on a host.
        environment: environment variables of all processes.
    """

    shared_clock = True

    def __init__(self, lab: Lab, folder: Path, memory_bytes: int, environment: Mapping[str, str]) -> None:
        self.hosts = [Host(host.number, host.name, host.address) for host in lab.hosts]
        self.folder = folder
        self.memory_bytes = memory_bytes
        self.environment = dict(environment)
        self.log = folder / "log"
        self._lab = lab

    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        """Starts a process on a host; it is killed when the lab is closed."""
        with self.log.open("a") as log:
            self._lab.hosts[host.number].popen(
                argv, env={**self.environment, **(env or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


class Driver:
    """A program that runs applications one way.

    Args:
        process: the process, with pipes for its standard input and output.
        way: one of `WAYS`.
        log: log file of the program and of Ray.
    """

    def __init__(self, process: subprocess.Popen[str], way: str, log: Path) -> None:
        self.way = way
        self._process = process
        self._log = log

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
        """Sends a request to the program, and waits for the reply.

        Raises:
            HopliteError: the program has ended; includes its output.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Waits for a reply of the program; the first one reports that it is ready.

        Raises:
            HopliteError: the program has ended; includes its output.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(errors="replace")[-SAID_BYTES:]
            raise HopliteError(f"the driver of the {self.way!r} applications exited; its last output: {said}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextlib.contextmanager
def drivers(lab: Lab, python: Path, examples: Path, *, memory_bytes: int) -> Iterator[dict[str, Driver]]:
    """Runs the cluster and both programs.

    Args:
        lab: the hosts; each gets a node of Ray and a node of Hoplite.
        python: interpreter of the environment with Ray.
        examples: folder of the applications.
        memory_bytes: maximum size of a store on a host, for Ray and Hoplite each.

    Yields:
        The drivers by their way.

    Raises:
        HopliteError: a program ended before it was ready; includes its output.
        Unavailable: Ray can't run with this much memory, or in this folder.
    """
    path = f"{RANKS}:{examples}:{python_path()}"
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith(("HOPLITE_", "PYTHON", "RAY_"))},
        **SETTINGS,
        **QUIET,
        "PYTHONPATH": path,
    }
    with tempfile.TemporaryDirectory(prefix="happs-", ignore_cleanup_errors=True) as name:
        launch = Spawns(lab, Path(name), memory_bytes, environment)
        try:
            for host, command in [(host, node_command(python, launch, host)) for host in launch.hosts]:
                launch.spawn(host, command)
            found = {}
            for way in WAYS:
                with launch.log.open("a") as log:
                    process = lab.hosts[0].popen(
                        [
                            *(python, RANKS / "ray_apps.py", "--address", address(launch)),
                            *("--host", launch.hosts[0].address, "--hosts", str(len(launch.hosts))),
                            *("--way", way, "--memory", str(memory_bytes)),
                        ],
                        env=environment,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                found[way] = Driver(process, way, launch.log)
            for driver in found.values():
                driver.answer()
            yield found
        finally:
            # Before the folder to which they write is removed.
            for each in lab.hosts:
                each.kill()
