"""The Ray examples of README.md and docs/ray.md run unchanged, in a cluster of one node."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rays import QUIET, RAY_SOON

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^<!-- example: ray -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A new local cluster, a store that fits this machine, and workers without output.
INIT = "ray.init(address='local', num_cpus=2, object_store_memory=100_000_000, log_to_driver=False)"


@pytest.mark.parametrize("page", ["README.md", "docs/ray.md"])
def test_examples_run(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    program, count = re.subn(r"^ray\.init\(\)", INIT, "".join(blocks), flags=re.MULTILINE)
    assert count == 1
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Ray finds tasks by their module, as in a user's program.
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=2 * RAY_SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_example_applications_are_correct_with_and_without_hoplite() -> None:
    init = {"address": "local", "num_cpus": 4, "object_store_memory": 100_000_000, "log_to_driver": False}
    folder = ROOT / "examples" / "ray_apps"
    done = subprocess.run(
        [sys.executable, "run.py", "--size", "20000", "--workers", "2", "--steps", "4", "--init", json.dumps(init)],
        cwd=folder,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=8 * RAY_SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    apps = sorted(found.parent.name for found in folder.glob("*/plain.py"))
    assert len(apps) == 6
    lines = done.stdout.splitlines()
    assert len(lines) == 3 * len(apps)
    for app, (plain, ours, changed) in zip(apps, zip(*[iter(lines)] * 3, strict=True), strict=True):
        assert plain.startswith(f"{app}, plain Ray: ")
        assert ours.startswith(f"{app}, Ray with Hoplite: ")
        assert plain.endswith("result verified") and ours.endswith("result verified")  # noqa: PT018
        assert changed.startswith(f"{app}, changed lines: ")
        assert f"[{app}]({app})" in (folder / "README.md").read_text()
    # docs/ray.md quotes this number.
    number = lines[2].partition(": ")[2]
    assert f" {number}." in (ROOT / "docs" / "ray.md").read_text()
