"""The judgement over PyTorch's own tests: which outcomes fail the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from torch_suites import plan, verdict

if TYPE_CHECKING:
    from pathlib import Path


def test_a_test_that_only_gloo_passes_fails_the_run_unless_it_is_listed() -> None:
    outcomes = {"T.good": "passed", "T.bad": "failed", "T.absent": "skipped", "T.listed": "failed", "T.gpu": "skipped"}
    gloo = {"T.bad": "passed", "T.absent": "passed", "T.listed": "passed", "T.gpu": "skipped"}
    found = verdict.judge(outcomes, gloo, {"T.listed": "why"})
    assert (found.passed, found.expected, found.unsupported) == (["T.good"], ["T.listed"], ["T.gpu"])
    assert found.problems == {"T.bad": "failed, and Gloo passes it", "T.absent": "skipped, and Gloo passes it"}


def test_a_listed_test_that_passes_fails_the_run() -> None:
    found = verdict.judge({"T.listed": "passed"}, {}, {"T.listed": "why"})
    assert found.problems == {"T.listed": "passed, so remove it from the list of expected failures"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[expected]]\ntest = "T.a"\n', "T.a has no reason"),
        ('[[expected]]\ntest = "T.a"\nreason = "r"\n[[expected]]\ntest = "T.a"\nreason = "r"\n', "T.a is listed twice"),
    ],
)
def test_the_list_needs_one_reason_for_each_test(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "expected.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=problem):
        verdict.read_expected(file)


def test_attempts_with_gloo_have_no_attempt_twice() -> None:
    run = plan.Run("distributed", (("own", 4), ("gloo", 4), ("mpi", 4)))
    assert [str(attempt) for attempt in run.attempts("gloo")] == ["gloo, 4 ranks", "gloo in place of mpi, 4 ranks"]
    assert [str(attempt) for attempt in run.attempts("hoplite")] == [
        "hoplite, 4 ranks",
        "hoplite in place of gloo, 4 ranks",
        "hoplite in place of mpi, 4 ranks",
    ]


@pytest.mark.parametrize(
    ("reason", "elsewhere"),
    [
        ("Only gloo backend supports timeouts", True),
        ("Skipped due to small world size.", True),
        ("Need at least 4 accelerator devices", False),
        ("Only Nccl supports CUDA reduce", False),
    ],
)
def test_a_reason_to_skip_decides_whether_another_attempt_may_run(reason: str, *, elsewhere: bool) -> None:
    assert plan.may_run_elsewhere(reason) is elsewhere
