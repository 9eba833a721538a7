"""Ranks that pass other dtypes, sizes or operators than their peers: an error on every rank, never other numbers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from torch_ranks import errors_in_threads, in_threads, options

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

import torch.distributed as dist  # noqa: E402 - after the check that torch exists

import hoplite.torch  # noqa: E402

RANKS = 3
# In messages, and in the store's memory: one size for each way to fold.
SIZES = (1, 1000, 100_000)
# Far above the duration of a test: an error at this time would be a rank that waited for its peers in vain.
TIMEOUT_S = 120


@pytest.fixture(autouse=True)
def _node() -> Iterator[None]:
    with hoplite.Node(capacity="256MiB") as node:
        hoplite.init(node=node)
        yield
        hoplite.shutdown()


def errors(call: Any, ranks: int = RANKS) -> list[str]:
    """Calls a function with the group and the number of each rank; returns each rank's error."""

    def calls(group: Any, rank: int) -> None:
        call(group, rank)
        # A rank that needs nothing of the others gets the error from its next operation.
        group.barrier(options("Barrier"))

    return errors_in_threads(ranks, TIMEOUT_S, calls)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("odd", range(RANKS))
def test_an_all_reduce_of_two_dtypes_fails_on_all_ranks_and_names_both(size: int, odd: int) -> None:
    def call(group: Any, rank: int) -> None:
        tensor = torch.ones(size, dtype=torch.int32 if rank == odd else torch.float32)
        group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.SUM))

    for text in errors(call):
        assert "float32" in text
        assert "int32" in text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("odd", range(RANKS))
@pytest.mark.parametrize(("usual", "other"), [("SUM", "MAX"), ("AVG", "SUM"), ("BAND", "BOR"), ("MIN", "BXOR")])
def test_an_all_reduce_with_two_operators_fails_on_all_ranks_and_names_both(
    size: int, odd: int, usual: str, other: str
) -> None:
    dtype = torch.float32 if "B" not in usual + other else torch.int32

    def call(group: Any, rank: int) -> None:
        op = getattr(dist.ReduceOp, other if rank == odd else usual)
        group.allreduce([torch.ones(size, dtype=dtype)], options("Allreduce", reduceOp=op))

    for text in errors(call):
        assert usual in text
        assert other in text


@pytest.mark.parametrize("sizes", [(3, 4), (1000, 100_000), (100_000, 100_001)])
@pytest.mark.parametrize("odd", range(RANKS))
def test_an_all_reduce_of_two_sizes_fails_on_all_ranks_and_names_both(sizes: tuple[int, int], odd: int) -> None:
    def call(group: Any, rank: int) -> None:
        group.allreduce([torch.ones(sizes[rank == odd])], options("Allreduce", reduceOp=dist.ReduceOp.SUM))

    for text in errors(call):
        assert f"[{sizes[0]}]" in text
        assert f"[{sizes[1]}]" in text


def test_shapes_of_one_size_may_differ_as_with_gloo() -> None:
    def body(group: Any, rank: int) -> None:
        for size in SIZES:
            tensor = torch.ones((1, size) if rank else (size, 1))
            group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
            assert tensor.eq(RANKS).all()

    in_threads(RANKS, TIMEOUT_S, body)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["SUM", "BOR"])
def test_a_reduce_and_a_reduce_scatter_compare_dtypes_and_operators(size: int, op: str) -> None:
    def reduce(group: Any, rank: int) -> None:
        kind = getattr(dist.ReduceOp, op if rank else "BAND" if op == "BOR" else "MAX")
        group.reduce([torch.ones(size, dtype=torch.int32)], options("Reduce", rootRank=1, reduceOp=kind))

    def reduce_scatter(group: Any, rank: int) -> None:
        kind = torch.int64 if rank == 2 else torch.uint64
        parts = [torch.ones(size).to(kind) for _ in range(RANKS)]
        group.reduce_scatter(
            [torch.ones(size).to(kind)], [parts], options("ReduceScatter", reduceOp=getattr(dist.ReduceOp, op))
        )

    for text in errors(reduce):
        assert ("BOR" in text and "BAND" in text) or ("SUM" in text and "MAX" in text)
    for text in errors(reduce_scatter):
        assert "int64" in text
        assert "uint64" in text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["broadcast", "all_gather", "gather", "scatter", "all_to_all", "sparse"])
def test_bytes_of_one_dtype_are_never_read_as_another(size: int, op: str) -> None:
    """Both dtypes have four bytes."""

    def call(group: Any, rank: int) -> None:
        kind = torch.float32 if rank else torch.int32
        own, lists = torch.ones(size, dtype=kind), [torch.ones(size, dtype=kind) for _ in range(RANKS)]
        if op == "broadcast":
            group.broadcast([own], options("Broadcast", rootRank=0))
        elif op == "all_gather":
            group.allgather([lists], [own], options("Allgather"))
        elif op == "gather":
            group.gather([lists] if rank == 0 else [], [own], options("Gather", rootRank=0))
        elif op == "scatter":
            group.scatter([own], [lists] if rank == 0 else [], options("Scatter", rootRank=0))
        elif op == "all_to_all":
            group.alltoall(lists, [own] * RANKS, options("AllToAll"))
        else:
            group.allreduce([own.to_sparse()], options("Allreduce", reduceOp=dist.ReduceOp.SUM))

    for text in errors(call):
        assert "float32" in text
        assert "int32" in text


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_another_dtype_or_size_is_refused_by_its_receiver(size: int) -> None:
    over = threading.Barrier(2)

    def body(group: Any, rank: int) -> None:
        if rank == 0:
            group.send([torch.ones(size)], 1, 0).wait()
            group.send([torch.ones(size)], 1, 0).wait()
        else:
            with pytest.raises(dist.DistBackendError, match=r"float32.*int32"):
                group.recv([torch.ones(size, dtype=torch.int32)], 0, 0).wait()
            with pytest.raises(dist.DistBackendError, match=rf"\[{size}\].*\[{size + 1}\]"):
                group.recv([torch.ones(size + 1)], 0, 0).wait()
            tensor = torch.zeros(size)
            group.recv([tensor], 0, 0).wait()
            assert tensor.eq(1).all()
        over.wait()

    in_threads(2, TIMEOUT_S, body)
