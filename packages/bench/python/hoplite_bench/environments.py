"""Virtual environments of the measured systems: one for each, because their launchers conflict.

Does not depend on what is installed. Several benches, or several hosts with one home directory, may use it at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hoplite_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The step of an error about a missing environment, for commands that install by default.
STEP = "omit --no-install to install it"
# Ray, the largest, takes half a minute with a fast connection.
INSTALL_TIMEOUT_S = 600.0


class Environments:
    """The folder of all environments.

    Args:
        root: the folder; created if it does not exist. None is $XDG_CACHE_HOME/hoplite/bench.
        install: whether missing packages may be downloaded from a package index.
    """

    def __init__(self, root: Path | None = None, *, install: bool = True) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.root = root or Path(cache) / "hoplite" / "bench"
        self.install = install

    def python(self, name: str, requirements: Sequence[str]) -> Path:
        """Returns the interpreter of an environment with exactly these requirements; creates it if necessary.

        Args:
            name: name of the environment.
            requirements: requirements in pip's syntax, with exact versions.

        Raises:
            Unavailable: the package index can't be reached, or does not have them for this Python.
        """
        folder = self.root / f"{name}-python{sys.version_info.major}.{sys.version_info.minor}"
        python = folder / "bin" / "python"
        wanted = "\n".join(requirements) + "\n"
        with self.lock(name):
            done = folder / "requirements.txt"
            if done.exists() and done.read_text() == wanted:
                return python
            if not self.install:
                raise Unavailable(f"{name} is not installed in {folder}: {STEP}")
            shutil.rmtree(folder, ignore_errors=True)
            self.command([sys.executable, "-m", "venv", folder], f"can't create the environment {folder}")
            self.command(
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
                f"pip can't install {' '.join(requirements)}",
            )
            # Written last, so that an incomplete environment is created again.
            done.write_text(wanted)
        return python

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[Path]:
        """Locks a folder under the root for one process at a time; yields the root."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self.root

    def command(self, argv: Sequence[str | Path], failure: str) -> None:
        """Runs a command of an installation until it ends.

        Raises:
            Unavailable: it failed; with `failure` and the last line of its output.
        """
        try:
            subprocess.run(
                argv, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, stdin=subprocess.DEVNULL
            )
        except subprocess.CalledProcessError as error:
            lines = [line for line in f"{error.stdout}\n{error.stderr}".splitlines() if line.strip()]
            raise Unavailable(f"{failure}: {lines[-1] if lines else f'exit status {error.returncode}'}") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{failure}: {error}") from None
