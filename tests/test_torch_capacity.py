"""Operations that do not fit into the store: they fail on all ranks at once, with the reason of the first."""

from __future__ import annotations

import textwrap
import threading
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from hoplite import testing
from torch_ranks import errors_in_threads, free_port, in_processes, in_threads, options

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

import torch.distributed as dist  # noqa: E402 - after the check that torch exists

import hoplite.torch  # noqa: E402

RANKS = 3
MIB = 1 << 20
# Far above the duration of a test: an operation that waits for space fails at this time.
TIMEOUT_S = 120


@pytest.fixture(autouse=True)
def _node() -> Iterator[None]:
    with hoplite.Node(capacity="64MiB") as node:
        hoplite.init(node=node)
        yield
        hoplite.shutdown()


def errors(call: Any) -> list[str]:
    """Calls a function with the group and the number of each rank; returns each rank's error."""
    return errors_in_threads(RANKS, TIMEOUT_S, call)


def call(group: Any, rank: int, op: str, mib: int) -> None:
    """Calls an operation with a tensor of so many MiB on each rank."""
    own = torch.full((mib * MIB // 4,), 1, dtype=torch.int32)
    lists = [torch.empty_like(own) for _ in range(RANKS)]
    if op == "all_reduce":
        group.allreduce([own], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
    elif op == "all_reduce by torch":
        group.allreduce([own], options("Allreduce", reduceOp=dist.ReduceOp.BOR))
    elif op == "reduce":
        group.reduce([own], options("Reduce", rootRank=1, reduceOp=dist.ReduceOp.SUM))
    elif op == "reduce_scatter":
        parts = list(own.chunk(RANKS))
        group.reduce_scatter(
            [torch.empty_like(parts[rank])], [parts], options("ReduceScatter", reduceOp=dist.ReduceOp.MAX)
        )
    elif op == "all_gather":
        group.allgather([lists], [own], options("Allgather"))
    elif op == "gather":
        group.gather([lists] if rank == 0 else [], [own], options("Gather", rootRank=0))
    elif op == "all_to_all":
        group.all_to_all_single(torch.empty_like(own), own, [], [], options("AllToAll"))
    elif op == "all_to_all in lists":
        group.alltoall(list(torch.empty_like(own).chunk(RANKS)), list(own.chunk(RANKS)), options("AllToAll"))
    elif op == "scatter":
        group.scatter([own], [lists] if rank == 0 else [], options("Scatter", rootRank=0))
    else:
        group.broadcast([own], options("Broadcast", rootRank=2))


@pytest.mark.parametrize(
    ("op", "fits", "does_not"),
    [
        # The inputs of three ranks and the result, in 64 MiB.
        ("all_reduce", 15, 18),
        ("all_reduce by torch", 18, 24),
        ("reduce", 15, 18),
        ("reduce_scatter", 15, 21),
        ("all_gather", 18, 24),
        ("gather", 18, 36),
        # These need space for one input at a time.
        ("scatter", 36, 72),
        ("broadcast", 60, 72),
        ("all_to_all", 180, 216),
        ("all_to_all in lists", 180, 216),
    ],
)
def test_an_operation_that_exceeds_the_capacity_fails_before_it_waits_for_space(
    op: str, fits: int, does_not: int
) -> None:
    assert all(
        "capacity of 67108864 bytes" in text for text in errors(lambda group, rank: call(group, rank, op, does_not))
    )
    in_threads(RANKS, TIMEOUT_S, lambda group, rank: call(group, rank, op, fits))


def test_a_rank_that_can_not_send_ends_the_wait_of_the_receiver() -> None:
    def body(group: Any, rank: int) -> None:
        if rank == 0:
            group.send([torch.empty(72 * MIB // 4)], 1, 0).wait()
        else:
            group.recv([torch.empty(72 * MIB // 4)], 0, 0).wait()

    assert all("capacity of 67108864 bytes" in text for text in errors(body)[:2])


def test_an_error_in_what_a_rank_receives_ends_its_wait_for_space() -> None:
    def body(group: Any, rank: int) -> None:
        inputs, outputs = ([torch.empty(40 * MIB, dtype=torch.uint8) for _ in range(RANKS)] for _ in range(2))
        if rank == 0:
            outputs[1:] = [output[1:] for output in outputs[1:]]
        group.alltoall(outputs, inputs, options("AllToAll"))

    assert all("pass tensors of one dtype and size" in text for text in errors(body))


@pytest.mark.parametrize("odd", range(RANKS))
def test_an_error_of_one_rank_reaches_the_others_with_its_reason(odd: int) -> None:
    def body(group: Any, rank: int) -> None:
        tensor = torch.ones(2, 3)
        if rank == odd:
            # A result can't be copied into it: several elements are one.
            tensor = torch.ones(1).expand(2, 3)
        group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
        group.barrier(options("Barrier"))

    over = threading.Barrier(RANKS)

    def caught(group: Any, rank: int) -> str:
        try:
            with pytest.raises(RuntimeError) as error:
                body(group, rank)
            return str(error.value)
        finally:
            over.wait()

    texts = in_threads(RANKS, TIMEOUT_S, caught)
    assert all("single memory location" in text for text in texts), texts


OF_TWO_HOSTS = """
    import os
    rank = int(os.environ["RANK"])
    os.environ["HOPLITE_ADDRESS"] = {addresses!r}[rank]
    import hoplite.torch, torch, torch.distributed as dist
    from datetime import timedelta
    dist.init_process_group("hoplite", timeout=timedelta(seconds={timeout_s}))
    values = torch.full((2 * {mib} << 20,), rank, dtype=torch.uint8)
    output = torch.empty_like(values)
    try:
        dist.all_to_all_single(output, values)
        assert [int(part.max()) for part in output.chunk(2)] == [0, 1]
        print("received")
    except dist.DistBackendError as error:
        print(error)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("mib", "text"), [(24, "received"), (40, "need 83886080 bytes at the same time")])
def test_all_to_all_needs_space_for_what_a_host_sends_to_others_and_one_tensor(mib: int, text: str) -> None:
    with testing.cluster(2, capacity="64MiB") as nodes:
        addresses = [f"unix:{node.socket}" for node in nodes]
        program = textwrap.dedent(OF_TWO_HOSTS).format(addresses=addresses, mib=mib, timeout_s=TIMEOUT_S)
        ended = in_processes(2, free_port(), program)
    assert [status for status, _ in ended] == [0, 0], ended
    assert all(text in output for _, output in ended), ended
