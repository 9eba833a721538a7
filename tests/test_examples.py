"""Each program of examples/ answers one question on one screen, prints what its comments show, and is in the index."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support import SOON

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def expected(text: str) -> list[str]:
    """Returns the lines that comments after `print` show. "..." matches anything."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE)


# Those that serve HTTP need its extra.
MARKED = [
    pytest.param(file, id=file.stem, marks=[pytest.mark.operations] if "http=" in file.read_text() else [])
    for file in EXAMPLES
]


@pytest.mark.parametrize("example", MARKED)
def test_an_example_prints_what_it_shows(example: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    done = subprocess.run(
        [sys.executable, example],
        cwd=tmp_path,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "r")},
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = expected(example.read_text())
    assert lines
    pattern = "\n".join(".*".join(map(re.escape, line.split("..."))) for line in lines)
    assert re.fullmatch(pattern, done.stdout.rstrip("\n")), done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_one_question_and_one_screen(example: Path) -> None:
    lines = example.read_text().splitlines()
    assert len(lines) <= 40
    question = re.match(r'"""(.*?\?) ', lines[0])
    assert question, lines[0]
    assert f"| {question[1]} | [{example.name}]({example.name}) |" in (FOLDER / "README.md").read_text()


def test_the_index_has_every_example() -> None:
    linked = set(re.findall(r"\]\(([\w/]+(?:\.py)?)\)", (FOLDER / "README.md").read_text()))
    folders = {file.parent.name for file in FOLDER.glob("*/README.md")}
    assert linked == {file.name for file in EXAMPLES} | folders
