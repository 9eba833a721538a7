"""The programs of docs/lab.md run. They need root, so they are not among those that tests/test_docs.py runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from labs import needs_lab

pytestmark = pytest.mark.lab

PAGE = Path(__file__).parents[3] / "docs" / "lab.md"


@needs_lab
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "lab.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
