"""Compares an extension module with its stub, using mypy's stubtest."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


def differences(module: str, allowed: str = "") -> str:
    """Returns the differences that stubtest reports; empty if they agree.

    Args:
        module: the extension.
        allowed: a pattern of names that may differ.
    """
    config = Path(__file__).parent.parent / "pyproject.toml"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "allowed"
        file.write_text(f"{allowed}\n")
        options = ["--ignore-unused-allowlist", "--allowlist", str(file), "--mypy-config-file", str(config)]
        command = [sys.executable, "-m", "mypy.stubtest", module, *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout
