"""Runs the `hoplite` command to completion.

`run` forks it from a server that has imported the command line once per test process: importing takes ten times as long
as a command. Tests of a command that is started, signalled or connected to a terminal start `COMMAND` themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import forked
from support import SOON

COMMAND = [sys.executable, "-m", "hoplite.tools.cli"]

# The default method would fork the test process with its threads. Modules that a command imports when it needs them.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["hoplite.tools.cli", "numpy", "rich.console", "rich.table"])


def run_bytes(
    *arguments: object, code: int = 0, given: bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to completion. If it fails, checks that its last line suggests a fix (`try: `).

    Args:
        arguments: arguments of the command.
        code: expected exit status.
        given: standard input.
        environment: variables to add to this process's environment.
    """
    words = ["hoplite", *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="hoplite-command-") as folder:
        files = [Path(folder) / name for name in ("given", "output", "errors")]
        files[0].write_bytes(given or b"")
        inherited = ({**os.environ, **environment}, Path.cwd(), _mask())
        command = _FORKED.Process(target=forked.command, args=(words, *inherited, [str(file) for file in files]))
        command.start()
        command.join(SOON)
        if command.exitcode is None:
            command.kill()
            command.join()
            raise subprocess.TimeoutExpired(words, SOON, files[1].read_bytes(), files[2].read_bytes())
        done = subprocess.CompletedProcess(words, command.exitcode, files[1].read_bytes(), files[2].read_bytes())
        command.close()
    assert done.returncode == code, done.stderr.decode()
    # A command group without a subcommand prints its help instead.
    if code and b"\nCommands:" not in done.stderr:
        assert done.stderr.splitlines()[-1].startswith(b"try: "), done.stderr.decode()
    return done


def run(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that prints text."""
    done = run_bytes(*arguments, code=code, given=None, **environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def _mask() -> int:
    """Returns the mode mask of new files of this process. `os.umask` would change it for all threads."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask"))
