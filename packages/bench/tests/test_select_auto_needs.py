"""The backend "hoplite_auto" without PyTorch: an error that names what to install."""

from __future__ import annotations

import subprocess
import sys


def test_a_missing_torch_is_named_with_what_to_install() -> None:
    program = "import sys; sys.modules['torch'] = None; import hoplite_bench.select.torch_auto"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert "HopliteError: hoplite_auto needs PyTorch, which can't be imported" in done.stderr
    assert "pip install 'numpy>=1.24' 'torch>=1.13'" in done.stderr
