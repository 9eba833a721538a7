"""Processes that are forked from one that has imported torch: an import takes seconds, a fork milliseconds.

Run as a program, it reads jobs from stdin, one line of JSON each, and replies with the exit statuses of their ranks.
It knows nothing of what they run.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Long enough for two torch imports on a busy machine.
PROCESS_S = 200.0

MODULES = ["torch.distributed.fsdp", "hoplite.torch", "hoplite_bench.select.torch_auto"]


def run(program: str, environments: Sequence[Mapping[str, str]]) -> list[tuple[int, str]]:
    """Runs a program in one process for each environment; returns the exit status and the output of each."""
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        job = {"program": program, "environments": [dict(each) for each in environments], "folder": folder}
        try:
            parent.stdin.write(f"{json.dumps(job)}\n".encode())
            parent.stdin.flush()
            is_there, *_ = select.select([parent.stdout], [], [], PROCESS_S)
            assert is_there, f"not ended after {PROCESS_S:g} s: {_outputs(folder, len(environments))}"
            statuses = json.loads(parent.stdout.readline())
        except BaseException:
            # Its processes may hang: the next test gets another one.
            os.killpg(parent.pid, signal.SIGKILL)
            _end(parent)
            _parent.cache_clear()
            raise
        return list(zip(statuses, _outputs(folder, len(environments)), strict=True))


@functools.cache
def _parent() -> subprocess.Popen[bytes]:
    """Starts the process that forks the others."""
    parent = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Threads of OpenMP do not survive a fork.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[bytes]) -> None:
    parent.communicate()


def _outputs(folder: str, count: int) -> list[str]:
    return [(Path(folder) / f"{number}").read_text() for number in range(count)]


def _next_program() -> str | None:
    """Serves jobs until stdin ends. In a forked process, returns its program."""
    for line in sys.stdin:
        job = json.loads(line)
        numbers = {}
        for number, environment in enumerate(job["environments"]):
            process = os.fork()
            if process == 0:
                output = os.open(f"{job['folder']}/{number}", os.O_WRONLY | os.O_CREAT)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.environ.clear()
                os.environ.update(environment)
                return str(job["program"])
            numbers[process] = number
        statuses: dict[int, int] = {}
        while len(statuses) < len(numbers):
            process, status = os.wait()
            statuses[numbers[process]] = os.waitstatus_to_exitcode(status)
        sys.stdout.write(json.dumps([statuses[number] for number in range(len(numbers))]) + "\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    # A program's own modules, not those of this folder.
    sys.path[0] = ""
    for name in MODULES:
        __import__(name)
    found = _next_program()
    if found is not None:
        # With the end of a program: a rank that just ends runs the handlers that Python runs at exit.
        exec(compile(found, "program", "exec"), {"__name__": "__main__"})
