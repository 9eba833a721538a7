"""Weights of trainers that shard them: all ranks publish, and each receiver brings its own part."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch.distributed.tensor", reason="needs PyTorch with DTensor")

import hoplite.torch as ht
import torch_forks

if TYPE_CHECKING:
    import hoplite

pytestmark = [
    pytest.mark.torch,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


def run_ranks(folder: Path, *steps: tuple[str, list[Any], dict[str, int]]) -> None:
    """Runs steps, each an action with one rank per socket, which form a mesh."""
    program = f"""
import os, runpy, sys, warnings
warnings.simplefilter("ignore")
os.chdir({str(folder)!r})
sys.path.insert(0, {str(Path(__file__).parent)!r})
sys.argv[1:] = [{json.dumps(steps)!r}]
runpy.run_path({str(Path(__file__).parent / "weights_ranks.py")!r}, run_name="__main__")
"""
    ((status, output),) = torch_forks.run(program, [os.environ])
    assert status == 0, output


@pytest.mark.parametrize(
    ("trainer", "receiver"),
    [
        ({"data": 3}, {"data": 2}),
        ({"replica": 2, "shard": 2}, {"data": 3}),
        ({"data": 2, "tp": 2}, {"data": 1, "tp": 2}),
        ({"data": 2}, {"data": 2, "tp": 2}),
    ],
)
def test_ranks_of_a_trainer_publish_their_parts(
    nodes: list[hoplite.Node], tmp_path: Path, trainer: dict[str, int], receiver: dict[str, int]
) -> None:
    """By FSDP2, with replicas, and with tensor parallelism; receivers shard the same model in another way."""

    def sockets(axes: dict[str, int]) -> list[Any]:
        count = 1
        for length in axes.values():
            count *= length
        return [nodes[rank % len(nodes)].socket for rank in range(count)]

    run_ranks(tmp_path, ("publish", sockets(trainer), trainer), ("receive", sockets(receiver), receiver))
    with nodes[0].client() as client:
        # No rank has put what another one has put.
        stored = sum(row["bytes"] for row in client.directory() if row["ref"].startswith("@"))
        tensors = ht.fetch("run/1", client=client, timeout=30).values()
        nbytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        assert stored < 3.1 * nbytes


@pytest.mark.parametrize("axes", [{"data": 3}, {"data": 2, "other": 2}])
def test_uneven_parts_and_tensors_of_single_ranks(
    nodes: list[hoplite.Node], tmp_path: Path, axes: dict[str, int]
) -> None:
    count = 3 if len(axes) == 1 else 4
    run_ranks(tmp_path, ("odd", [nodes[rank % len(nodes)].socket for rank in range(count)], axes))
