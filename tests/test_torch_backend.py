"""The backend "hoplite" of torch.distributed: each operation gives the result that Gloo gives, or a clear error."""

from __future__ import annotations

import gc
import re
import textwrap
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

import hoplite
from torch_ranks import errors_in_threads, free_port, in_processes, in_threads, options

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

import torch.distributed as dist  # noqa: E402 - after the check that torch exists

import hoplite.torch  # noqa: E402
from hoplite.torch.backend.work import Work  # noqa: E402

# In the store's memory, in messages, and of all ranks.
SIZES = (1, 1000, 100_000)
RANKS = 3
DTYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _node() -> Any:
    with hoplite.Node(capacity="256MiB") as node:
        hoplite.init(node=node)
        yield
        hoplite.shutdown()


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_folds_every_dtype_of_the_store(dtype: str) -> None:
    kind = getattr(torch, dtype)

    def body(group: Any, rank: int) -> None:
        for size in SIZES:
            tensor = torch.full((size,), rank + 1).to(kind)
            group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
            assert torch.equal(tensor, torch.full((size,), 6).to(kind))

    in_threads(RANKS, 20, body)


@pytest.mark.parametrize(
    ("op", "dtype", "result"),
    [
        ("PRODUCT", "float32", 24), ("MIN", "float32", 2), ("MAX", "int64", 4), ("AVG", "float32", 3),
        ("BAND", "int32", 0), ("BOR", "uint8", 7), ("BXOR", "int16", 5), ("BXOR", "bool", 1), ("MIN", "bool", 1),
    ],
)  # fmt: skip
def test_every_operator_gives_its_result(op: str, dtype: str, result: int) -> None:
    def body(group: Any, rank: int) -> None:
        for size in SIZES:
            tensor = torch.full((size,), rank + 2).to(getattr(torch, dtype))
            group.allreduce([tensor], options("Allreduce", reduceOp=getattr(dist.ReduceOp, op)))
            assert torch.equal(tensor, torch.full((size,), result).to(tensor.dtype))

    in_threads(RANKS, 20, body)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_means_of_integers_are_rounded_toward_zero(dtype: str) -> None:
    """As with NCCL: metrics of trainers are such means."""
    kind = getattr(torch, dtype)
    inputs = [5, 2, 4] if dtype.startswith("u") else [-5, -2, -4]
    mean, avg = (3 if inputs[0] > 0 else -3), dist.ReduceOp.AVG

    def body(group: Any, rank: int) -> None:
        for size in SIZES:
            tensor = torch.full((size,), inputs[rank]).to(kind)
            group.allreduce([tensor], options("Allreduce", reduceOp=avg))
            assert tensor.tolist() == [mean] * size
            tensor = torch.full((size,), inputs[rank]).to(kind)
            group.reduce([tensor], options("Reduce", rootRank=1, reduceOp=avg))
            assert tensor[0].item() == (mean if rank == 1 else inputs[rank])
            parts = [torch.full((size,), inputs[rank]).to(kind) for _ in range(RANKS)]
            group.reduce_scatter([tensor], [parts], options("ReduceScatter", reduceOp=avg))
            assert tensor.tolist() == [mean] * size

    in_threads(RANKS, 20, body)


def test_each_collective_fills_what_gloo_fills() -> None:
    def body(group: Any, rank: int) -> None:
        for size in SIZES:
            own = torch.full((size,), float(rank))
            tensor = own.clone()
            group.broadcast([tensor], options("Broadcast", rootRank=1))
            assert tensor.eq(1).all()
            lists = [torch.empty(size) for _ in range(RANKS)]
            group.allgather([lists], [own], options("Allgather"))
            assert [one[0].item() for one in lists] == [0, 1, 2]
            one = torch.empty(RANKS, size)
            group.all_gather_single(one, own, options("Allgather"))
            assert one[:, -1].tolist() == [0, 1, 2]
            lists = [torch.empty(size) for _ in range(RANKS)]
            group.gather([lists] if rank == 2 else [], [own], options("Gather", rootRank=2))
            assert rank != 2 or [one[-1].item() for one in lists] == [0, 1, 2]
            tensor = torch.empty(size)
            parts = [torch.full((size,), float(to)) for to in range(RANKS)]
            group.scatter([tensor], [parts] if rank == 0 else [], options("Scatter", rootRank=0))
            assert tensor.eq(rank).all()
            tensor = own.clone()
            group.reduce([tensor], options("Reduce", rootRank=1, reduceOp=dist.ReduceOp.SUM))
            assert tensor.eq(3 if rank == 1 else rank).all()
            group.reduce_scatter([tensor], [parts], options("ReduceScatter", reduceOp=dist.ReduceOp.SUM))
            assert tensor.eq(RANKS * rank).all()
            group.reduce_scatter_single(tensor, torch.cat(parts), options("ReduceScatter", reduceOp=dist.ReduceOp.SUM))
            assert tensor.eq(RANKS * rank).all()
            lists = [torch.empty(size) for _ in range(RANKS)]
            group.alltoall(lists, [part + 10 * rank for part in parts], options("AllToAll"))
            assert [one[0].item() for one in lists] == [rank, 10 + rank, 20 + rank]
            # Rank r sends s + 1 rows to rank s.
            sent = torch.full((6, size), float(rank))
            came = torch.empty(3 * (rank + 1), size)
            group.all_to_all_single(came, sent, [rank + 1] * RANKS, [1, 2, 3], options("AllToAll"))
            assert came[:, 0].tolist() == [float(source) for source in range(RANKS) for _ in range(rank + 1)]
            group.barrier(options("Barrier"))

    in_threads(RANKS, 20, body)


def test_views_keep_their_strides_and_empty_tensors_pass() -> None:
    def body(group: Any, rank: int) -> None:
        base = torch.zeros(4, 6)
        base[:, ::2] = rank
        view = base[:, ::2]
        group.allreduce([view], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
        assert base.tolist() == [[3, 0] * 3] * 4
        scalar = torch.tensor(rank)
        group.broadcast([scalar], options("Broadcast", rootRank=2))
        assert scalar.item() == 2
        empty = torch.empty(0, 3)
        group.allreduce([empty], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
        group.broadcast([empty], options("Broadcast", rootRank=0))
        lists = [torch.empty(0) for _ in range(RANKS)]
        group.allgather([lists], [torch.empty(0)], options("Allgather"))

    in_threads(RANKS, 20, body)


def test_another_default_device_of_the_caller_is_not_used() -> None:
    def body(group: Any, rank: int) -> None:
        for tensor in (torch.full((3, 3), rank + 1.0).t(), torch.full((3, 3), rank + 1.0).to_sparse()):
            with torch.device("meta"):
                group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.SUM))
            assert tensor.to_dense().eq(6).all()

    in_threads(RANKS, 20, body)


def test_many_operations_run_at_once_and_in_any_order() -> None:
    def body(group: Any, rank: int) -> None:
        asynchronous = options("Allreduce", reduceOp=dist.ReduceOp.SUM, asyncOp=True)
        tensors = [torch.full((size,), float(rank)) for size in (10, 100_000) * 10]
        works = [group.allreduce([tensor], asynchronous) for tensor in tensors]
        for work, tensor in reversed(list(zip(works, tensors, strict=True))):
            assert work.get_future().wait()[0] is not None
            work.wait()
            assert work.is_completed()
            assert tensor.eq(3).all()

    in_threads(RANKS, 20, body)


def test_a_callback_can_wait_for_another_operation() -> None:
    def body(group: Any, _rank: int) -> None:
        asynchronous = options("Allreduce", reduceOp=dist.ReduceOp.SUM, asyncOp=True)
        first, second = torch.ones(100_000), torch.ones(100_000)

        def another(_: Any) -> Any:
            return group.allreduce([second], asynchronous).get_future().wait()

        assert group.allreduce([first], asynchronous).get_future().then(another).wait()[0].eq(RANKS).all()

    in_threads(RANKS, 20, body)


def test_the_future_of_an_operation_that_is_over_is_completed() -> None:
    """DistributedDataParallel reads its value without waiting for it."""

    def body(group: Any, rank: int) -> None:
        asynchronous = options("Allreduce", reduceOp=dist.ReduceOp.SUM, asyncOp=True)
        for _ in range(20):
            tensor = torch.full((1,), float(rank))
            work = group.allreduce([tensor], asynchronous)
            work.wait()
            future = work.get_future()
            assert future.done()
            assert future.value()[0].eq(3).all()

    in_threads(RANKS, 20, body)
    running: Future[None] = Future()
    running.set_exception(dist.DistBackendError("lost"))
    future = Work([], running).get_future()
    assert future.done()
    with pytest.raises(RuntimeError, match="lost"):
        future.value()


def test_ranks_can_gather_tensors_of_other_sizes() -> None:
    sizes = [10, 3 << 20, 20]

    def body(group: Any, rank: int) -> None:
        for _ in range(20):
            lists = [torch.empty(size) for size in sizes]
            group.allgather([lists], [torch.full((sizes[rank],), float(rank))], options("Allgather"))
            assert [one[-1].item() for one in lists] == [0, 1, 2]
            tensor = torch.full((10,), float(rank))
            group.broadcast([tensor], options("Broadcast", rootRank=0))
            assert tensor.eq(0).all()

    in_threads(RANKS, 30, body)


def test_a_message_that_failed_does_not_count() -> None:
    late = threading.Barrier(2)

    def body(group: Any, rank: int) -> None:
        if rank == 0:
            with pytest.raises(hoplite.InvalidArgument, match="pass a dense tensor"):
                group.send([torch.eye(3).to_sparse()], 1, 0)
            late.wait()
            group.send([torch.full((9,), 5.0)], 1, 0).wait()
            return
        tensor = torch.zeros(9)
        group.set_timeout(timedelta(seconds=1))
        with pytest.raises(dist.DistBackendError, match="timeout"):
            group.recv([tensor], 0, 0).wait()
        late.wait()
        group.set_timeout(timedelta(seconds=20))
        group.recv([tensor], 0, 0).wait()
        assert tensor.eq(5).all()

    in_threads(2, 20, body)


def test_a_group_that_one_rank_aborts_names_that_rank() -> None:
    over = threading.Barrier(RANKS)

    def body(group: Any, rank: int) -> None:
        if rank == 1:
            group.abort()
        else:
            with pytest.raises(dist.DistBackendError, match="rank 1 aborted the group"):
                group.barrier(options("Barrier"))
        over.wait()

    in_threads(RANKS, 20, body)


@pytest.mark.parametrize(("op", "part"), [("all_gather", "part0"), ("all_to_all", "to1")])
def test_a_rank_whose_put_fails_has_prepared_no_get(op: str, part: str) -> None:
    """A coroutine that never starts is reported when its memory is freed, in whatever code runs then."""

    def call(group: Any, rank: int) -> None:
        tensor, outputs = torch.ones(4), [torch.empty(4) for _ in range(RANKS)]
        if rank == 0:
            group.member.group.client.put(b"taken", name=f"{group.member.group.prefix}/1/{op}/r0{part}")
        if op == "all_gather":
            group.allgather([outputs], [tensor], options("Allgather"))
        else:
            group.alltoall(outputs, [tensor] * RANKS, options("AllToAll"))

    assert all("taken" in text or "5 bytes" in text for text in errors_in_threads(RANKS, 20, call))
    gc.collect()


def test_messages_keep_their_order_and_name_their_source() -> None:
    def body(group: Any, rank: int) -> None:
        if rank < 2:
            for value in range(5):
                group.send([torch.full((50_000,), float(10 * rank + value))], 2, 7).wait()
            return
        sources = []
        for _ in range(5):
            tensor = torch.empty(50_000)
            work = group.recv_anysource([tensor], 7)
            work.wait()
            sources.append(work._source_rank())
            assert tensor[0].item() == 10 * sources[-1] + sources.count(sources[-1]) - 1
        for source in (0, 1):
            for value in range(sources.count(source), 5):
                tensor = torch.empty(50_000)
                group.recv([tensor], source, 7).wait()
                assert tensor[0].item() == 10 * source + value

    in_threads(RANKS, 20, body)


def test_objects_of_operations_are_deleted_while_the_group_runs() -> None:
    def body(group: Any, rank: int) -> None:
        tensor = torch.ones(1 << 20)
        for _ in range(60):
            group.broadcast([tensor], options("Broadcast", rootRank=rank % 1))
            group.allreduce([tensor], options("Allreduce", reduceOp=dist.ReduceOp.MAX))

    in_threads(RANKS, 30, body)
    # 60 broadcasts of 4 MiB and 60 results exceed the capacity of 256 MiB: they are not all here.
    assert hoplite.client().status()["counters"]["evictions"] == 0


def test_ranks_that_call_different_operations_learn_both_names() -> None:
    over = threading.Barrier(RANKS)

    def body(group: Any, rank: int) -> str:
        limit = timedelta(seconds=2)
        try:
            if rank == 2:
                return ""
            if rank == 0:
                with pytest.raises(dist.DistBackendError, match="failed: timeout after 2 s") as caught:
                    group.barrier(options("Barrier", timeout=limit))
            else:
                with pytest.raises(dist.DistBackendError, match="failed: timeout after 2 s") as caught:
                    group.broadcast([torch.ones(3)], options("Broadcast", rootRank=2, timeout=limit))
            return str(caught.value)
        finally:
            # A rank that has left would be the reason.
            over.wait()

    of_barrier, of_broadcast, _ = in_threads(RANKS, 20, body)
    assert "did not call barrier" in of_barrier
    assert "rank 0 called barrier instead of broadcast" in of_broadcast


def test_a_shape_that_differs_names_both_shapes() -> None:
    def body(group: Any, rank: int) -> str:
        tensor = torch.ones(100_000 + rank)
        with pytest.raises(dist.DistBackendError) as caught:
            group.allreduce([tensor], options("Allreduce", timeout=timedelta(seconds=3)))
        return str(caught.value)

    assert any("100000" in text and "100001" in text for text in in_threads(2, 20, body))


@pytest.mark.parametrize(
    ("op", "dtype", "text"),
    [
        ("MAX", "complex64", "MAX is not defined for tensors of torch.complex64"),
        ("BOR", "float32", "BOR is not defined for tensors of torch.float32"),
        ("AVG", "bool", "AVG is not defined for tensors of torch.bool"),
        ("SUM", "float8_e5m2", "convert them to bfloat16 or float32 first"),
    ],
)
def test_an_operator_that_is_not_defined_is_refused_by_name(op: str, dtype: str, text: str) -> None:
    def body(group: Any, _rank: int) -> None:
        with pytest.raises(hoplite.UnsupportedDtype, match=text):
            group.allreduce(
                [torch.zeros(3).to(getattr(torch, dtype))], options("Allreduce", reduceOp=getattr(dist.ReduceOp, op))
            )

    in_threads(1, 20, body)


PROGRAM = """
    import os, signal, sys, torch, torch.distributed as dist
    import hoplite.torch
    dist.init_process_group("hoplite")
    rank = dist.get_rank()
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()
    # All have finished it before one goes on and fails: that ends the operations of all.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"ready/{rank}", "")
    store.wait([f"ready/{other}" for other in range(dist.get_world_size())])
"""


def run(size: int, body: str, backend: str = "hoplite") -> list[tuple[int, str]]:
    """Runs PROGRAM and then a body as each rank."""
    program = textwrap.dedent(PROGRAM).replace('"hoplite"', f'"{backend}"')
    return in_processes(size, free_port(), program + textwrap.dedent(body))


def test_a_rank_that_dies_ends_the_calls_of_the_others() -> None:
    ended = run(
        3,
        """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(tensor)
        except dist.DistBackendError as error:
            print(error)
        else:
            sys.exit("no error")
        """,
    )
    assert ended[1][0] == -9
    for status, output in (ended[0], ended[2]):
        assert status == 0, output
        assert "rank 1 died" in output


@pytest.mark.parametrize("backend", ["hoplite", "cpu:hoplite,cuda:gloo"])
def test_a_monitored_barrier_names_the_missing_rank(backend: str) -> None:
    ended = run(
        2,
        """
        from datetime import timedelta
        dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        if rank == 0:
            try:
                dist.monitored_barrier(timeout=timedelta(seconds=0.25), wait_all_ranks=True)
            except dist.DistBackendError as error:
                print(error)
            else:
                sys.exit("no error")
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        """,
        backend,
    )
    assert [status for status, _ in ended] == [0, 0], ended
    assert "Rank 1 failed to pass monitoredBarrier" in ended[0][1]


def test_a_rank_that_leaves_ends_calls_that_wait_for_it() -> None:
    ended = run(
        3,
        """
        if rank == 1:
            dist.destroy_process_group()
            sys.exit()
        try:
            dist.all_reduce(tensor) if rank == 0 else dist.recv(tensor, 1)
        except dist.DistBackendError as error:
            print(error)
        else:
            sys.exit("no error")
        """,
    )
    assert "rank 1 left the group" in ended[0][1]
    assert "rank 1 left the group" in ended[2][1]
    assert [status for status, _ in ended] == [0, 0, 0], ended


def test_a_fork_of_a_rank_is_no_rank_and_does_not_leave_for_it() -> None:
    ended = run(
        2,
        """
        child = os.fork()
        if child == 0:
            try:
                dist.all_reduce(tensor)
            except dist.DistBackendError as error:
                print(error)
            sys.exit()
        os.waitpid(child, 0)
        dist.all_reduce(tensor)
        dist.barrier()
        """,
    )
    assert [status for status, _ in ended] == [0, 0], ended
    assert "was forked from rank 1" in ended[1][1]


@pytest.mark.parametrize("version", ["2.11.0+cu130", "1.13.1"])
def test_an_older_torch_is_named_with_what_is_needed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(hoplite.HopliteError, match=rf"needs torch 2\.14 or later .* torch {re.escape(version)}"):
        hoplite.torch.register()


def test_survivors_form_a_group_and_a_late_rank_joins_it(tmp_path: Any) -> None:
    program = f"""
        import os, signal, sys, time, torch, torch.distributed as dist
        import hoplite.torch
        from pathlib import Path
        rank = int(os.environ["RANK"])
        folder = Path({str(tmp_path)!r})
        if rank < 3:
            dist.init_process_group("hoplite", world_size=3, rank=rank, enable_reconfigure=True)
        else:
            dist.init_process_group(
                "hoplite", store=dist.HashStore(), world_size=1, rank=0, enable_reconfigure=True)
        (folder / f"{{rank}}.new").write_text(dist._get_reconfigure_handle())
        (folder / f"{{rank}}.new").rename(folder / f"{{rank}}")

        def form(number, ranks):
            while not all((folder / str(other)).exists() for other in ranks):
                time.sleep(0.02)
            handles = [(folder / str(other)).read_text() for other in ranks]
            dist._reconfigure(uuid=number, handles=handles).wait()
            tensor = torch.full((100_000,), float(rank))
            dist.all_reduce(tensor)
            assert tensor[0] == sum(ranks), tensor
            print("group", number, "rank", dist.get_rank(), "of", dist.get_world_size())

        if rank < 3:
            form(1, [0, 1, 2])
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank < 3:
            form(2, [0, 2])
        form(3, [2, 0, 3])
        """
    ended = in_processes(4, free_port(), textwrap.dedent(program))
    assert [status for status, _ in ended] == [0, -9, 0, 0], ended
    assert "group 2 rank 1 of 2" in ended[2][1]
    assert "group 3 rank 2 of 3" in ended[3][1]
