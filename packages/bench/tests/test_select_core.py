"""The pure parts of a selection: estimates, halving, curves, and the choice, on times that the tests make up."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from hoplite_bench.plan import Cell, Contender
from hoplite_bench.select.choice import HYSTERESIS, choose, ranges
from hoplite_bench.select.estimates import Estimate, estimate
from hoplite_bench.select.halving import RUNGS, BudgetTooSmall, Halving
from hoplite_bench.select.model import Curve, crossover

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def contender(system: str, variant: str = "default") -> Contender:
    return Contender(system, variant, variant)


A, B, C, D = map(contender, "abcd")
CELL = Cell("allreduce", 2**20)


def exact(seconds: float, spread: float = 0.01) -> Estimate:
    return Estimate(seconds, spread, 10)


# -- Estimates ---------------------------------------------------------------------------------------------------------


def test_more_samples_narrow_the_interval_although_all_are_equal() -> None:
    spreads = [estimate([2.0] * count).spread for count in (1, 2, 4, 8)]
    assert all(later < before for before, later in itertools.pairwise(spreads))
    assert spreads[-1] > 0


def test_an_outlier_moves_neither_the_estimate_nor_its_interval_by_much() -> None:
    assert estimate([1, 1, 1, 1, 100]) == estimate([1, 1, 1, 1, 1])


def test_scattered_samples_have_a_wider_interval() -> None:
    assert estimate([1, 2, 3, 4, 5]).spread > 2 * estimate([3, 3, 3, 3, 3]).spread


def test_an_interval_does_not_reach_below_zero() -> None:
    assert Estimate(1.0, 1.5, 2).low == 0


# -- Halving -----------------------------------------------------------------------------------------------------------


def run(
    halving: Halving, times: Mapping[Contender, float], *, cost_s: float = 0.1, start_s: float = 0.0, noise: float = 0.0
) -> list[tuple[Cell, Contender]]:
    """Measures until the end; the first measurement of a candidate takes longer. Returns the order."""
    spent = 0.0
    turns: list[tuple[Cell, Contender]] = []
    random_numbers = random.Random(1)
    while (following := halving.following(spent)) is not None:
        cell, one = following
        cost = cost_s + (start_s if one not in {before for _, before in turns} else 0)
        spent += cost
        halving.record(cell, one, times[one] * (1 + noise * random_numbers.random()), cost)
        turns.append(following)
    return turns


def test_a_clearly_slower_candidate_leaves_after_the_first_rung() -> None:
    halving = Halving({CELL: [A, B, C]}, 100)
    turns = run(halving, {A: 1.0, B: 1.01, C: 5.0})
    assert turns.count((CELL, C)) == RUNGS[0]
    assert halving.dropped[CELL, C] == "5.0 times the time of the fastest"
    assert turns.count((CELL, A)) == turns.count((CELL, B)) == RUNGS[-1]


def test_a_race_ends_when_the_intervals_separate() -> None:
    halving = Halving({CELL: [A, B]}, 100)
    turns = run(halving, {A: 1.0, B: 1.5})
    assert turns.count((CELL, A)) == RUNGS[1]
    assert list(halving.dropped) == [(CELL, B)]


def test_candidates_take_turns_in_each_rung() -> None:
    turns = run(Halving({CELL: [A, B, C]}, 100), {A: 1.0, B: 1.0, C: 1.0})
    for start in range(0, len(turns), 3):
        assert sorted(one.system for _, one in turns[start : start + 3]) == ["a", "b", "c"]


def test_the_faster_half_remains_where_the_budget_allows_no_more() -> None:
    halving = Halving({CELL: [A, B, C, D]}, 1.25)
    turns = run(halving, {A: 1.1, B: 1.0, C: 1.2, D: 1.3})
    assert [one for _, one in turns[:8]] == [A, B, C, D, A, B, C, D]
    assert {one for _, one in turns[8:]} == {A, B}
    assert halving.dropped[CELL, D] == "slower after 2 samples; the budget allows no more"
    assert len(turns) * 0.1 <= 1.25


def test_the_budget_is_kept_to_one_measurement() -> None:
    cells = {Cell(op, size): [A, B, C, D] for size in (2**20, 1024) for op in ("broadcast", "gather")}
    for budget in (1.0, 2.0, 3.0, 10.0):
        turns = run(Halving(cells, budget), dict.fromkeys((A, B, C, D), 1.0), noise=0.2)
        assert (len(turns) - 1) * 0.1 <= budget


def test_each_candidate_runs_all_operations_of_the_first_size_before_the_next_starts() -> None:
    cells = {Cell(op, size): [A, B] for size in (2**20, 1024) for op in ("broadcast", "gather")}
    turns = run(Halving(cells, 1000), {A: 1.0, B: 1.0})
    large, small = ([Cell(op, size) for op in ("broadcast", "gather")] for size in (2**20, 1024))
    assert turns[:4] == [(large[0], A), (large[1], A), (large[0], B), (large[1], B)]
    assert {cell for cell, _ in turns[4:8]} == set(large)
    assert {cell for cell, _ in turns[8:16]} == set(small)


def test_one_sample_that_other_load_slowed_does_not_drop_the_best() -> None:
    halving = Halving({CELL: [A, B]}, 100)
    for seconds in (50.0, 1.0):
        assert halving.following(0) == (CELL, A)
        halving.record(CELL, A, seconds, 0.1)
        assert halving.following(0) == (CELL, B)
        halving.record(CELL, B, 2.0, 0.1)
    assert halving.following(0) is not None
    assert halving.dropped == {}


def test_candidates_that_the_budget_does_not_reach_have_the_reason() -> None:
    halving = Halving({CELL: [A, B, C]}, 2.0)
    assert run(halving, {A: 1.0, B: 1.0}, start_s=1.5) == [(CELL, A), (CELL, B)]
    assert halving.dropped[CELL, C] == "not measured: the budget of 2 s was spent; set a larger --budget"
    assert list(halving.estimates(CELL)) == [A, B]


def test_a_race_is_cut_if_the_budget_ends_before_each_candidate_has_a_sample() -> None:
    other = Cell("allreduce", 4)
    halving = Halving({CELL: [A, B], other: [A, B]}, 0.45)
    run(halving, {A: 1.0, B: 1.0})
    assert [halving.is_cut(cell) for cell in (CELL, other)] == [False, True]


def test_a_budget_below_one_comparison_of_each_operation_states_what_it_takes() -> None:
    halving = Halving({Cell(op, 4): [A, B] for op in ("broadcast", "gather")}, 2.65)
    with pytest.raises(BudgetTooSmall, match=r"2.65 s is too small to compare candidates of broadcast, gather: set --"):
        run(halving, {A: 1.0, B: 1.0}, start_s=2.5)
    with pytest.raises(BudgetTooSmall, match=r"0.1 s .* of allreduce: set --budget to at least 6 s"):
        run(Halving({CELL: [A, B]}, 0.1), {A: 1.0, B: 1.0}, start_s=2.5)


def test_a_single_candidate_needs_no_comparison() -> None:
    assert run(Halving({CELL: [A]}, 0.1), {A: 1.0}, start_s=2.5) == [(CELL, A)]


def test_an_excluded_candidate_is_not_measured_again_and_has_no_estimate() -> None:
    other = Cell("allreduce", 4)
    halving = Halving({CELL: [A, B], other: [A, B]}, 100)
    assert halving.following(0) == (CELL, A)
    halving.exclude(A, "wrong result")
    turns = run(halving, {B: 1.0})
    assert {one for _, one in turns} == {B}
    assert list(halving.estimates(CELL)) == [B]
    assert halving.excluded == {A: "wrong result"}


def test_nothing_is_left_to_measure_when_all_are_excluded() -> None:
    halving = Halving({CELL: [A]}, 100)
    halving.exclude(A, "crash")
    assert halving.following(200) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_winner_costs_at_most_a_tenth_more_than_the_best(seed: int) -> None:
    # With a noise of up to 20 %, as on a shared machine.
    numbers = random.Random(seed)
    times = {one: numbers.choice((1.0, 1.02, 1.2, 2.0, 8.0)) for one in (A, B, C, D)}
    halving = Halving({CELL: [A, B, C, D]}, 10.0, seed=seed)
    run(halving, times, noise=0.2)
    winner, _ = choose(halving.estimates(CELL), default=None)
    assert times[winner] <= 1.1 * min(times.values())


# -- Curves ------------------------------------------------------------------------------------------------------------


def curve(points: Mapping[int, float]) -> Curve:
    return Curve({size: exact(seconds) for size, seconds in points.items()})


def test_a_curve_is_exact_at_its_points_and_linear_between_and_beyond() -> None:
    found = curve({1000: 1.0, 2000: 2.0, 4000: 6.0})
    assert [found.seconds(size) for size in (1000, 1500, 2000, 3000, 4000, 5000)] == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]


def test_below_the_smallest_size_only_the_latency_counts() -> None:
    assert curve({1000: 1.0, 2000: 3.0}).seconds(4) == 1.0


def test_a_single_point_scales_with_the_size_above() -> None:
    found = curve({1000: 2.0})
    assert (found.seconds(500), found.seconds(1000), found.seconds(3000)) == (2.0, 2.0, 6.0)


def test_noise_never_makes_a_larger_size_faster() -> None:
    found = Curve({1000: Estimate(3.0, 0.1, 3), 2000: Estimate(1.0, 0.1, 1), 4000: exact(8.0)})
    assert found.seconds(1000) == found.seconds(2000) == 2.5
    times = [found.seconds(size) for size in range(4, 8000, 4)]
    assert times == sorted(times)


def test_a_flat_end_still_grows_with_the_size() -> None:
    found = curve({1000: 2.0, 2000: 1.0})
    assert found.seconds(4000) > found.seconds(2000)
    assert curve({1000: 0.0, 2000: 0.0}).seconds(4000) == 0.0


def test_the_crossover_is_where_two_curves_meet() -> None:
    quick = curve({4: 1.0, 1004: 11.0})
    steady = curve({4: 5.0, 1004: 6.0})
    size = crossover(quick, steady, 4, 1004)
    assert size % 4 == 0
    assert quick.seconds(size - 4) <= steady.seconds(size - 4)
    assert quick.seconds(size) >= steady.seconds(size)


def test_curves_that_do_not_meet_change_in_the_middle() -> None:
    slow, quick = curve({4: 2.0, 1024: 20.0}), curve({4: 1.0, 1024: 10.0})
    # As where the slower one is the default, and the other one is not clearly faster at the smaller size.
    assert crossover(slow, quick, 4, 1024) == 64
    assert crossover(slow, quick, 4, 8) == 8


@pytest.mark.parametrize(("low", "high"), [(4, 8), (4, 12), (8, 1024), (1000, 1004)])
def test_a_crossover_lies_above_the_smaller_size(low: int, high: int) -> None:
    one, other = curve({low: 1.0, high: 3.0}), curve({low: 2.0, high: 2.0})
    for pair in ((one, other), (other, one), (one, one)):
        size = crossover(*pair, low, high)
        assert low < size <= high
        assert size % 4 == 0


# -- The choice --------------------------------------------------------------------------------------------------------


def chosen(times: Mapping[Contender, float], **options: Contender | None) -> Contender:
    found = {one: exact(seconds) for one, seconds in times.items()}
    return choose(found, **{"default": None, **options})[0]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({A: 100, B: 99}, A),
        ({A: 105, B: 100}, A),
        ({A: 106, B: 100}, B),
        ({A: 200, B: 100, C: 90}, C),
    ],
)
def test_the_default_stays_unless_another_is_more_than_five_percent_faster(
    times: dict[Contender, float], expected: Contender
) -> None:
    assert chosen(times, default=A) == expected
    assert min(times.values()) * (1 + HYSTERESIS) >= times[expected]


def test_the_earlier_choice_precedes_the_default() -> None:
    assert chosen({A: 100, B: 100, C: 97}, default=A, previous=B) == B
    assert chosen({A: 100, C: 97}, default=A, previous=B) == A
    assert chosen({A: 100, B: 120, C: 90}, default=A, previous=B) == C


def test_without_a_default_the_fastest_is_chosen() -> None:
    assert chosen({A: 100, B: 99}) == B
    assert chosen({A: 100, B: 99}, default=C) == B


def test_what_may_be_a_tenth_slower_than_the_default_does_not_replace_it() -> None:
    found = {A: exact(100.0), B: Estimate(80.0, 0.4, 1)}
    winner, reason = choose(found, default=A)
    assert (winner, reason) == (A, "the default: b is not reliably faster")
    assert choose({**found, B: Estimate(80.0, 0.2, 3)}, default=A)[0] == B
    # An earlier choice that turned out slower is not protected either.
    assert chosen({A: 100, B: 200}, default=A, previous=B) == A


def test_the_reason_states_by_how_much() -> None:
    found = {A: exact(1.0), contender("b", "ring"): exact(1.5)}
    assert choose(found, default=None)[1] == "the fastest; b ring takes 1.50 times"
    assert choose({A: exact(1.0), B: Estimate(1.1, 0.2, 3)}, default=None)[1].endswith(", within the noise")
    assert choose({A: exact(1.0)}, default=None)[1] == "the only candidate"
    assert choose({A: exact(1.0), B: exact(0.98)}, default=A)[1] == "the default: b is only 2% faster"


def test_equal_choices_join_and_others_meet_at_the_crossover() -> None:
    curves = {A: curve({4: 1.0, 1004: 11.0, 2004: 21.0}), B: curve({4: 5.0, 1004: 6.0, 2004: 7.0})}
    found: Sequence[tuple[int | None, Contender]] = ranges({4: A, 1004: B, 2004: B}, curves)
    (limit, one), (last, other) = found
    assert (one, other, last) == (A, B, None)
    assert limit is not None
    assert 4 < limit < 1004
    assert ranges({4: A}, curves) == [(None, A)]
