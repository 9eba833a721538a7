"""`hoplite topology plan`: orders of machines from round-trip times, their description, and what is rejected."""

from __future__ import annotations

import itertools
import json
import math
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hoplite
from hoplite_topology import _native, linear, matrix, planning, problem, relaxation
from in_process import run
from support import SOON

ALGORITHMS = [("ring",), ("halving-doubling",), ("double-tree",), ("bcube", "--base", "2"), ("bcube", "--base", "4")]
KEYS = {"order", "cost", "cost_given", "cost_worst", "bound", "gap", "reason", "seconds"}


def write(path: Path, rows: list[list[float]]) -> Path:
    """A matrix as a file."""
    path.write_text("".join(",".join(f"{time:g}" for time in row) + "\n" for row in rows))
    return path


def racks(*sizes: int, seed: int = 1) -> list[list[float]]:
    """Times of machines in racks, in a random order: 10 us inside, 50 us between, and a little noise."""
    chance = random.Random(seed)
    rack = [number for number, size in enumerate(sizes) for _ in range(size)]
    chance.shuffle(rack)
    rows = [[0.0] * len(rack) for _ in rack]
    for a, b in itertools.combinations(range(len(rack)), 2):
        rows[a][b] = rows[b][a] = round((10 if rack[a] == rack[b] else 50) + chance.random(), 3)
    return rows


def planned(path: Path, *options: object) -> dict[str, Any]:
    """The JSON output of plan."""
    said = run("topology", "plan", "--matrix", path, "--json", *options).stdout
    assert said.count("\n") == 1
    document: dict[str, Any] = json.loads(said)
    return document


def tour(rows: list[list[float]], order: list[int]) -> float:
    """The cost of a ring as defined in the paper."""
    return sum(rows[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids="-".join)
def test_a_plan_is_an_order_between_its_bound_and_the_worst(
    tmp_path: Path, algorithm: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, the clock would end one of the two searches earlier.
    monkeypatch.setattr(problem, "PATIENCE", 100.0)
    path = write(tmp_path / "m.csv", racks(5, 4, 7))
    document = planned(path, "--algorithm", *algorithm)
    assert set(document) >= KEYS
    assert sorted(document["order"]) == list(range(16))
    assert 0 < document["bound"] <= document["cost"] <= document["cost_given"] <= document["cost_worst"]
    assert document["gap"] == pytest.approx((document["cost"] - document["bound"]) / document["bound"])
    assert document["cost"] < document["cost_given"]
    assert "3 clusters of 4 to 7" in document["reason"]
    assert document == {**planned(path, "--algorithm", *algorithm), "seconds": document["seconds"]}


def test_the_ring_of_seven_is_the_shortest_and_its_cost_is_the_papers(tmp_path: Path) -> None:
    rows = racks(3, 4)
    document = planned(write(tmp_path / "m.csv", rows), "--algorithm", "ring")
    assert document["cost"] == pytest.approx(tour(rows, document["order"]))
    shortest = min(tour(rows, [0, *rest]) for rest in itertools.permutations(range(1, 7)))
    longest = max(tour(rows, [0, *rest]) for rest in itertools.permutations(range(1, 7)))
    assert document["cost"] == pytest.approx(shortest)
    assert document["cost_worst"] == pytest.approx(longest)
    assert (document["gap"], document["proven"]) == (0, True)


def test_halving_doubling_and_trees_of_seven_are_the_best(tmp_path: Path) -> None:
    rows = racks(3, 4, seed=2)
    path = write(tmp_path / "m.csv", rows)
    flat = [time for row in rows for time in row]
    native = _native.Topology(flat, 7, [0] * 7, math.inf, [math.inf])
    for algorithm in ("halving-doubling", "double-tree"):
        wanted = problem.Wanted(algorithm)
        best = min(native.cost(wanted, "paper", list(order)) for order in itertools.permutations(range(7)))
        document = planned(path, "--algorithm", algorithm)
        assert document["cost"] == pytest.approx(best)
        assert document["bound"] == pytest.approx(best)


def test_a_ring_of_64_is_proven(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(run("topology", "example", "--machines", 64, "--seed", 1).stdout)
    document = planned(path, "--algorithm", "ring", "--solver", "exact")
    rows = matrix.read_matrix(path)
    assert document["cost"] == pytest.approx(tour(rows, document["order"]))
    assert document["proven"]
    assert document["gap"] < 1e-6


@pytest.mark.frameworks
def test_highs_proves_a_ring_of_200(tmp_path: Path) -> None:
    pytest.importorskip("highspy", reason="highspy is not installed")
    path = tmp_path / "m.csv"
    path.write_text(run("topology", "example", "--machines", 200, "--seed", 2).stdout)
    document = planned(path, "--algorithm", "ring", "--solver", "exact")
    rows = matrix.read_matrix(path)
    assert document["cost"] == pytest.approx(tour(rows, document["order"]))
    assert document["proven"]
    assert document["bound"] <= document["cost"]
    assert any(note.startswith("HiGHS proved") for note in document["notes"])
    # The search alone proves less in its time.
    searched = planned(path, "--algorithm", "ring")
    assert searched["bound"] <= document["cost"] * (1 + 1e-9) <= searched["cost"] * (1 + 2e-9)


def assert_highs_proves(rows: list[list[float]]) -> int:
    """Checks that it finds a shortest ring from any order; returns the number of cases."""
    wanted = problem.Wanted("ring")
    found = planning.plan(rows, wanted, problem.Options())
    assert found.is_proven
    times, machines = [time for row in rows for time in row], len(rows)
    native = _native.Topology(times, machines, [0] * machines, math.inf, [math.inf])
    proof = linear.prove(native.rings(wanted, "paper"), list(range(machines)), seconds=20)
    assert proof.cost == pytest.approx(found.cost)
    assert tour(rows, proof.order) == pytest.approx(found.cost)
    assert proof.bound <= found.cost * (1 + 1e-12)
    assert proof.bound == pytest.approx(found.cost)
    return proof.cases


@pytest.mark.frameworks
def test_highs_finds_the_shortest_ring_of_eight_from_any_order() -> None:
    pytest.importorskip("highspy", reason="highspy is not installed")
    for seed in range(10):
        chance = random.Random(seed)
        # Few different times cause many fractional edges, and many shortest rings.
        time = chance.random if seed % 2 else lambda: chance.randint(1, 3)  # noqa: B023
        rows = [[0.0] * 8 for _ in range(8)]
        for a, b in itertools.combinations(range(8), 2):
            rows[a][b] = rows[b][a] = time()
        assert_highs_proves(rows)


@pytest.mark.frameworks
def test_highs_branches_where_no_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two triangles, each machine near one of the other triangle: without combs, the program uses halves of edges."""
    pytest.importorskip("highspy", reason="highspy is not installed")
    broken = linear._Prover._broken
    monkeypatch.setattr(linear._Prover, "_broken", lambda it: [cut for cut in broken(it) if not cut.teeth])
    rows = [[5.0] * 6 for _ in range(6)]
    for a in range(6):
        rows[a][a] = 0.0
        rows[a][(a + 3) % 6] = 1.0
        for b in range(3 * (a // 3), 3 * (a // 3) + 3):
            rows[a][b] = 2.0 if a != b else 0.0
    assert assert_highs_proves(rows) > 1


@pytest.mark.frameworks
def test_highs_bounds_hops_where_uplinks_decide_too() -> None:
    pytest.importorskip("highspy", reason="highspy is not installed")
    options = problem.Options(model="congestion", solver="exact", nic=10e9, uplink=10e9, seconds=5)
    found = planning.plan(racks(8, 9, 7), problem.Wanted("ring"), options)
    assert 0 < found.bound <= found.cost
    assert any("uplink load" in note for note in found.notes)


def test_the_exact_solver_names_the_extra_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaxation, "is_there", lambda: False)
    options = problem.Options(solver="exact", seconds=0.5)
    found = planning.plan(racks(6, 6), problem.Wanted("ring"), options)
    assert any("pip install 'highspy" in note for note in found.notes)
    assert 0 < found.bound <= found.cost


def test_prices_prove_nothing_of_sets_that_some_ring_breaks() -> None:
    native = _native.Topology([time for row in racks(3, 3) for time in row], 6, [0] * 6, math.inf, [math.inf])
    rings = native.rings(problem.Wanted("ring"), "paper")
    shortest = rings.length(
        native.plan(problem.Wanted("ring"), problem.search_of(problem.Wanted("ring"), problem.Options(), 6))["order"]
    )
    # Each rack has two paths into it: their price, and no more, is proven.
    inside = [machine for machine in range(6) if racks(3, 3)[0][machine] < 20]
    assert 0 < rings.bound([0.0] * 6, [(inside, [], 30.0)], [], None, None)[0] <= shortest
    for cut in (([], [], 1.0), (list(range(6)), [], 1.0), ([0], [(0, 1), (0, 2)], 1.0), ([0, 9], [], 1.0)):
        with pytest.raises(hoplite.InvalidArgument, match="some ring violates"):
            rings.bound([0.0] * 6, [cut], [], None, None)
    with pytest.raises(hoplite.InvalidArgument, match="one price per machine"):
        rings.bound([0.0] * 5, [], [], None, None)
    with pytest.raises(hoplite.InvalidArgument, match="not a hop"):
        rings.costs([(0, 6)])


def test_some_machines_are_chosen(tmp_path: Path) -> None:
    rows = racks(4, 5, 3)
    path = write(tmp_path / "m.csv", rows)
    for algorithm in ("ring", "halving-doubling"):
        document = planned(path, "--algorithm", algorithm, "--choose", 4)
        assert len(set(document["order"])) == 4
        # One rack has four machines.
        assert all(rows[a][b] < 12 for a, b in itertools.combinations(document["order"], 2))
    said = run("topology", "plan", "--matrix", path, "--algorithm", "ring", "--choose", 13, code=1).stderr
    assert "13 of 12" in said


def test_rates_make_the_congestion_model_the_default(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", racks(8, 8))
    document = planned(path, "--algorithm", "ring", "--nic", "10gbit", "--uplink", "10gbit", "--time", "0.2")
    assert document["model"] == "congestion"
    # One flow leaves each rack: 2 * 15 / 16 of 100 MB at 1250 bytes per microsecond.
    assert document["cost"] == pytest.approx(2 * 15 / 16 * 1e8 / 1250, rel=0.01)
    assert document["cost_worst"] > 3 * document["cost"]
    assumed = planned(path, "--algorithm", "ring", "--cost", "congestion", "--time", "0.2")
    assert any("--nic" in note for note in assumed["notes"])
    assert planned(path, "--algorithm", "ring", "--time", "0.2")["model"] == "paper"


def test_an_order_is_repaired_after_a_machine_changed(tmp_path: Path) -> None:
    rows = racks(6, 6, 6)
    before = planned(write(tmp_path / "m.csv", rows), "--algorithm", "ring")
    near = before["order"][9]
    # Machine 0 moves to another rack.
    for other in range(18):
        if other != 0:
            rows[0][other] = rows[other][0] = 10.5 if other == near else rows[near][other] or 10.5
    path = write(tmp_path / "changed.csv", rows)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(before))
    repaired = planned(path, "--algorithm", "ring", "--start", plan)
    assert repaired["cost"] == pytest.approx(tour(rows, repaired["order"]))
    assert repaired["cost"] <= tour(rows, before["order"])
    assert repaired["cost"] <= 1.02 * planned(path, "--algorithm", "ring")["cost"]
    plan.write_text("{}")
    said = run("topology", "plan", "--matrix", path, "--algorithm", "ring", "--start", plan, code=1).stderr
    assert "is not a plan" in said


def test_a_plan_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path, plan = tmp_path / "m.csv", tmp_path / "plan.json"
    path.write_text("0,1\n1,0\n")
    plan.write_text("[" * 200_000)
    said = run("topology", "plan", "--matrix", path, "--algorithm", "ring", "--start", plan, code=1).stderr
    assert said.startswith(f"error: {plan} is not a plan: pass the output of hoplite topology plan --json")


def test_clusters_are_found_by_gaps_and_by_means(tmp_path: Path) -> None:
    rows = racks(5, 6, 7)
    path = write(tmp_path / "m.csv", rows)
    for how in ("gaps", "kmeans"):
        found = planned(path, "--algorithm", "ring", "--clusters", how)["clusters"]
        for a, b in itertools.combinations(range(18), 2):
            assert (found[a] == found[b]) == (rows[a][b] < 20)
    flat = write(tmp_path / "flat.csv", [[0 if a == b else 10 for b in range(6)] for a in range(6)])
    assert "no clusters" in planned(flat, "--algorithm", "ring")["reason"]


def test_the_papers_solver_anneals_and_names_what_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", racks(8, 8, 8))
    document = planned(path, "--algorithm", "ring", "--solver", "paper", "--time", "0.3")
    assert document["cost"] < document["cost_given"]
    assert any("Z3 was skipped" in note for note in document["notes"])


def test_z3_proves_small_orders(tmp_path: Path) -> None:
    pytest.importorskip("z3")
    rows = racks(3, 4)
    for algorithm in ("ring", "halving-doubling", "double-tree"):
        document = planned(write(tmp_path / "m.csv", rows), "--algorithm", algorithm, "--solver", "paper", "--time", 30)
        best = planned(tmp_path / "m.csv", "--algorithm", algorithm)
        assert document["cost"] == pytest.approx(best["cost"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("0,1\n1,0,2\n", "line 2 of"),
        ("a,b\n0,1\n", "without a header"),
        ("0,nan\nnan,0\n", "line 1, column 2 of"),
        ("0,\n,0\n", "is empty: probe that pair again"),
        ("0,1e12\n1e12,0\n", "is 1e12: set 0 to"),
        ("0,1\n2,0\n", "--symmetric to max, mean or min"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    assert said in run("topology", "plan", "--matrix", path, "--algorithm", "ring", code=1).stderr


def test_files_that_are_not_there_or_no_text(tmp_path: Path) -> None:
    said = run("topology", "plan", "--matrix", tmp_path / "none.csv", "--algorithm", "ring", code=2).stderr
    assert "does not exist" in said
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "can't read" in run("topology", "plan", "--matrix", binary, "--algorithm", "ring", code=1).stderr
    assert "--algorithm" in run("topology", "plan", "--matrix", binary, code=2).stderr


def test_the_diagonal_is_ignored_and_directions_can_be_combined(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("nan,1,4\n3,,2\n4,2,9\n")
    for how, cost in (("max", 9), ("mean", 8), ("min", 7)):
        assert planned(path, "--algorithm", "ring", "--symmetric", how)["cost"] == cost


@pytest.mark.parametrize("count", [1, 2, 13])
def test_few_machines_and_odd_counts(tmp_path: Path, count: int) -> None:
    path = write(tmp_path / "m.csv", racks(count))
    for algorithm in ("ring", "halving-doubling", "double-tree"):
        for library in ("mpi", "gloo", "lightgbm"):
            document = planned(path, "--algorithm", algorithm, "--library", library, "--time", "0.1")
            assert sorted(document["order"]) == list(range(count))
            assert document["bound"] <= document["cost"] <= document["cost_worst"]
            assert (count == 1) == (document["cost"] == 0)
    if count == 13:
        said = run("topology", "plan", "--matrix", path, "--algorithm", "bcube", "--base", 4, code=1).stderr
        assert "use 12 or 16 ranks" in said
        said = run("topology", "plan", "--matrix", path, "--algorithm", "bcube", "--base", 1, code=2).stderr
        assert "--base" in said


def test_the_exact_solver_is_for_rings(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", racks(16))
    said = run("topology", "plan", "--matrix", path, "--algorithm", "bcube", "--solver", "exact", code=1).stderr
    assert "the exact solver supports rings, and" in said


def test_pictures_show_times_before_and_after(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", racks(5, 6))
    for name in ("heat.svg", "heat.png"):
        planned(path, "--algorithm", "ring", "--picture", tmp_path / name)
    svg = (tmp_path / "heat.svg").read_text()
    assert svg.startswith("<svg")
    assert "as given" in svg
    assert "by rank" in svg
    png = (tmp_path / "heat.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width > height
    said = run(
        "topology", "plan", "--matrix", path, "--algorithm", "ring", "--picture", tmp_path / "heat.gif", code=1
    ).stderr
    assert ".svg or .png" in said


def test_a_search_of_an_hour_ends_when_its_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(run("topology", "example", "--machines", 128).stdout)
    document = planned(path, "--algorithm", "halving-doubling", "--time", "0.2")
    assert sorted(document["order"]) == list(range(128))
    assert document["bound"] <= document["cost"] < document["cost_given"]


def test_the_example_is_one_data_centre_for_each_seed() -> None:
    one = run("topology", "example", "--machines", 12, "--seed", 1).stdout
    assert one == run("topology", "example", "--machines", 12, "--seed", 1).stdout
    assert one != run("topology", "example", "--machines", 12, "--seed", 2).stdout
    assert [line.count(",") for line in one.splitlines()] == [11] * 12


def test_simulated_orders_are_spread_and_the_planned_one_is_fast() -> None:
    said = run("topology", "simulate", "--algorithm", "ring", "--machines", 64, "--orders", 30, "--json").stdout
    document = json.loads(said)
    assert document["simulated"] is True
    assert len(document["random_us"]) == 30
    assert min(document["planned_us"].values()) < min(document["random_us"])
    for model, pairs in document["spread_us"].items():
        costs = [cost for cost, _ in pairs]
        assert len(costs) == 10
        assert costs == sorted(costs)
        assert pairs[0][1] == document["planned_us"][model]
        assert document["speedup"][model] > 1
    people = run("topology", "simulate", "--algorithm", "halving-doubling", "--machines", 16, "--orders", 5).stdout
    assert people.startswith("simulated: halving-doubling")


@pytest.mark.parametrize("name", ["histogram.py", "algorithms.py"])
def test_the_committed_pictures_are_what_their_scripts_draw(name: str) -> None:
    script = Path(__file__).parents[3] / "docs" / "topology" / name
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_advice_counts_what_sizes_allow() -> None:
    options = problem.Options(seconds=0.1)
    found = planning.plan(racks(12, 4), problem.Wanted("halving-doubling"), options)
    assert "2 of the rounds can stay inside" in str(planning.advice(found))
    assert planning.advice(planning.plan(racks(4, 4), problem.Wanted("ring"), options)) is None
