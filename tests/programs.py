"""Scripts in separate processes, for tests across processes: run to completion, or controlled line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import peace
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def run(script: str, *arguments: str, limit: float = SOON, env: Mapping[str, str] | None = None) -> str:
    """Runs a script to completion and returns its output.

    The script must succeed and print nothing to standard error.
    """
    done = subprocess.run(
        [sys.executable, "-c", _watched(script), *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=limit,
        check=False,
    )
    assert done.returncode == 0, f"it ended with {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == ""
    return done.stdout


@contextlib.contextmanager
def started(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a script that prints lines for `line` and waits for `go`. It is killed at the end."""
    command = [sys.executable, "-c", _watched(script), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _watched(script: str) -> str:
    """Adds the recording of counters to a script that may start a node."""
    starts = ("init(", "Node(", "cluster(", "node_process(")
    is_watched = peace.FILE_VARIABLE in os.environ and any(word in script for word in starts)
    return peace.PROLOGUE + script if is_watched else script


def line(process: subprocess.Popen[str]) -> str:
    """Returns the next line that a script prints; empty when it has ended."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str], text: str = "") -> None:
    """Sends a script the line that it waits for."""
    assert process.stdin is not None
    print(text, file=process.stdin, flush=True)


def kill(process: subprocess.Popen[str]) -> None:
    """Kills a process and waits until it has ended."""
    process.kill()
    process.wait()


@contextlib.contextmanager
def frozen(process: subprocess.Popen[str]) -> Iterator[None]:
    """Pauses a process: its sockets stay open, but it does not reply."""

    def states() -> set[str]:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        return {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks}

    process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: states() == {"T"})
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def descriptors(pid: int | str = "self") -> int:
    """Returns the number of open files of a process, by default this one."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
