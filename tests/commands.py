"""Runs the `hoplite` command as a shell does."""

from __future__ import annotations

import os
import subprocess
import sys

from support import SOON

COMMAND = [sys.executable, "-m", "hoplite.tools.cli"]


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
    # A command group without a subcommand prints its help instead.
    if code and b"\nCommands:" not in done.stderr:
        assert done.stderr.splitlines()[-1].startswith(b"try: "), done.stderr.decode()
    return done


def run(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that prints text."""
    done = run_bytes(*arguments, code=code, given=None, **environment)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
