"""What `make test-python` tests of hoplite-topology: a plan, whose cost is computed again.

`make test-topology` also runs all other tests of this folder.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from commands import run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ring_of_a_generated_data_center_costs_what_its_plan_says(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text(run("topology", "example", "--machines", 12, "--seed", 1).stdout)
    rows = [[float(time) for time in line.split(",")] for line in path.read_text().splitlines()]
    plan = json.loads(run("topology", "plan", "--matrix", path, "--algorithm", "ring", "--json").stdout)
    order = plan["order"]
    assert sorted(order) == list(range(12))
    cost = sum(rows[a][b] for a, b in zip(order, order[1:] + order[:1], strict=True))
    assert plan["cost"] == pytest.approx(cost)
    assert 0 < plan["bound"] <= plan["cost"] < plan["cost_given"]
