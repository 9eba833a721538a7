"""The example examples/rl_weights: every sampler that was added delivers rollouts, and the program ends by itself."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.rl, pytest.mark.long, pytest.mark.timeout(480)]

PROGRAM = Path(__file__).parent.parent / "examples" / "rl_weights" / "run.py"
HAS_RAY = importlib.util.find_spec("ray") is not None


def test_samplers_are_killed_and_added_while_the_policy_learns() -> None:
    done = subprocess.run([sys.executable, PROGRAM, "5"], capture_output=True, text=True, timeout=460, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.partition("\nsampler")[2].splitlines()[1:]
    # Each row has a cell for each system: "1 (  2)     9.8 ms".
    assert [row.split()[0] for row in rows] == ["a", "b", "c", "d", "e"]
    assert {row.count(" ms") for row in rows} == {2 if HAS_RAY else 1}
    assert ("this column is missing: Ray is not installed" in done.stdout) is not HAS_RAY
