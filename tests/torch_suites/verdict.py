"""Judges the results of a backend: compares them with Gloo's and with the list of expected failures.

It knows neither torch nor processes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass
class Verdict:
    """Tests by what their outcomes mean.

    Attributes:
        passed: Tests that passed.
        expected: Tests that only Gloo passed, and that are listed.
        unsupported: Tests that Gloo does not pass here either.
        problems: What is wrong with each test that must be fixed, or whose entry in the list must.
    """

    passed: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def read_expected(path: Path) -> dict[str, str]:
    """Reads the list of expected failures.

    Returns:
        The reason for each test.

    Raises:
        ValueError: A reason is missing, or a test is listed twice.
    """
    expected: dict[str, str] = {}
    for entry in tomllib.loads(path.read_text())["expected"]:
        test, reason = entry["test"], entry.get("reason", "").strip()
        if not reason:
            raise ValueError(f"{path.name}: {test} has no reason: state why only Gloo passes it")
        if test in expected:
            raise ValueError(f"{path.name}: {test} is listed twice: remove one entry")
        expected[test] = reason
    return expected


def judge(outcomes: Mapping[str, str], gloo: Mapping[str, str], expected: Mapping[str, str]) -> Verdict:
    """Judges one run of a suite.

    Args:
        outcomes: Outcome of each test: "passed", "skipped" or "failed".
        gloo: Gloo's outcome of each test that did not pass.
        expected: Reason for each listed test; tests of other runs are ignored.

    Returns:
        The verdict.
    """
    verdict = Verdict()
    for test, outcome in outcomes.items():
        if outcome == "passed":
            verdict.passed.append(test)
            if test in expected:
                verdict.problems[test] = "passed, so remove it from the list of expected failures"
        elif gloo[test] != "passed":
            verdict.unsupported.append(test)
        elif test in expected:
            verdict.expected.append(test)
        else:
            verdict.problems[test] = f"{outcome}, and Gloo passes it"
    return verdict
