"""What the study measures: ranks of a number of workers, cells, their order, and refused names."""

from __future__ import annotations

import math

import pytest

from hoplite.errors import InvalidArgument
from hoplite_bench.study import matrix, paper
from hoplite_bench.study.matrix import StudyCell, Unit


def test_a_server_is_a_rank_besides_the_workers() -> None:
    assert [matrix.ranks_of(op, 4) for op in (*matrix.OPS, *matrix.TRAINING)] == [5, 5, 4, 4, 4, 4]
    for op in (*matrix.OPS, *matrix.TRAINING):
        assert matrix.workers_of(op, matrix.ranks_of(op, 3)) == 3


def test_the_published_steps_follow_from_its_workers() -> None:
    assert math.ceil(50_000 / 32 / paper.WORKERS) == paper.STEPS
    of_nccl = {one["torch-nccl"].steps for one in paper.TRAINED["train-ps"].values()}
    assert of_nccl == {math.ceil(50_000 / 32 / (paper.WORKERS - 1))}, "its server takes one of the GPUs"


def test_training_is_measured_with_the_most_workers_only() -> None:
    cells = matrix.cells(["bare"], ["gather", "train-ps"], [1, 3, 2], 4096)
    assert [(cell.op, cell.workers) for cell in cells] == [("gather", 1), ("gather", 2), ("gather", 3), ("train-ps", 3)]
    assert cells[-1].nbytes != 4096, "training has the size of its model"


def test_units_have_the_most_ranks_first() -> None:
    cells = matrix.cells(["bare", "cross"], ["gather", "allreduce"], [1, 2], 4096)
    found = [
        (unit.container, unit.ranks, [(cell.op, cell.workers) for cell in unit.cells]) for unit in matrix.units(cells)
    ]
    assert found == [
        ("bare", 3, [("gather", 2)]),
        ("cross", 3, [("gather", 2)]),
        ("bare", 2, [("gather", 1), ("allreduce", 2)]),
        ("cross", 2, [("gather", 1), ("allreduce", 2)]),
        ("bare", 1, [("allreduce", 1)]),
        ("cross", 1, [("allreduce", 1)]),
    ]


def test_a_cell_names_its_set_up_and_workers() -> None:
    assert str(StudyCell("gather", 4096, container="cross", workers=1)) == "gather of 4096 bytes, 1 worker, cross"
    assert Unit("cross", 2, ()).ranks == 2


def test_systems_belong_to_layers() -> None:
    assert {matrix.layer_of(name) for name in matrix.systems(["shell"])} == {"shell"}
    assert {matrix.layer_of(name) for name in matrix.systems(["torch"])} == {"torch"}
    assert not {"ray", "dask"} & set(matrix.systems(matrix.LAYERS))
    assert matrix.systems(["torch"], ["wire", "torch-gloo"]) == ["wire", "torch-gloo"]


@pytest.mark.parametrize(
    ("containers", "ops", "workers", "message"),
    [
        (["docker"], ["gather"], [1], "unknown container set-up 'docker'.*choose from bare, hpc, single, cross"),
        (["bare"], ["gathr"], [1], r"unknown operation 'gathr' \(did you mean gather\?\)"),
        (["bare"], ["reduce"], [1], "unknown operation 'reduce'"),
        (["bare"], ["gather"], [0], "0 workers are out of range: set 1 to 16"),
        (["bare"], ["gather"], [17], "17 workers are out of range"),
    ],
)
def test_bad_cells_are_refused(containers: list[str], ops: list[str], workers: list[int], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        matrix.cells(containers, ops, workers, 4096)


def test_bad_sizes_and_systems_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not an array of float32"):
        matrix.cells(["bare"], ["gather"], [1], 4097)
    with pytest.raises(InvalidArgument, match="unknown layer 'gpu'"):
        matrix.systems(["gpu"])
    with pytest.raises(InvalidArgument, match=r"unknown system 'glo' \(did you mean gloo\?\)"):
        matrix.systems(["shell"], ["glo"])
    with pytest.raises(InvalidArgument, match="torch-gloo is in the layer torch: add torch to --layers"):
        matrix.systems(["shell"], ["torch-gloo"])
