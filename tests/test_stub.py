"""The stub of the extension says what the extension has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_stub_agrees_with_the_extension(tmp_path: Path) -> None:
    """By mypy's stubtest; only the buffer protocol, which Python 3.11 has in C alone, is not to be seen there."""
    allowed = tmp_path / "allowed"
    allowed.write_text("hoplite._native.(View|Space).__(release_)?buffer__\n")
    config = Path(__file__).parent.parent / "pyproject.toml"
    options = ["--ignore-unused-allowlist", "--allowlist", str(allowed), "--mypy-config-file", str(config)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "hoplite._native", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
