"""The command line: runs the plan, compares with Gloo and prints the verdict.

They are not tests of this repository, so the last line has a form of its own. Tests that Gloo skips or fails as well
are not counted.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from torch_suites import plan, pool, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

    from torch_suites.pool import Result
    from torch_suites.verdict import Verdict


class Bench:
    """Runs tests with one implementation after another, and writes down each result."""

    def __init__(self, jobs: int, folder: Path, results: TextIO) -> None:
        self.jobs = jobs
        self.folder = folder
        self._results = results

    def attempt_all(self, run: plan.Run, implementation: str, tests: Iterable[str]) -> dict[str, Result]:
        """Attempts each test in all ways of a run, until one of them does not skip it."""
        results: dict[str, Result] = {}
        pending = list(tests)
        for attempt in run.attempts(implementation):
            start = time.monotonic()
            found = pool.run(run.suite, attempt, run.start, pending, self.jobs, self.folder)
            for result in found:
                results[result.test] = result
                row = vars(result) | {"suite": run.suite, "start": run.start, "attempt": str(attempt)}
                self._results.write(json.dumps(row) + "\n")
                self._results.flush()
            pending = [r.test for r in found if r.outcome == "skipped" and plan.may_run_elsewhere(r.reason)]
            say(f"  {attempt}: {counts(found)}; {time.monotonic() - start:.0f} s")
        return results

    def judge(self, run: plan.Run, backend: str, tests: Iterable[str]) -> Verdict:
        """Runs tests with a backend, and those that do not pass with Gloo, and prints what follows."""
        results = self.attempt_all(run, backend, tests)
        outcomes = {test: result.outcome for test, result in results.items()}
        if backend == "gloo":
            found = verdict.judge(outcomes, dict.fromkeys(outcomes, "failed"))
            found.problems = {test: "failed" for test, outcome in outcomes.items() if outcome == "failed"}
        else:
            others = [test for test, result in results.items() if may_pass_with_gloo(result)]
            gloo = {test: result.outcome for test, result in self.attempt_all(run, "gloo", others).items()}
            found = verdict.judge(outcomes, {test: gloo.get(test, "skipped") for test in outcomes})
        for test, problem in found.problems.items():
            say(f"  PROBLEM: {test} {problem}: {last_line(results[test].reason)} [{results[test].attempt}]")
        say(f"  {len(found.unsupported)} tests need an accelerator or another backend: Gloo does not pass them either")
        return found


def may_pass_with_gloo(result: Result) -> bool:
    """Returns whether Gloo may pass a test that did not pass."""
    return result.outcome == "failed" or (result.outcome == "skipped" and plan.may_run_elsewhere(result.reason))


def say(line: str) -> None:
    """Prints a line at once."""
    print(line, flush=True)  # noqa: T201


def counts(results: Iterable[Result]) -> str:
    """Counts results by their outcome."""
    total = Counter(result.outcome for result in results)
    return ", ".join(f"{total[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))


def last_line(reason: str) -> str:
    """Returns the error of a traceback: its last line that is neither empty nor advice of PyTorch."""
    advice = ("To execute", "python ", "This message", "Exception raised from")
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith(advice)), "")[:300]


def main() -> int:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(prog="torch_suites", description=__doc__)
    parser.add_argument("--backend", choices=["hoplite", "gloo"], default="hoplite", help="backend under test")
    parser.add_argument(
        "--only", metavar="PATTERN", default="*", help="run tests that match, such as '*.test_reduce_*'"
    )
    parser.add_argument("--jobs", type=int, default=2, help="tests that run at once")
    parser.add_argument("--out", type=Path, default=Path("target/torch-suites"), help="folder for results and logs")
    options = parser.parse_args()

    options.out.mkdir(parents=True, exist_ok=True)
    passed = failed = 0
    with (options.out / "results.jsonl").open("w") as rows:
        bench = Bench(options.jobs, options.out, rows)
        for run in plan.RUNS:
            tests = pool.list_tests(run.suite, run.attempts("gloo")[0], options.out / "ranks-0.log")
            tests = [test for test in tests if fnmatch.fnmatch(test, options.only)]
            say(f"{run.suite}: {len(tests)} tests, ranks start by {run.start}")
            found = bench.judge(run, options.backend, tests)
            passed += len(found.passed)
            failed += len(found.problems)
    say(f"PyTorch's suites: {passed} as expected, {failed} unexpected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
