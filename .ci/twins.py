#!/usr/bin/env python3
"""Writes python/hoplite/_sync, the verbs for threads, from python/hoplite/_aio, those for asyncio.

`.ci/twins.py` writes them, `.ci/twins.py --check` fails if they are not what would be written. unasync replaces the
same tokens, but neither the suffix of a name nor a section of a docstring, and it has no check.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "python" / "hoplite"
SOURCE, TARGET = PACKAGE / "_aio", PACKAGE / "_sync"

NOTICE = "# Made of {} by `make twins`: edit that."

RULES = (
    # What is said of asyncio alone.
    (r"\n\n +Asyncio:\n(?: {12}.*\n)+", "\n"),
    (r"\basync (?=def|for|with)", ""),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"(?<=\w)_async\b", ""),
    (r"\b_aio\b", "_sync"),
)


def made_of(file: Path) -> str:
    """The file for threads, formatted."""
    text = file.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    text = f"{NOTICE.format(f'_aio/{file.name}')}\n{text}"
    for command in (["check", "--select", "I,F401", "--fix", "--quiet"], ["format", "--quiet"]):
        ruff = [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(TARGET / file.name), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    """Writes the files, or checks them."""
    stale = [file.name for file in sorted(SOURCE.glob("[a-z]*.py")) if _differs(file)]
    if "--check" not in sys.argv[1:]:
        for name in stale:
            (TARGET / name).write_text(made_of(SOURCE / name))
        return 0
    for name in stale:
        sys.stderr.write(f"_sync/{name} is not what _aio/{name} says: run make twins\n")
    return 1 if stale else 0


def _differs(file: Path) -> bool:
    target = TARGET / file.name
    return not target.exists() or target.read_text() != made_of(file)


if __name__ == "__main__":
    sys.exit(main())
