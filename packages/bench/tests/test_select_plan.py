"""A plan: its rules by size, and its JSON both ways; anything else is refused with the name of the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hoplite.errors import InvalidArgument
from hoplite_bench.select.plan import BadPlan, Candidate, Plan, Rule

RING = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}
PLAN = Plan(
    fingerprint="f00d",
    arch="allreduce",
    nbytes=2**20,
    ranks=2,
    layer="shell",
    rules=(
        Rule("allreduce", 4096, "gloo", "default", {}, 1e-4),
        Rule("allreduce", None, "mpich", "ring", RING, 2e-3),
        Rule("broadcast", None, "hoplite", "default", {}, 1e-3),
    ),
    candidates=(
        Candidate("mpich", "ring", "allreduce", 2**20, 2e-3, 0.04, "chosen", "fastest"),
        Candidate("ucc", "default", "allreduce", 2**20, None, None, "unavailable", "not installed"),
    ),
    cached=False,
)


@pytest.mark.parametrize(
    ("op", "nbytes", "system"),
    [("allreduce", 4, "gloo"), ("allreduce", 4095, "gloo"), ("allreduce", 4096, "mpich"), ("broadcast", 4, "hoplite")],
)
def test_the_rule_of_a_size_is_the_first_whose_limit_is_above_it(op: str, nbytes: int, system: str) -> None:
    assert PLAN.rule(op, nbytes).system == system


def test_an_operation_without_rules_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no rule for 'gather', only for allreduce, broadcast"):
        PLAN.rule("gather", 4)


def test_json_holds_the_contract_and_the_whole_plan() -> None:
    found = json.loads(json.dumps(PLAN.to_json()))
    assert found["choice"]["allreduce"]["library"] == "mpich"
    assert found["choice"]["allreduce"]["settings"] == RING
    assert {"library", "seconds", "spread", "state", "reason"} <= found["candidates"][0].keys()
    assert (found["cached"], found["fingerprint"]) == (False, "f00d")
    assert Plan.from_json(found) == PLAN


def put(path: str, value: object) -> object:
    """The plan's JSON with one value replaced, or deleted if it is None."""
    found = json.loads(json.dumps(PLAN.to_json()))
    inner: Any = found
    *keys, last = (int(key) if key.isdigit() else key for key in path.split("/"))
    for key in keys:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the plan is not a JSON object but list"),
        (put("choice/allreduce/rules/0/below", None), "a rule of allreduce lacks the field below"),
        (put("choice/allreduce/rules/0/below", -4), "below of a rule of allreduce is -4"),
        (put("choice/allreduce/rules/0/settings", {"A": 1}), "settings of a rule of allreduce"),
        (put("choice/allreduce/rules/0/seconds", float("inf")), "seconds of a rule of allreduce is inf"),
        (put("choice/allreduce/rules/0/color", "red"), "unknown fields: color"),
        (put("choice/allreduce/rules/1/below", 5), r"limits of the rules for allreduce are \[4096, 5\]"),
        (put("choice/allreduce/rules", []), "no rule for allreduce"),
        (put("candidates/0/state", "great"), "unknown state 'great'"),
        (put("arch", "ring"), "unknown architecture 'ring': set one of ps, allreduce"),
        (put("bytes", 6), "6 bytes are not an array of float32"),
        (put("ranks", 1), "1 rank has no peers"),
        (put("fingerprint", None), "the plan lacks the field fingerprint"),
    ],
)
def test_what_is_not_a_plan_is_refused(value: object, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        Plan.from_json(value)


def test_a_plan_is_cut_if_the_budget_left_something_out() -> None:
    assert not PLAN.is_cut
    one = PLAN.candidates[0]
    left = replace(one, state="dropped", reason="not measured: the budget of 3 s was spent", seconds=None, spread=None)
    assert replace(PLAN, candidates=(left,)).is_cut
    # A prediction for a size that was too large.
    assert replace(PLAN, candidates=(replace(one, spread=None),)).is_cut


def test_limits_must_ascend() -> None:
    twice = (*PLAN.rules[:1], *PLAN.rules[:2])
    with pytest.raises(InvalidArgument, match="must ascend"):
        replace(PLAN, rules=twice)
