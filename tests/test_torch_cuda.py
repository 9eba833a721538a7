"""Tensors on a GPU: operations of a process group and weights pass through pinned host memory."""

from __future__ import annotations

from typing import Any

import pytest

import hoplite
from torch_ranks import in_threads

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("this machine has no GPU that torch can use", allow_module_level=True)

pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402 - after the check that torch exists
from torch._C import _distributed_c10d as c10d  # noqa: E402

import hoplite.torch  # noqa: E402

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def _node() -> Any:
    with hoplite.Node(capacity="1GiB") as node:
        hoplite.init(node=node)
        yield
        hoplite.shutdown()


def test_collectives_of_tensors_on_a_gpu() -> None:
    def body(group: Any, rank: int) -> None:
        tensor = torch.full((SIZE,), float(rank), device="cuda")
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        work = group.allreduce([tensor], options)
        work.wait()
        assert tensor.eq(1).all()
        options = c10d.BroadcastOptions()
        options.rootRank = 1
        # Written by a kernel that may still run when the operation starts.
        tensor = torch.full((SIZE,), float(rank), device="cuda").mul_(2)
        group.broadcast([tensor], options).wait()
        assert tensor.eq(2).all()
        lists = [torch.empty(SIZE, device="cuda") for _ in range(2)]
        group.allgather([lists], [torch.full((SIZE,), float(rank), device="cuda")], c10d.AllgatherOptions()).wait()
        assert [one[-1].item() for one in lists] == [0, 1]

    in_threads(2, 60, body)


def test_operations_follow_the_stream_of_their_caller() -> None:
    def body(group: Any, rank: int) -> None:
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        for _ in range(5):
            tensor = torch.zeros(SIZE, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                # Long after the call, on another stream than the default one.
                torch.cuda._sleep(50_000_000)
                tensor.fill_(rank + 1)
                group.allreduce([tensor], options).wait()
                assert tensor.eq(3).all()

    in_threads(2, 60, body)


def test_weights_of_a_module_on_a_gpu() -> None:
    def module(value: float) -> Any:
        made = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)).to("cuda", torch.bfloat16)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.fill_(value)
        return made

    hoplite.torch.publish(module(3), "policy/1")
    receiver = module(0)
    assert hoplite.torch.fetch("policy/", into=receiver, timeout=30).version == 1
    assert all(parameter.eq(3).all() for parameter in receiver.parameters())
    hoplite.torch.publish(module(4), "policy/2")
    staged = hoplite.torch.fetch("policy/", into=receiver, after=1, stage=True, timeout=30)
    assert all(parameter.eq(3).all() for parameter in receiver.parameters())
    staged.switch()
    assert all(parameter.eq(4).all() for parameter in receiver.parameters())
