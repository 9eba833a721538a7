"""The command `hoplite`, run as a shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys

from support import SOON

COMMAND = [sys.executable, "-m", "hoplite.tools.cli"]


def run_bytes(
    *arguments: object, code: int = 0, given: bytes | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end; what failed has said what to try.

    Args:
        arguments: of the command.
        code: with which it must end.
        given: its input.
        environment: variables that differ from this process's.
    """
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env={**os.environ, **environment},
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == code, done.stderr.decode()
    # A command of commands, called without any, prints its help instead.
    if code and b"\nCommands:" not in done.stderr:
        assert done.stderr.splitlines()[-1].startswith(b"try: "), done.stderr.decode()
    return done


def run(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same of a command that prints text."""
    done = run_bytes(*arguments, code=code, given=None, **environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
