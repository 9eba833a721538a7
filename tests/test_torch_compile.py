"""`torch.compile` around the backend: the results that the same functions give without it.

The wheel of torch has none of PyTorch's tests of compiled collectives. These call what those call.
"""

from __future__ import annotations

import pytest

from torch_ranks import free_port, in_processes

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

RANKS = 2

PROGRAM = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional

def broadcast(t):
    dist.broadcast(t, 1)
    return t + 1

def all_reduce(t):
    dist.all_reduce(t)
    return t + 1

def all_reduce_of_a_group(t):
    dist.all_reduce(t, group=PAIR)
    return t + 1

def all_reduce_async(t):
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    return t + 1

def all_reduce_async_by_its_future(t):
    return dist.all_reduce(t, async_op=True).get_future().wait()[0] + 1

def reduce(t):
    dist.reduce(t, 0)
    return t + 1

def gather(t):
    outputs = [torch.empty_like(t) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(t, outputs, 0)
    return torch.cat(outputs) if outputs else t

def all_gather(t):
    outputs = [torch.empty_like(t) for _ in range(SIZE)]
    dist.all_gather(outputs, t)
    return torch.cat(outputs)

def all_gather_into_tensor(t):
    output = torch.empty(SIZE * t.numel())
    dist.all_gather_into_tensor(output, t)
    return output + 1

def all_gather_async(t):
    output = torch.empty(SIZE * t.numel())
    dist.all_gather_into_tensor(output, t, async_op=True).wait()
    return output + 1

def scatter(t):
    dist.scatter(t, [t + rank for rank in range(SIZE)] if RANK == 0 else None, 0)
    return t + 1

def reduce_scatter_tensor(t):
    output = torch.empty_like(t)
    dist.reduce_scatter_tensor(output, t.repeat(SIZE))
    return output + 1

def all_to_all_single(t):
    output = torch.empty(SIZE * t.numel())
    dist.all_to_all_single(output, t.repeat(SIZE))
    return output + 1

def send_and_recv(t):
    if RANK == 0:
        dist.send(t, 1)
    else:
        dist.recv(t, 0)
    return t + 1

def isend_and_irecv(t):
    (dist.isend(t, 1) if RANK == 0 else dist.irecv(t, 0)).wait()
    return t + 1

def batch_isend_irecv(t):
    output = torch.empty_like(t)
    calls = [dist.P2POp(dist.isend, t, 1 - RANK), dist.P2POp(dist.irecv, output, 1 - RANK)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return output + 1

def barrier(t):
    dist.barrier()
    return t + 1

def functional_all_reduce(t):
    return functional.all_reduce(t, "sum", dist.group.WORLD) + 1

def functional_all_gather(t):
    return functional.all_gather_tensor(t, 0, dist.group.WORLD) + 1

def functional_reduce_scatter(t):
    return functional.reduce_scatter_tensor(t.repeat(SIZE), "sum", 0, dist.group.WORLD) + 1

OPERATIONS = [value for value in globals().values() if hasattr(value, "__code__")]

import hoplite.torch

dist.init_process_group("hoplite")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
PAIR = dist.new_group([0, 1])
for operation in OPERATIONS:
    compiled = torch.compile(operation, backend="aot_eager")
    for value in range(3):
        expected = operation(torch.full((8,), float(RANK + value)))
        result = compiled(torch.full((8,), float(RANK + value)))
        assert torch.equal(result, expected), f"{operation.__name__}: {result} instead of {expected}"

def parameters(wrap):
    torch.manual_seed(1)
    module = wrap(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    for step in range(3):
        optimizer.zero_grad()
        module(torch.full((3, 4), float(RANK + step))).sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]

usual = parameters(lambda module: module)
compiled = parameters(lambda module: torch.compile(module, backend="aot_eager"))
for one, other in zip(compiled, usual, strict=True):
    assert torch.equal(one, other), f"{one} instead of {other}"
print(len(OPERATIONS), "operations")
dist.destroy_process_group()
"""


def test_compiled_collectives_and_compiled_training_give_the_results_without_the_compiler() -> None:
    ended = in_processes(RANKS, free_port(), PROGRAM)
    assert [status for status, _ in ended] == [0] * RANKS, ended
    assert all("20 operations" in output for _, output in ended), ended
