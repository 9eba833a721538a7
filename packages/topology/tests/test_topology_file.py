"""The topology file: what a plan reads from it, and what is rejected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hoplite import topology
from hoplite.errors import InvalidArgument
from hoplite.topology import FORMAT, Placed
from hoplite_topology import layout, surveyed
from in_process import run

if TYPE_CHECKING:
    from pathlib import Path


def document(**changes: object) -> dict[str, object]:
    """A topology of two racks of two, as people would write it."""
    told: dict[str, object] = {
        "format": FORMAT,
        "hosts": [{"name": f"h{n}", "address": f"10.0.0.{n + 1}", "groups": [f"rack-{n % 2}"]} for n in range(4)],
        "uplinks": {"rack-0": 1e9, "rack-1": 2e9},
        "nic": 1e9,
    }
    told |= changes
    return {name: value for name, value in told.items() if value is not None}


def test_a_topology_written_by_hand_is_planned_by(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document()))
    given = surveyed.read(path)
    assert (given.cluster, given.uplinks, given.nic) == ([0, 1, 0, 1], [1e9, 2e9], 1e9)
    assert given.rows[0][1] == 30.0
    assert given.rows[0][2] == 10.0
    said = json.loads(run("topology", "plan", "--topology", path, "--algorithm", "ring", "--json").stdout)
    assert said["model"] == "congestion"
    assert said["clusters"] == [0, 1, 0, 1]
    order = [machine % 2 for machine in said["order"]]
    assert sum(a != b for a, b in zip(order, order[1:] + order[:1], strict=True)) == 2
    lines = run("topology", "plan", "--topology", path, "--algorithm", "ring", "--format", "lightgbm").stdout
    assert sorted(lines.split("\n"))[1] == "10.0.0.1 12400"


def test_slots_of_a_topology_reach_the_launcher(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    hosts = [{"name": f"h{n}", "address": f"10.0.0.{n + 1}", "slots": n + 1} for n in range(3)]
    path.write_text(json.dumps(document(hosts=hosts, uplinks=None)))
    plan = ("topology", "plan", "--topology", path, "--algorithm", "ring", "--format")
    assert sorted(run(*plan, "mpich").stdout.split()) == ["h0:1", "h1:2", "h2:3"]
    assert len(run(*plan, "openmpi5").stdout.split()) == 6
    assert "the same number of processes on each host" in run(*plan, "torchrun", code=1).stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "hoplite topology 2"}, "is not a topology"),
        ({"hosts": [{"name": f"h{n}"} for n in range(8193)], "uplinks": None}, "has 8193 hosts: list at most 8192"),
        ({"hosts": [{"name": "h0", "slots": 0}], "uplinks": None}, r'"slots" is 0: set the number of processes'),
        ({"hosts": [{"name": "h0", "slots": True}], "uplinks": None}, '"slots" is true'),
        ({"times_us": [[0]]}, "not a list of 4 rows"),
        ({"times_us": [[0, 1, 1, 1]] * 3 + [[1]]}, "has 1 times for 4 hosts"),
        ({"times_us": [[0, 1, 1, True]] * 4}, "is true: set 0 to"),
        ({"times_us": [[0, 1, 1, 1], [2, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]}, "is not symmetric: h1 to h0 is 2"),
    ],
)
def test_a_topology_that_cant_be_meant_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(InvalidArgument, match=said):
        surveyed.read(path)


@pytest.mark.parametrize(
    "changes", [{"racks": []}, {"hosts": [{"name": "a"}, {"name": "a"}]}, {"uplinks": {"rack-9": 1e9}}, {"nic": 0}]
)
def test_plans_and_nodes_refuse_a_file_in_the_same_words(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document(**changes)))
    with pytest.raises(InvalidArgument) as by_node:
        topology.read(path)
    with pytest.raises(InvalidArgument) as by_plan:
        surveyed.read(path)
    assert str(by_plan.value) == str(by_node.value)


def test_files_that_are_no_json_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(InvalidArgument, match="can't read"):
        layout.read(path)
    path.write_text("{")
    with pytest.raises(InvalidArgument, match="is not valid JSON"):
        layout.read(path)
    path.write_text("[" * 100_000)
    with pytest.raises(InvalidArgument, match="is not valid JSON"):
        layout.read(path)
    with pytest.raises(InvalidArgument, match="can't write"):
        layout.write(tmp_path / "nowhere" / "t.json", layout.Layout([Placed("a")], []))
