"""The script that finds circular imports between files of a crate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CIRCLES = Path(__file__).parent.parent / ".ci" / "circles.py"

# A crate without circular imports: `lib` < `low` < `folder/middle` < `folder/high`.
SOUND = {
    "lib.rs": "mod folder;\nmod low;\npub use self::folder::high::High;\n",
    "low.rs": "pub struct Low;\n#[cfg(test)]\nmod tests {\n    use crate::folder::high::High;\n}\n",
    "folder/mod.rs": "pub mod high;\npub mod middle;\n",
    "folder/middle.rs": "use crate::low::{self, Low};\n// Not crate::folder::high::High.\n",
    "folder/high.rs": "use super::middle::Middle;\nuse crate::{\n    low::Low,\n    folder::{middle::Of as It},\n};\n",
}


def circles(tmp_path: Path, **more: str) -> tuple[int, str]:
    """Runs the script over a crate, with lines inserted at the start of some files."""
    for name, text in SOUND.items():
        file = tmp_path / "src" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(more.get(file.stem, "") + text)
    done = subprocess.run([sys.executable, CIRCLES, tmp_path], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_a_crate_without_circular_imports_passes(tmp_path: Path) -> None:
    assert circles(tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("file", "line", "members"),
    [
        ("low", "use crate::folder::high::High;", {"low.rs", "folder/high.rs"}),
        ("middle", "use super::{high::{self, High}};", {"folder/middle.rs", "folder/high.rs"}),
        ("low", "type It = crate::folder::middle::Middle;", {"low.rs", "folder/middle.rs"}),
        ("low", "use crate::High;", {"low.rs", "lib.rs"}),
    ],
)
def test_a_circular_import_is_found_and_its_files_are_named(
    tmp_path: Path, file: str, line: str, members: set[str]
) -> None:
    code, message = circles(tmp_path, **{file: line + "\n"})
    assert code == 1
    assert members <= set(message.split()), message


def test_this_repository_has_no_circular_imports() -> None:
    done = subprocess.run(
        [sys.executable, CIRCLES], cwd=CIRCLES.parent.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
