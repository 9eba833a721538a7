"""`hoplite bench weights`: the start of its ranks, its module and its text, and one run with two receivers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from bench_pair import Written
from hoplite_bench import weights
from hoplite_bench.cli.bench import bench
from hoplite_bench.environments import Environments
from hoplite_bench.lab import Lab
from hoplite_bench.places import python_path
from hoplite_bench.systems.base import RANKS
from labs import needs_lab
from test_bench_torch import Installed, installed

if TYPE_CHECKING:
    from pathlib import Path


def test_every_host_has_a_node_that_joins_the_first(tmp_path: Path) -> None:
    system = weights.Weights(midway_s=0.25, bucket=2**20, capacity=2**24)
    system.prepare(Installed(tmp_path))
    launch = Written(tmp_path)
    system.start(launch, "default")
    assert [host for host, _, _ in launch.spawned] == [0, 1, 2]
    for host, (_, command, variables) in zip(launch.hosts, launch.spawned, strict=True):
        assert command[1] == str(RANKS / "weights_rank.py")
        options = dict(zip(command[2::2], command[3::2], strict=True))
        assert options["--listen"] == f"{host.address}:{weights.PORT}"
        assert options["--join"] == f"10.9.0.1:{weights.PORT}"
        assert options["--midway-ns"] == "250000000"
        assert options["--bucket"] == str(2**20)
        assert options["--capacity"] == str(2**24 if host.number else launch.memory_bytes), "of receivers only"
        assert variables["HOPLITE_NO_ENCRYPTION"] == "", "a variable of the shell does not apply"


def test_the_summary_has_every_step_and_its_ratio() -> None:
    found = {
        "settings": {"trainers": 1, "receivers": 8, "parts": 1, "bytes": 2**28, "repeats": 2, "rate": 10**9},
        "wire": {"seconds": [2.0, 2.2], "median": 2.1},
        "update": {"seconds": [2.2, 2.3], "median": 2.25},
        "join": {"seconds": [1.5, 1.7], "median": 1.6},
        "switch": {"seconds": [0.1, 0.2], "median": 0.15},
        "memcpy": {"seconds": [0.1, 0.1], "median": 0.1},
        "terms": {"tensor": 3e-5, "byte": 8.4e-9},
        "ratios": {"update": 1.07, "join": 0.76, "switch": 1.5},
        "memory": {
            "update": {"memory": 2**26, "private memory": 2**20},
            "stage": {"memory": 2**29, "private memory": 2**28},
        },
    }
    first, wire, update, join, copy, switch, terms, *memory = weights.summary(found).splitlines()
    assert first == "weights of 256 MiB to 8 receivers, 2 rounds, verified:"
    assert "2.100 s (2.000 to 2.200)" in wire
    assert update.endswith("2.250 s (2.200 to 2.300), 1.07 × wire")
    assert join.endswith(", 0.76 × wire")
    assert copy.endswith("0.100 s (0.100 to 0.100)")
    assert switch.endswith(", 1.50 × memcpy")
    assert terms == "a version takes 30.0 us for each tensor and 8.40 ns for each byte that a receiver brings"
    assert memory == [
        "memory of a receiver, update, beyond its module: 64.0 MiB, without the store 1.00 MiB",
        "memory of a receiver, stage, beyond its module: 512 MiB, without the store 256 MiB",
    ]


def test_without_room_for_a_version_the_summary_has_nothing_staged() -> None:
    found = {
        "settings": {"trainers": 1, "receivers": 8, "parts": 1, "bytes": 2**28, "repeats": 1, "rate": 10**9},
        **{step: {"seconds": [2.0], "median": 2.0} for step in ("wire", "update", "join")},
        "terms": {"tensor": 3e-5, "byte": 8.4e-9},
        "ratios": {"update": 1.0, "join": 1.0},
        "memory": {"update": {"memory": 2**26, "private memory": 2**20}},
    }
    assert len(weights.summary(found).splitlines()) == 6


@pytest.mark.parametrize("size", ["2", "4097"])
def test_a_size_that_is_no_module_is_rejected(size: str) -> None:
    done = CliRunner().invoke(bench, ["weights", "--size", size])
    assert done.exit_code != 0
    assert "are not a module of float32: set --size to a multiple of 4" in f"{done.output}{done.exception}"


def test_each_part_has_an_element() -> None:
    done = CliRunner().invoke(bench, ["weights", "--size", "64", "--parts", "17"])
    assert "64 bytes are fewer than 17 float32: set a larger --size" in f"{done.output}{done.exception}"


SHAPES = """
import math, sys
sys.path[:0] = sys.argv[1:]
from weights_rank import shapes_of
for nbytes in (4, 4096, 2**22, 2**24 + 8192, 2**24 + 12, 2**28):
    shapes = shapes_of(nbytes)
    assert 4 * sum(map(math.prod, shapes)) == nbytes, (nbytes, shapes)
    print(len(shapes))
"""


@pytest.mark.peers
def test_a_module_has_the_requested_size() -> None:
    python = installed(weights.Weights(0.1)).python
    assert python is not None
    command = [str(python), "-c", SHAPES, str(RANKS), *python_path().split(":")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1", "1", "1", "6", "5", "94"]


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)
@pytest.mark.parametrize("nbytes", [2**22, 3 * 2**17])
def test_two_receivers_update_their_modules(nbytes: int) -> None:
    installed(weights.Weights(0.1))
    with Lab(hosts=3) as lab:
        found = weights.measure(lab, Environments(install=False), nbytes=nbytes, repeats=1)
    assert found["settings"]["receivers"] == 2
    for step in ("wire", "update", "join", "tensors", "switch", "memcpy"):
        assert len(found[step]["seconds"]) == 1
        assert found[step]["median"] > 0
    assert found["ratios"]["update"] == found["update"]["median"] / found["wire"]["median"]
    assert found["ratios"]["switch"] == found["switch"]["median"] / found["memcpy"]["median"]
    assert found["terms"] == {
        "tensor": found["tensors"]["median"] / weights.TENSORS,
        "byte": found["update"]["median"] / nbytes,
    }
    # A staged version is another copy of the module, wherever it is.
    assert found["memory"]["stage"]["memory"] >= nbytes


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)
def test_ranks_of_a_trainer_and_of_tensor_parallelism() -> None:
    installed(weights.Weights(0.1))
    with Lab(hosts=5) as lab:
        environments = Environments(install=False)
        found = weights.measure(lab, environments, nbytes=2**23, repeats=1, trainers=2, parts=2, bucket=2**20)
    assert {found["settings"][name] for name in ("trainers", "parts")} == {2}
    assert found["settings"]["receivers"] == 3
    first, *_ = weights.summary(found).splitlines()
    expected = (
        "weights of 8 MiB from 2 ranks of a trainer to 3 receivers, each of which brings 1/2, 1 rounds, verified:"
    )
    assert first == expected


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)
def test_receivers_with_small_stores_receive_buckets() -> None:
    installed(weights.Weights(0.1))
    with Lab(hosts=3) as lab:
        found = weights.measure(lab, Environments(install=False), nbytes=2**24, repeats=1, bucket=2**20, capacity=2**23)
    assert found["ratios"].keys() == {"update", "join"}
    assert found["memory"].keys() == {"update"}
