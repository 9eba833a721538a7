"""The script that adds up the results of all test runners; a runner without a result counts as a failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COUNT = Path(__file__).parent.parent / ".ci" / "count"

CARGO = """
running 3 tests
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s

running 2 tests
test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
"""
PYTEST = "==== 2 failed, 10 passed, 3 skipped, 4 deselected, 1 error in 65.02s (0:01:05) ====\n"
GREEN = "============== 7 passed in 0.10s ===============\n"
PLAIN = "seed 3: failed\n498 passed, 2 failed\n"


def count(tmp_path: Path, *logs: str) -> tuple[int, str, str]:
    """Runs the script over logs with these texts. Returns its exit code, its sums and what it reports as wrong."""
    (tmp_path / "begun").touch()
    paths = [tmp_path / str(number) for number in range(len(logs))]
    for path, log in zip(paths, logs, strict=True):
        path.write_text(log)
    done = subprocess.run([sys.executable, COUNT, *paths], capture_output=True, text=True, check=False)
    minutes, _, sums = done.stdout.partition("\n")
    assert minutes == "minutes: " + ", ".join(f"{path.name} 0.0" for path in paths)
    return done.returncode, sums, done.stderr


def test_all_runners_are_added_up(tmp_path: Path) -> None:
    assert count(tmp_path, CARGO, PYTEST, PLAIN)[:2] == (1, "512 passed, 6 failed, 4 skipped\n")


def test_a_run_without_failures_succeeds(tmp_path: Path) -> None:
    assert count(tmp_path, GREEN, "500 passed, 0 failed\n") == (0, "507 passed, 0 failed, 0 skipped\n", "")


def test_a_runner_without_a_result_fails(tmp_path: Path) -> None:
    code, summary, why = count(tmp_path, GREEN, "error: could not compile\n")
    assert (code, summary) == (1, "7 passed, 0 failed, 0 skipped\n")
    assert why.endswith("1 has no closing line: check why its runner tested nothing\n")
