"""Training with the backend "hoplite": the same parameters as with Gloo, and as in one process with the whole batch.

All numbers are multiples of a power of two that 64 bits hold exactly, so the order of additions does not matter.
"""

from __future__ import annotations

import os

import pytest

import torch_forks

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

PROGRAM = """
import datetime, os, sys, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
import hoplite.torch

RANKS, ROWS, STEPS, RATE = 4, 8, 2, 2.0**-2

def whole_numbers(*shape):
    return torch.randint(-2, 3, shape).double()

def model():
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 2)).double()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(whole_numbers(*parameter.shape))
    return layers

def train(module, rows):
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for _ in range(STEPS):
        inputs, targets = whole_numbers(RANKS * ROWS, 12)[rows], whole_numbers(RANKS * ROWS, 2)[rows]
        optimizer.zero_grad()
        ((module(inputs) - targets) ** 2).sum(dim=1).mean().backward()
        optimizer.step()

def ddp(layers):
    return DistributedDataParallel(layers, bucket_cap_mb=0.001), lambda module: list(module.parameters())

def fsdp(layers):
    module = FullyShardedDataParallel(layers, device_id=torch.device("cpu"), use_orig_params=True)
    def whole(module):
        with FullyShardedDataParallel.summon_full_params(module):
            return [parameter.detach().clone() for parameter in module.parameters()]
    return module, whole

def fully(layers):
    for layer in (layers[0], layers):
        fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (RANKS,)))
    return layers, lambda module: [parameter.full_tensor() for parameter in module.parameters()]

def rank_main(rank, folder):
    alone = model()
    train(alone, slice(None))
    expected = list(alone.parameters())
    start = list(model().parameters())
    assert not any(torch.equal(one, other) for one, other in zip(expected, start)), "nothing was learned"
    for backend in ("gloo", "hoplite"):
        dist.init_process_group(
            backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=RANKS,
            timeout=datetime.timedelta(seconds=60),
        )
        assert dist.get_backend() == backend
        for way in (ddp, fsdp, fully):
            module, whole = way(model())
            train(module, slice(rank * ROWS, (rank + 1) * ROWS))
            for number, (one, other) in enumerate(zip(whole(module), expected, strict=True)):
                difference = (one - other).abs().max()
                assert torch.equal(one, other), f"{way}, {backend}: parameter {number} differs by {difference}"
        dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(rank_main, (folder,), RANKS, start_method="fork")
    print("all ranks learned the same")
"""


def test_training_reaches_the_same_parameters_as_with_gloo() -> None:
    """By DistributedDataParallel, FullyShardedDataParallel and `fully_shard`."""
    ((status, output),) = torch_forks.run("import warnings\nwarnings.simplefilter('ignore')\n" + PROGRAM, [os.environ])
    assert (status, output) == (0, "all ranks learned the same\n")


DEATH = """
import datetime, os, signal, tempfile
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
import hoplite.torch

RANKS = 3

def rank_main(rank, folder):
    dist.init_process_group(
        "hoplite", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=60),
    )
    module = DistributedDataParallel(nn.Linear(4, 2))
    module(torch.ones(3, 4)).sum().backward()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        module(torch.ones(3, 4)).sum().backward()
    except RuntimeError as error:
        print(error, flush=True)
        os._exit(0)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.start_processes(rank_main, (folder,), RANKS, join=False, start_method="fork").processes
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [0, -signal.SIGKILL, 0], [p.exitcode for p in ranks]
"""


@pytest.mark.faults("a rank is killed")
def test_training_ends_with_an_error_when_a_rank_dies() -> None:
    ((status, output),) = torch_forks.run(DEATH, [os.environ])
    assert status == 0, output
    assert output.count("rank 1 died") == 2
