"""A search over stub systems: the fastest is chosen, and a candidate that fails is excluded while the rest goes on."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

import bench_ports
from bench_stubs import Stub, written
from hoplite.errors import InvalidArgument, Timeout
from hoplite_bench import containers
from hoplite_bench.environments import Environments
from hoplite_bench.hosts import Agents, Network
from hoplite_bench.plan import Cell, Contender
from hoplite_bench.select import candidates, search
from hoplite_bench.select.halving import BudgetTooSmall, Halving
from hoplite_bench.select.request import OF_LAYER, Request
from hoplite_bench.select.search import NoCandidate, Search, measured_sizes
from hoplite_bench.systems.base import Variant
from hoplite_bench.systems.gloo import Gloo
from hoplite_bench.systems.mpi import Mpich, OpenMpi
from hoplite_bench.systems.pytorch import CUDA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hoplite_bench.select.plan import Candidate, Plan

bench_ports.take()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with containers.opened("bare", 2) as network:
        yield network


@pytest.fixture(scope="module")
def agents(network: Network) -> Iterator[Agents]:
    with Agents(network) as agents:
        yield agents


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("stub"))


class Place:
    """Searches on two processes of this machine."""

    def __init__(self, network: Network, agents: Agents) -> None:
        self.network = network
        self.agents = agents

    def plan(self, systems: list[Stub], request: Request | None = None, **options: Any) -> Plan:  # noqa: ANN401 - those of a search
        made = Search(
            self.network,
            self.agents,
            request or Request("allreduce", 4096, 2),
            systems=systems,
            environments=Environments(install=False),
            **options,
        )
        return made.run("key")


@pytest.fixture
def place(network: Network, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(search, "HANG_S", 1.0)
    # Starts of two interpreters on a busy machine.
    monkeypatch.setattr(search._Turns, "start_timeout_s", 20.0)
    return Place(network, agents)


def of(plan: Plan, library: str, **fields: object) -> Candidate:
    """The first candidate of a library with these fields."""
    return next(
        one
        for one in plan.candidates
        if one.library == library and all(getattr(one, name) == value for name, value in fields.items())
    )


def test_the_fastest_is_chosen_and_the_slow_ones_are_dropped(place: Place, program: Path) -> None:
    plan = place.plan([Stub("gloo", program, 0.05), Stub("quick", program, 0.002), Stub("slow", program, 0.3)])
    rule = plan.rule("allreduce", 4096)
    assert (rule.system, rule.variant, rule.settings) == ("quick", "default", {})
    assert of(plan, "quick", nbytes=4096).state == "chosen"
    assert of(plan, "slow", nbytes=4096).state == "dropped"
    assert re.match(r"[\d.]+ times the time of the fastest", of(plan, "slow", nbytes=4096).reason)
    assert {one.nbytes for one in plan.candidates} == {1024, 4096}
    assert all(one.seconds and one.spread for one in plan.candidates)
    assert (plan.fingerprint, plan.cached) == ("key", False)


@pytest.mark.parametrize(
    ("behavior", "state", "reason"),
    [
        ("crash", "excluded", "allreduce of 4096 bytes: .* has hung up; a process exited with status 3; .*out of luck"),
        ("hang", "excluded", "allreduce of 4096 bytes: no answer within 1 s"),
        ("raise", "excluded", "rank 1 failed: OSError: no route"),
        ("wrong", "excluded", "wrong result: .*element 3 is off"),
        ("missing", "excluded", "FileNotFoundError: .*/nonexistent/mpirun"),
        ("unavailable", "unavailable", "there is no wheel for this machine"),
    ],
)
def test_a_candidate_that_fails_is_excluded_with_the_reason(
    place: Place, program: Path, behavior: str, state: str, reason: str
) -> None:
    plan = place.plan([Stub("bad", program, 0.0, behavior=behavior), Stub("good", program, 0.01)])
    assert plan.rule("allreduce", 4096).system == "good"
    bad = of(plan, "bad")
    assert (bad.state, bad.seconds) == (state, None)
    assert re.search(reason, bad.reason), bad.reason


def test_a_system_that_never_starts_is_excluded(place: Place, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search._Turns, "start_timeout_s", 3.0)
    plan = place.plan([Stub("bad", program, behavior="late"), Stub("good", program)])
    assert "0 of 2 ranks connected within 3 s" in of(plan, "bad").reason


def test_another_variant_of_a_failed_one_is_still_a_candidate(place: Place, program: Path) -> None:
    plan = place.plan([Stub("half", program, 0.002, behavior="crash", forced=True), Stub("good", program, 0.2)])
    assert plan.rule("allreduce", 4096).system == "half"
    assert plan.rule("allreduce", 4096).variant == "forced"
    assert of(plan, "half", variant="default").state == "excluded"


def test_each_size_has_the_library_that_is_fastest_there(place: Place, program: Path) -> None:
    # 1 KiB takes 2 and 100 ms, 1 MiB takes 402 and 100 ms.
    systems = [Stub("latency", program, 0.002, 0.4 / 2**20), Stub("bandwidth", program, 0.1)]
    plan = place.plan(systems, Request("allreduce", 2**20, 2))
    assert plan.rule("allreduce", 1024).system == "latency"
    assert plan.rule("allreduce", 2**20).system == "bandwidth"
    limit = plan.rules[0].below
    assert limit is not None
    assert 2**16 < limit < 2**20
    assert limit % 4 == 0


def test_a_parameter_server_has_a_choice_for_each_operation(place: Place, program: Path) -> None:
    plan = place.plan([Stub("one", program)], Request("ps", 4096, 2, ops=("allgather",)))
    assert plan.ops == ("broadcast", "gather", "allgather")


def test_what_does_not_survive_a_failure_is_excluded_although_it_is_the_fastest(place: Place, program: Path) -> None:
    systems = [Stub("quick", program, 0.002), Stub("safe", program, 0.1)]
    reasons = {"quick": "hangs when a peer is frozen"}
    plan = place.plan(systems, Request("ps", 4096, 2), unsafe=lambda _: reasons)
    assert plan.rule("gather", 4096).system == "safe"
    assert (of(plan, "quick").state, of(plan, "quick").reason) == ("excluded", "hangs when a peer is frozen")
    either = place.plan(systems, Request("ps", 4096, 2, require_failures=False), unsafe=lambda _: reasons)
    assert either.rule("gather", 4096).system == "quick"


def test_without_any_library_the_error_has_all_reasons(place: Place, program: Path) -> None:
    systems = [Stub("one", program, behavior="unavailable"), Stub("two", program, behavior="wrong")]
    with pytest.raises(
        NoCandidate, match=r"for allreduce: one: there is no wheel.*; two: .*element 3 is off.*--install"
    ):
        place.plan(systems)


def test_a_budget_below_one_measurement_states_what_it_takes(place: Place, program: Path) -> None:
    request = Request("ps", 4, 2, budget_s=0.01, require_failures=False)
    with pytest.raises(
        BudgetTooSmall, match=r"too small to compare .* broadcast, gather: set --budget to at least \d+ s"
    ):
        place.plan([Stub("one", program), Stub("two", program)], request)


def test_a_search_ends_at_its_deadline(place: Place, program: Path) -> None:
    with pytest.raises(Timeout, match="did not end within its timeout"):
        place.plan([Stub("one", program)], deadline=time.monotonic())


def test_a_hang_does_not_outlast_the_deadline(place: Place, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "HANG_S", 3600.0)
    with pytest.raises(Timeout, match="did not end within its timeout"):
        place.plan([Stub("bad", program, behavior="hang"), Stub("good", program)], deadline=time.monotonic() + 4)


def test_a_size_at_which_the_budget_ended_has_no_choice_of_its_own(program: Path) -> None:
    # Starts take 26.4 s of the budget. Two of four candidates are measured at the second size, and none at the third.
    factors = {"mpich": 5, "openmpi": 2, "gloo": 1.5, "hoplite": 1}
    systems = {name: Stub(name, program) for name in factors}
    sizes = [2**26, 2**24, 2**20]
    who = [Contender(name, "default", "default") for name in factors]
    halving = Halving({Cell("allreduce", size): who for size in sizes}, 30.0)
    spent, started = 0.0, set()
    while (following := halving.following(spent)) is not None:
        cell, one = following
        cost = 0.4 + (6.6 if one not in started else 0.0)
        spent += cost
        started.add(one)
        halving.record(cell, one, factors[one.system] * cell.nbytes / 2e9, cost)
    result = search._Result(Request("allreduce", 2**26, 4), systems, halving, sizes, {}, {})
    plan = result.plan("key", who[0], None)
    assert [(rule.below, rule.system) for rule in plan.rules] == [(None, "hoplite")]
    assert plan.is_cut
    assert plan.budget_s == 30
    small = {one.library: one for one in plan.candidates if one.nbytes == 2**24}
    assert {one.state for one in small.values()} == {"dropped"}
    assert {one.seconds for one in small.values()} == {None}
    assert small["mpich"].reason.startswith("not compared: the budget of 30 s was spent")
    assert small["hoplite"].reason.startswith("not measured: the budget of 30 s was spent")
    assert {one.reason for one in plan.candidates if one.nbytes == 2**20} == {small["hoplite"].reason}


def test_a_choice_among_a_part_of_the_candidates_has_a_remark(program: Path) -> None:
    systems = {name: Stub(name, program) for name in "abc"}
    who = [Contender(name, "default", "default") for name in systems]
    halving = Halving({Cell("allreduce", 4096): who}, 2.0)
    for one, seconds in zip(who, (2.0, 1.0), strict=False):
        assert halving.following(0) == (Cell("allreduce", 4096), one)
        halving.record(Cell("allreduce", 4096), one, seconds, 1.0)
    assert halving.following(2.0) is None
    plan = search._Result(Request("allreduce", 4096, 2), systems, halving, [4096], {}, {}).plan("key", None, None)
    assert of(plan, "b").state == "chosen"
    assert of(plan, "b").reason.endswith("; the budget was spent before others were measured")


def test_tensors_on_a_gpu_are_not_compared_with_arrays_in_host_memory(program: Path) -> None:
    class OnGpu(Stub):
        def variants(self, op: str) -> list[Variant]:
            return [*super().variants(op), Variant(CUDA)]

    assert [one.variant for one in search._who([OnGpu("torch-gloo", program)], "allreduce")] == ["default"]


def test_an_earlier_choice_stays_if_nothing_is_clearly_faster(place: Place, program: Path) -> None:
    one, two = Stub("one", program, 0.03), Stub("two", program, 0.0303)
    alone = place.plan([two])
    plan = place.plan([one, two], previous=alone)
    assert plan.rule("allreduce", 4096).system == "two"
    assert of(plan, "two", nbytes=4096).reason.startswith("the earlier choice: one is only ")


def test_a_size_beyond_the_budget_is_predicted(place: Place, program: Path) -> None:
    request = Request("allreduce", 2**28, 2, budget_s=2)
    plan = place.plan([Stub("one", program, 0.01, 0.1 / 2**20)], request)
    largest = max(one.nbytes for one in plan.candidates if one.spread is not None)
    assert largest < 2**28
    predicted = of(plan, "one", nbytes=2**28)
    assert predicted.spread is None
    assert f"; predicted from {largest} bytes" in predicted.reason
    assert predicted.seconds is not None
    # 256 MiB take 25.6 s: the prediction continues the slope of the measured sizes.
    assert predicted.seconds > 10


def test_libraries_of_this_machine_are_measured_or_have_a_reason(network: Network, agents: Agents) -> None:
    # Hoplite is everywhere; the others are where they were installed before.
    request = Request("allreduce", 2**16, 2, budget_s=6)
    made = Search(
        network,
        agents,
        request,
        systems=candidates.systems("shell"),
        environments=Environments(install=False),
    )
    plan = made.run("key")
    assert plan.rule("allreduce", 2**16).system in OF_LAYER["shell"]
    hoplite = of(plan, "hoplite", variant="default", nbytes=2**16)
    assert hoplite.state in ("chosen", "measured", "dropped"), hoplite.reason
    assert all(one.reason for one in plan.candidates)
    assert {one.library for one in plan.candidates} == {system.name for system in candidates.systems("shell")}


@pytest.mark.parametrize(
    ("nbytes", "sizes"),
    [(4, [4]), (1024, [1024]), (2048, [2048, 1024]), (2**20, [2**20, 2**16, 2**10]), (100_000, [100_000, 2**10])],
)
def test_the_requested_size_is_measured_first_and_then_smaller_ones(
    network: Network, nbytes: int, sizes: list[int]
) -> None:
    assert measured_sizes(Request("allreduce", nbytes, 2), network, 4) == sizes


def test_a_small_budget_measures_smaller_sizes(network: Network) -> None:
    sizes = [measured_sizes(Request("allreduce", 2**30, 2, budget_s=budget), network, 4) for budget in (1000, 30, 1)]
    assert [max(one) for one in sizes] == sorted((max(one) for one in sizes), reverse=True)
    assert max(sizes[0]) == 2**30
    assert max(sizes[1]) < 2**30


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"arch": "ring"}, "unknown architecture 'ring': set one of ps, allreduce"),
        ({"systems": ("nccl",)}, "unknown system of the layer shell 'nccl'"),
        ({"nbytes": 6}, "6 bytes are not an array of float32: set a multiple of 4"),
        ({"budget_s": 0}, "a budget of 0 s is out of range"),
        ({"budget_s": float("nan")}, "a budget of nan s is out of range"),
    ],
)
def test_a_request_that_is_not_valid_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Request(**{"arch": "allreduce", "nbytes": 4096, "ranks": 2, **fields})


def test_settings_are_those_of_the_operation_alone() -> None:
    ring, pipeline = Contender("x", "any", "ring"), Contender("x", "any", "pipeline")
    assert candidates.settings(Mpich(), "broadcast", ring) == {
        "MPIR_CVAR_BCAST_INTRA_ALGORITHM": "scatter_ring_allgather"
    }
    assert set(candidates.settings(Mpich(), "gather", ring)) == {
        "MPIR_CVAR_GATHER_INTRA_ALGORITHM",
        "MPIR_CVAR_IGATHER_INTRA_ALGORITHM",
        "MPIR_CVAR_IGATHER_TREE_KVAL",
    }
    assert candidates.settings(OpenMpi(), "broadcast", pipeline) == {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_bcast_algorithm": "pipeline",
        "OMPI_MCA_coll_tuned_bcast_algorithm_segmentsize": "49152",
    }
    assert candidates.settings(OpenMpi(), "gather", Contender("openmpi", "default", "default")) == {
        "OMPI_MCA_mpi_yield_when_idle": "1"
    }
    assert candidates.settings(Gloo(), "allreduce", ring) == {}
    assert candidates.settings(Mpich(), "gather", Contender("mpich", "default", "default")) == {}
