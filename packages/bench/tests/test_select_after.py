"""After a selection: drift from the predicted times, regret against measured rows, and advice. All pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench_rows import row
from hoplite_bench.select.advice import advice
from hoplite_bench.select.plan import Candidate, Plan, Rule
from hoplite_bench.select.regret import BadRows, regrets
from hoplite_bench.select.request import Request
from hoplite_bench.select.watch import COUNT_MIN, Watch

SIZES = {1024: 0.001, 2**20: 0.1}
PLAN = Plan(
    "f00d",
    "allreduce",
    2**20,
    2,
    "shell",
    (Rule("allreduce", None, "gloo", "default", {}, 0.1),),
    tuple(Candidate("gloo", "default", "allreduce", size, time, 0.1, "chosen", "") for size, time in SIZES.items()),
    cached=True,
)


# -- Drift -------------------------------------------------------------------------------------------------------------


def watched(*factors: float, nbytes: int = 2**20) -> str:
    """Observes multiples of the predicted time."""
    watch = Watch(PLAN)
    for factor in factors:
        watch.observe("allreduce", nbytes, factor * watch.predicted("allreduce", nbytes))
    return watch.stale()


def test_predictions_lie_between_the_measured_sizes() -> None:
    watch = Watch(PLAN)
    assert watch.predicted("allreduce", 4) == 0.001
    assert 0.001 < watch.predicted("allreduce", 2**19) < 0.1
    assert watch.predicted("allreduce", 2**20) == pytest.approx(0.1)


@pytest.mark.parametrize("factor", [0.2, 1.0, 1.2])
def test_times_below_or_near_the_predicted_ones_do_not_make_a_plan_stale(factor: float) -> None:
    assert watched(*[factor] * 100) == ""


def test_lasting_slowness_makes_a_plan_stale() -> None:
    assert watched(*[1.5] * COUNT_MIN) == "allreduce takes 1.50 times the predicted time"
    assert watched(*[1.0] * 50, *[1.5] * 50).startswith("allreduce takes ")


def test_a_few_slow_operations_do_not() -> None:
    assert watched(*[10.0] * (COUNT_MIN - 1)) == ""
    assert watched(*[1.0] * 50, 3.0, *[1.0] * 10, 3.0) == ""


def test_what_recovers_is_valid_again() -> None:
    assert watched(*[2.0] * 50, *[1.0] * 50) == ""


def test_another_environment_makes_a_plan_stale_at_once() -> None:
    watch = Watch(PLAN)
    assert watch.stale("f00d") == ""
    assert watch.stale("beef") == "the environment is not that of the plan"


# -- Regret ------------------------------------------------------------------------------------------------------------


def measured(system: str, seconds: float, **fields: Any) -> Any:  # noqa: ANN401 - fields of a row
    usual = {"hosts": 2, "op": "allreduce", "bytes": 2**20, "lab": {"kind": "study", "container": "bare"}}
    return row(**{"system": system, "samples": [seconds], **usual, **fields})


def test_regret_compares_the_choice_with_the_fastest_row_and_the_default() -> None:
    rows = [
        measured("gloo", 1.0),
        measured("mpich", 0.8),
        measured("mpich", 2.0, variant="ring"),
        # None of these is of the plan.
        measured("wire", 0.1, variant="stream"),
        measured("torch-gloo", 0.1),
        measured("hoplite", 0.1, op="broadcast"),
        replace(measured("hoplite", 0.1), hosts=3),
        measured("hoplite", 0.1, lab={"kind": "study", "container": "cross"}),
        measured("hoplite", 0.1, lab={"kind": "lab", "rate": "1gbit"}),
        measured("hoplite", 0.1, lab={"kind": "hosts", "names": ["a", "b"]}),
        measured("hoplite", 0.1, lab={"kind": "hosts", "names": ["a", "c"]}),
    ]
    (found,) = regrets(PLAN, rows, container="bare")
    assert (found.op, found.nbytes, found.chosen, found.best) == ("allreduce", 2**20, "gloo default", "mpich default")
    assert found.regret == pytest.approx(0.25)
    assert found.to_default == pytest.approx(1.25)
    (found,) = regrets(PLAN, rows, container="bare", names=["a", "b"])
    assert found.best == "hoplite default"


def test_rows_of_other_places_alone_are_refused() -> None:
    rows = [measured("gloo", 1.0)]
    for options, place in (
        ({"container": "cross"}, "in the container set-up cross: measure these with hoplite study"),
        ({"container": "bare", "names": ["a", "b"]}, "in the hosts a, b: measure these with hoplite bench --hosts"),
    ):
        with pytest.raises(BadRows, match=f"no row is of allreduce with 2 ranks {place}"):
            regrets(PLAN, rows, **options)


def test_two_rows_of_one_candidate_are_refused() -> None:
    with pytest.raises(BadRows, match="two rows are of gloo default, allreduce of 1048576 bytes with 2 ranks"):
        regrets(PLAN, [measured("gloo", 1.0), measured("gloo", 2.0)], container="bare")


def test_what_the_plan_excludes_is_not_the_best() -> None:
    hangs = Candidate("mpich", "default", "allreduce", 2**20, None, None, "excluded", "hangs")
    plan = replace(PLAN, candidates=(*PLAN.candidates, hangs))
    (found,) = regrets(plan, [measured("gloo", 1.0), measured("mpich", 0.8)], container="bare")
    assert found.regret == 0


def test_a_cell_without_a_row_of_the_choice_has_no_regret() -> None:
    (found,) = regrets(PLAN, [measured("mpich", 0.8)], container="bare")
    assert (found.seconds, found.regret, found.to_default) == (None, None, None)


# -- Advice ------------------------------------------------------------------------------------------------------------

GOOD = {"cores": 8, "limits": {"cpus": None}, "shared memory": {"mib": 64000}, "namespaces": {"ipc": True}}


def advised(environment: dict[str, Any] | None = None, **fields: Any) -> list[str]:  # noqa: ANN401
    request = Request("allreduce", 2**20, 2, container=fields.pop("container", "bare"))
    return advice(replace(PLAN, **fields), request, {**GOOD, **(environment or {})})


def test_a_good_environment_needs_no_advice() -> None:
    assert advised() == []


@pytest.mark.parametrize(
    ("environment", "fields", "text"),
    [
        ({"shared memory": {"mib": 1}}, {}, "/dev/shm has 1 MiB, and the arrays of 2 ranks take 4 MiB"),
        ({"namespaces": {"ipc": False}}, {}, "--ipc=host"),
        ({}, {"container": "cross"}, "--ipc=host"),
        ({"limits": {"cpus": 1.0}}, {}, "2 ranks share 1 processors"),
        ({"cores": 1}, {}, "2 ranks share 1 processors"),
    ],
)
def test_what_slows_the_operations_is_named_with_the_fix(
    environment: dict[str, Any], fields: dict[str, Any], text: str
) -> None:
    (found,) = advised(environment, **fields)
    assert text in found


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("excluded", "hangs when a peer is frozen (gather)", "mpich did not survive a failed peer"),
        ("unavailable", "not installed", "mpich can't run here"),
        ("dropped", "not measured: the budget of 3 s was spent", "a larger --budget measures again"),
    ],
)
def test_candidates_that_are_not_eligible_lead_to_advice(state: str, reason: str, text: str) -> None:
    lost = Candidate("mpich", "default", "allreduce", 2**20, None, None, state, reason)
    (found,) = advised(candidates=(*PLAN.candidates, lost))
    assert text in found
