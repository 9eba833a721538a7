"""Judges the results of a backend by Gloo's. It knows neither torch nor processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Verdict:
    """Tests by what their outcomes mean.

    Attributes:
        passed: Tests that passed.
        unsupported: Tests that Gloo does not pass here either.
        problems: What is wrong with each test that must be fixed.
    """

    passed: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)


def judge(outcomes: Mapping[str, str], gloo: Mapping[str, str]) -> Verdict:
    """Judges one run of a suite.

    Args:
        outcomes: Outcome of each test: "passed", "skipped" or "failed".
        gloo: Gloo's outcome of each test that did not pass.
    """
    verdict = Verdict()
    for test, outcome in outcomes.items():
        if outcome == "passed":
            verdict.passed.append(test)
        elif gloo[test] == "passed":
            verdict.problems[test] = f"{outcome}, and Gloo passes it"
        else:
            verdict.unsupported.append(test)
    return verdict
