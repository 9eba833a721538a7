"""A program for tests of checkpoints: runs steps, each with ranks of its own, on one checkpoint.

Its argument is a list of steps in JSON: an action, the sockets of the nodes of its ranks, and the name of the
checkpoint. Ranks are forked, so that torch is imported once. Tensors hold whole numbers, so that each rank can check
what it loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, zeros

import hoplite
from hoplite.torch.checkpoint import HopliteReader, HopliteWriter

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = torch.arange(120_000, dtype=torch.float32).view(600, 200)
# Shards differ in size, and the last can be empty.
ODD = torch.arange(35, dtype=torch.int64).view(7, 5)
SAME = torch.arange(1000).to(torch.bfloat16)

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate()}


def save(mesh: Any, client: hoplite.Client, name: str) -> None:
    """Saves tensors that are sharded, replicated and plain, and other values."""
    state = {
        "model": {"rows": distribute_tensor(ROWS, mesh, [Shard(0)]), "odd": distribute_tensor(ODD, mesh, [Shard(0)])},
        "same": SAME,
        "everywhere": distribute_tensor(ODD, mesh, [Replicate()]),
        "step": 17,
        "rates": [0.5, {"name": "warm"}],
    }
    dcp.save(state, storage_writer=HopliteWriter(name, replicas=2, client=client))


def load(mesh: Any, client: hoplite.Client, name: str, how: Any) -> None:
    """Loads them, placed in another way, and checks them."""
    state: dict[str, Any] = {
        "model": {
            "rows": zeros(600, 200, device_mesh=mesh, placements=[how]),
            "odd": zeros(7, 5, dtype=torch.int64, device_mesh=mesh, placements=[how]),
        },
        "same": torch.zeros(1000, dtype=torch.bfloat16),
        "everywhere": zeros(7, 5, dtype=torch.int64, device_mesh=mesh, placements=[how]),
        "step": 0,
        "rates": [0.0, {"name": ""}],
    }
    dcp.load(state, storage_reader=HopliteReader(name, client=client))
    assert torch.equal(state["model"]["rows"].full_tensor(), ROWS)
    assert torch.equal(state["model"]["odd"].full_tensor(), ODD)
    assert torch.equal(state["everywhere"].full_tensor(), ODD)
    assert torch.equal(state["same"], SAME)
    assert state["step"] == 17
    assert state["rates"] == [0.5, {"name": "warm"}]


def run(rank: int, step: int, action: str, sockets: list[str], name: str) -> None:
    """Runs one rank of one step. Its group meets in a file of the current directory."""
    rendezvous = f"file://{os.getcwd()}/{step}"  # noqa: PTH109 - a URL
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=len(sockets))
    client = hoplite.connect(f"unix:{sockets[rank]}")
    mesh = init_device_mesh("cpu", (len(sockets),))
    if action == "save":
        save(mesh, client, name)
    else:
        load(mesh, client, name, PLACEMENTS[action])
    dist.barrier()
    dist.destroy_process_group()


def fork(rank: Callable[..., None], *arguments: Any) -> int:
    """Runs a rank in a child, which ends after 90 s at the latest; returns its PID."""
    child = os.fork()
    if child == 0:
        signal.alarm(90)
        try:
            rank(*arguments)
        except BaseException:  # noqa: BLE001 - printed, and the child ends
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def run_steps(rank: Callable[..., None], steps: list[Any]) -> None:
    """Runs steps of ranks, one after the other.

    Args:
        rank: what a rank does, given its number, that of the step, and the step.
        steps: an action, the sockets of the nodes of its ranks, and what it gets.

    Raises:
        AssertionError: a rank failed.
    """
    for step, (action, sockets, what) in enumerate(steps):
        ranks = [fork(rank, number, step, action, sockets, what) for number in range(len(sockets))]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
        assert ended == [0] * len(ranks), (action, what, ended)


def main() -> None:
    """Runs the steps; ends with an error if a rank fails."""
    run_steps(run, json.loads(sys.argv[1]))


if __name__ == "__main__":
    main()
