"""The public API as type checkers see it: a program that uses every verb passes mypy --strict and strict pyright."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite
from support import SOON

# A type checker takes ten seconds of a whole core.
CHECK_S = 150
pytestmark = pytest.mark.timeout(2 * CHECK_S)

PROGRAM = Path(__file__).parent / "user_program.py"

# Methods of a client that are not verbs.
OTHERS = {"node", "job", "socket", "closed", "close"}


def checked(*command: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=CHECK_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_with_every_verb_passes_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    # Without this project's settings, as in a user's project.
    checked("mypy", "--strict", "--config-file", "/dev/null", "--cache-dir", tmp_path, PROGRAM)


def test_a_program_with_every_verb_passes_pyright(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    config = {"typeCheckingMode": "strict", "include": [str(PROGRAM)], "venv": None}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({key: value for key, value in config.items() if value}))
    checked("basedpyright", "--pythonpath", sys.executable, "--project", tmp_path)


def test_the_program_runs() -> None:
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=SOON, check=True)
    assert done.stdout.splitlines()[0] == "20.0 16.0"


def test_the_program_uses_every_verb_and_there_are_fewer_than_fifty() -> None:
    verbs = {name for name in dir(hoplite.Client) if not name.startswith("_")} - OTHERS
    used = set(re.findall(r"\bhp\.(\w+)\(", PROGRAM.read_text()))
    assert verbs <= used
    functions = [name for name in hoplite.__all__ if name.islower()]
    assert len(verbs) + len(functions) < 50
