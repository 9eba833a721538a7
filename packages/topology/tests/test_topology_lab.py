"""The programs of docs/topology that measure in a lab, including LightGBM."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hoplite_bench.environments import Environments
from hoplite_bench.lab import Lab
from hoplite_bench.systems import Unavailable
from in_process import run
from labs import needs_lab

FOLDER = Path(__file__).parents[3] / "docs" / "topology"


def program(name: str) -> Any:  # noqa: ANN401 - a module
    """A program of docs/topology, imported."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_orders_have_the_best_and_worst_of_each_algorithm_that_random_ones_have() -> None:
    study = program("orders_in_a_lab")
    orders = study.chosen()
    assert len(orders) == len({tuple(order) for order in orders}) == study.ORDERS
    ratios = {}
    for name in study.ALGORITHMS:
        costs = [study.cost(name, study.NARROW, order) for order in orders]
        ratios[" ".join(name)] = round(max(costs) / min(costs), 1)
    assert ratios == {
        "gloo ring chunked": 4.0,
        "openmpi ring": 4.0,
        "mpich ring": 4.0,
        "gloo halving-doubling": 2.8,
        "openmpi rabenseifner": 2.8,
        "mpich reduce_scatter_allgather": 2.8,
        "gloo bcube": 2.0,
    }


def test_controls_cost_the_same_in_the_orders_that_are_best_and_worst_for_a_ring() -> None:
    study = program("orders_in_a_lab")
    controls = [one for one in study.due() if one[0] == study.WIDE or one[2] == study.DOUBLING]
    assert len(controls) == 4
    ring = [study.cost(study.RING, study.NARROW, order) for _, order, _ in controls[:2]]
    assert ring[1] > 3.9 * ring[0]
    for name in [*study.DOUBLING, *study.ALGORITHMS]:
        costs = [study.cost(name, study.WIDE, order) for _, order, _ in controls[:2]]
        assert costs[1] == pytest.approx(costs[0], rel=0.01)
    # This order makes both equal: one that crosses racks in every round costs more.
    assert study.doubling([0, 4, 5, 1, 6, 2, 3, 7]) == pytest.approx(2 * study.doubling(list(range(8))))


def test_what_was_measured_has_all_orders(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    study = program("orders_in_a_lab")
    file = FOLDER / "orders_in_a_lab.json"
    monkeypatch.setattr(study, "measure", lambda *_: pytest.fail("an order is missing"))
    monkeypatch.setattr(sys, "argv", ["orders_in_a_lab.py", str(file)])
    before = file.read_text()
    study.main()
    assert file.read_text() == before
    # The page shows these lines.
    shown = capsys.readouterr().out.splitlines()
    page = (FOLDER / "results.md").read_text().splitlines()
    assert [line for line in shown if line not in page] == []
    assert len(shown) == 2 * len(study.ALGORITHMS) + len(study.DOUBLING)


def test_reversed_bits_move_each_rank_to_the_other_end() -> None:
    assert program("lightgbm_in_a_lab").reversed_bits(list("abcdefgh")) == list("aecgbfdh")


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_lightgbm_keeps_the_order(tmp_path: Path) -> None:
    try:
        python = Environments().python("lightgbm", program("lightgbm_in_a_lab").REQUIREMENTS)
    except Unavailable as error:
        pytest.skip(str(error))
    with Lab(hosts=3) as lab:
        ordered = [lab.hosts[number] for number in (2, 0, 1)]
        hosts = tmp_path / "hosts"
        hosts.write_text("".join(f"{host.name} {host.address}\n" for host in ordered))
        path = f"{python.parent}:{os.environ['PATH']}"
        verify = ("topology", "verify", "--format", "lightgbm", "--hosts", hosts, "--launcher", lab.agent)
        said = json.loads(run(*verify, "--json", PATH=path).stdout)
    assert said == {"format": "lightgbm", "ranks": 3, "kept": True, "hosts": ["node2", "node0", "node1"]}
