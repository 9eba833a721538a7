"""The start of a command that `commands` forks. Each fork imports this file, so it imports only what the server has."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def command(words: list[str], environment: dict[str, str], folder: Path, mask: int, files: list[str]) -> None:
    """Turns a fork of the server into the process of a command, with what it would inherit from its parent."""
    os.umask(mask)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, (file, flags) in enumerate(zip(files, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)):
        opened = os.open(file, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.argv = open(0, closefd=False), words  # noqa: SIM115 - standard input
    # Imported by the server.
    from hoplite.tools.cli import main

    try:
        main()
    finally:
        # multiprocessing ends a process without this.
        atexit._run_exitfuncs()
