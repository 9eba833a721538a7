"""Collective operations as steps over named objects: each rank puts its part, and gets the parts that it needs.

The store schedules the transfers: broadcasts as trees that grow as ranks ask, reduces as trees or rings over the inputs
as they arrive. All memory is contiguous host memory (see `tensors`). Does not know torch's calling conventions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hoplite.errors import ShapeMismatch, Timeout
from hoplite.torch.backend.group import ranks_in_words
from hoplite.torch.backend.operators import finish, fold, is_foldable_here, shape, store_op
from hoplite.torch.backend.tensors import array, typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hoplite.torch.backend.group import Call
    from hoplite.torch.backend.operators import Operator

# Up to this size, every rank gets all inputs of an all_reduce and folds them itself: that saves waiting for the result.
EXCHANGE_BYTES = 16 << 10

# An all_reduce starts when all inputs exist, or after the time in which this rate would move one.
GRACE_BYTES_PER_S = 512 << 20


async def broadcast(call: Call, memory: Tensor, root: int) -> None:
    """Copies the memory of the root to all ranks. Source: Hoplite (SIGCOMM 2021), section 3.3."""
    if call.group.rank == root:
        call.group.cleanup.read_by_all(call.number, [await call.put(typed(memory))])
    else:
        await call.get(call.name(root), typed(memory))


async def all_reduce(call: Call, memory: Tensor, operator: Operator, part: object = "") -> None:
    """Folds the memory of all ranks into that of each. Source: Hoplite (SIGCOMM 2021), section 3.4."""
    op = store_op(operator, memory.dtype)
    if call.group.size == 1:
        fold(operator, memory, [])
    elif op is None or (memory.nbytes <= EXCHANGE_BYTES and is_foldable_here(memory.dtype)):
        await _fold_here(call, memory, operator, part)
    else:
        await _fold_in_store(call, memory, operator, op, part)


async def _fold_in_store(call: Call, memory: Tensor, operator: Operator, op: str, part: object) -> None:
    """Folds the inputs of all ranks in the store, as a ring if all are there soon, else as they arrive."""
    group, value = call.group, _input(memory, operator)
    group.check_fits([memory.nbytes] * group.size, memory.nbytes)
    names = [call.name(rank, part) for rank in range(group.size)]

    async def result() -> None:
        """Gets the result into the memory of the input: a block of it exists only after this rank's block is stored."""
        if group.rank > 0:
            ref = bytes(await call.get(call.name(0, f"{part}ref"))).decode()
        else:
            # Rank 0 owns a reserved ref, so it knows how many ranks wait for the result: a ring needs that.
            ref = str(await call.run("reserve"))
            group.cleanup.read_by_all(call.number, [await call.put(ref.encode(), f"{part}ref"), ref])
            await call.run("wait", names, timeout=min(memory.nbytes / GRACE_BYTES_PER_S, call.left_s()))
            await call.reduce(names, op, ref)
        await call.get(ref, value)
        finish(operator, memory)

    await call.together(lambda: call.put(value, part), result)
    group.cleanup.read([names[group.rank]], memory.nbytes)


async def _fold_here(call: Call, memory: Tensor, operator: Operator, part: object) -> None:
    """Gets the inputs of all ranks and folds them in the order of ranks, so that all ranks get the same bits."""
    group = call.group
    own = _input(memory, operator)
    group.check_fits([memory.nbytes] * group.size, copies=True)
    group.cleanup.read_by_all(call.number, [await call.put(own, part)])
    inputs = [memory.clone() if rank == group.rank else memory.new_empty(memory.shape) for rank in range(group.size)]
    others = group.others()
    if memory.nbytes <= EXCHANGE_BYTES:
        values = await call.run("get", [call.name(rank, part) for rank in others], timeout=call.left_s())
        for rank, value in zip(others, values, strict=True):
            if type(value) is not type(own) or (value.dtype, value.shape) != (own.dtype, own.shape):
                raise ShapeMismatch(f"rank {rank} passed {_kind(value)}, but this rank passed {_kind(own)}")
            _input(inputs[rank], operator)[:] = value
    else:
        for rank in others:
            await call.get(call.name(rank, part), _input(inputs[rank], operator))
    memory.copy_(inputs[0])
    fold(operator, memory, inputs[1:])


def _input(memory: Tensor, operator: Operator) -> Any:
    """Returns the memory of a tensor as an input of a reduce."""
    return typed(memory, shape(operator, memory.numel()))


def _kind(value: Any) -> str:
    """Describes an input of another rank as the store does."""
    if not hasattr(value, "dtype"):
        return "bytes"
    return f"{value.dtype}{list(value.shape)}".removeprefix("torch.")


async def _fold_in_turn(call: Call, names: Sequence[str], operator: Operator, memory: Tensor) -> None:
    """Folds objects into the memory, one after another, so that only one of them needs memory here."""
    other = memory.new_empty(memory.shape)
    for name in names:
        await call.get(name, _input(other, operator))
        fold(operator, memory, [other], last=name == names[-1])


async def reduce(call: Call, memory: Tensor, operator: Operator, root: int) -> None:
    """Folds the memory of all ranks into that of the root. Source: Hoplite (SIGCOMM 2021), section 3.4."""
    group, op = call.group, store_op(operator, memory.dtype)
    if group.size == 1:
        fold(operator, memory, [])
        return
    value = _input(memory, operator)
    group.check_fits([memory.nbytes] * group.size, memory.nbytes, root=root)
    if group.rank != root:
        await call.put(value)
        return
    if op is None:
        names = [call.name(rank) for rank in group.others()]
        await _fold_in_turn(call, names, operator, memory)
    else:
        names = [call.name(rank) for rank in range(group.size)]
        await call.put(value)
        result = call.name(root, "all")
        await call.reduce(names, op, result)
        await call.get(result, value)
        finish(operator, memory)
        names.append(result)
    group.cleanup.read(names, memory.nbytes * len(names))


async def all_gather(call: Call, memory: Tensor, outputs: Sequence[Tensor], part: object = "") -> None:
    """Copies the memory of each rank into one output of every rank."""
    group = call.group
    if outputs[group.rank].data_ptr() != memory.data_ptr():
        outputs[group.rank].reshape(-1).copy_(memory.reshape(-1))
    others = group.others()
    group.check_fits([output.nbytes for output in outputs], copies=True)
    if others:
        names = [call.name(rank, part) for rank in others]
        own, _ = await call.together(
            lambda: call.put(typed(memory), part),
            lambda: call.get_all(names, [typed(outputs[rank]) for rank in others]),
        )
        group.cleanup.read_by_all(call.number, [own])


async def gather(call: Call, memory: Tensor, outputs: Sequence[Tensor] | None, root: int) -> None:
    """Copies the memory of each rank into one output of the root."""
    group = call.group
    group.check_fits([0 if rank == root else memory.nbytes for rank in range(group.size)], root=root, copies=True)
    if outputs is None:
        await call.put(typed(memory))
        return
    outputs[root].reshape(-1).copy_(memory.reshape(-1))
    others = group.others()
    names = [call.name(rank) for rank in others]
    await call.get_all(names, [typed(outputs[rank]) for rank in others])
    group.cleanup.read(names, memory.nbytes * len(names))


async def scatter(call: Call, memory: Tensor, inputs: Sequence[Tensor] | None, root: int) -> None:
    """Copies one input of the root to the memory of each rank."""
    group = call.group
    if inputs is None:
        name = call.name(root, f"to{group.rank}")
        await call.get(name, typed(memory))
        group.cleanup.read([name], memory.nbytes)
        return
    for rank in group.others():
        await call.put(typed(inputs[rank]), f"to{rank}")
    memory.reshape(-1).copy_(inputs[root].reshape(-1))


async def reduce_scatter(
    call: Call, memory: Tensor, inputs: Sequence[Tensor], operator: Operator, part: object = ""
) -> None:
    """Folds input r of all ranks into the memory of rank r."""
    group, op = call.group, store_op(operator, memory.dtype)
    own = inputs[group.rank]
    group.check_fits([sum(each.nbytes for each in inputs)] * group.size, memory.nbytes)
    if group.size == 1 or op is None:
        for rank in group.others():
            await call.put(_input(inputs[rank], operator), f"{part}to{rank}")
        memory.reshape(-1).copy_(own.reshape(-1))
        if group.size == 1:
            fold(operator, memory, [])
            return
        names = [call.name(rank, f"{part}to{group.rank}") for rank in group.others()]
        await _fold_in_turn(call, names, operator, memory)
        group.cleanup.read(names, memory.nbytes * len(names))
        return
    for rank in [*group.others(), group.rank]:
        await call.put(_input(inputs[rank], operator), f"{part}to{rank}")
    names = [call.name(rank, f"{part}to{group.rank}") for rank in range(group.size)]
    result = call.name(group.rank, f"{part}all")
    await call.reduce(names, op, result)
    await call.get(result, _input(memory, operator))
    finish(operator, memory)
    names.append(result)
    group.cleanup.read(names, memory.nbytes * len(names))


async def all_to_all(call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Copies input s of rank r into output r of rank s."""
    group = call.group
    others = group.others()
    outputs[group.rank].reshape(-1).copy_(inputs[group.rank].reshape(-1))
    sizes = {tensor.nbytes for tensor in (*inputs, *outputs)}
    if group.ranks_elsewhere(group.rank) and len(sizes) == 1:
        # Two hosts whose stores are full of objects for each other can't read them. Else this rank knows too few sizes.
        [nbytes] = sizes
        group.check_fits([nbytes * group.ranks_elsewhere(rank) for rank in range(group.size)], nbytes)

    async def send() -> None:
        for rank in others:
            await call.put(typed(inputs[rank]), f"to{rank}")

    async def receive(ranks: Sequence[int]) -> None:
        names = [call.name(rank, f"to{group.rank}") for rank in ranks]
        await call.get_all(names, [typed(outputs[rank]) for rank in ranks])
        group.cleanup.read(names, sum(outputs[rank].nbytes for rank in ranks))

    async def receive_each() -> None:
        """Deletes each object when it is read: the puts of other ranks may wait for its space."""
        await asyncio.gather(*(receive([rank]) for rank in others))

    await call.together(send, receive_each if call.in_loop else lambda: receive(others))


async def all_reduce_sparse(call: Call, tensor: Tensor) -> Tensor:
    """Returns the sum of sparse COO tensors of one shape, one of each rank."""
    group, own = call.group, tensor.coalesce()
    parts, axes = own.values(), torch.tensor(own.shape[: own.sparse_dim()], device="cpu").reshape(-1, 1)
    # The first column is the shape: ranks compare it, and indices beyond it would be wrong.
    columns = torch.cat([axes, own.indices()], dim=1)
    names = [await call.put(array(columns.contiguous()), "i"), await call.put(typed(parts.contiguous()), "v")]
    group.cleanup.read_by_all(call.number, names)
    total = own
    for rank in group.others():
        columns = torch.from_numpy((await call.get(call.name(rank, "i"))).copy())
        values = await call.get(call.name(rank, "v"))
        values = values if isinstance(values, torch.Tensor) else torch.from_numpy(values.copy())
        indices, theirs = columns[:, 1:], columns[:, :1]
        if values.dtype != parts.dtype or not torch.equal(theirs, axes):
            raise ShapeMismatch(
                f"rank {rank} passed a sparse tensor of {values.dtype}{theirs[:, 0].tolist()}, but this rank passed "
                f"{parts.dtype}{axes[:, 0].tolist()}"
            )
        values = values.reshape(indices.shape[1], *parts.shape[1:])
        total = total + torch.sparse_coo_tensor(indices, values, own.shape, device="cpu", check_invariants=True)
    return total.coalesce()


async def barrier(call: Call) -> None:
    """Returns when all ranks have called it."""
    group = call.group
    name = await call.put(b"")
    group.cleanup.read_by_all(call.number, [name])
    if group.others():
        await call.run("get", [call.name(rank) for rank in group.others()], timeout=call.left_s())


async def monitored_barrier(call: Call, *, wait_all_ranks: bool) -> None:
    """Returns when all ranks have called it, as rank 0 has seen it.

    Args:
        call: the operation.
        wait_all_ranks: whether the error of rank 0 names all ranks that did not call it, or only the first.

    Raises:
        DistBackendError: a rank did not call it within the timeout. The text begins as with Gloo.
    """
    group, limit_s = call.group, call.left_s()
    if group.rank:
        await call.put(b"")
        try:
            await call.get(call.name(0))
        except Timeout as error:
            raise dist.DistBackendError(
                f"Rank {group.rank} successfully reached monitoredBarrier, but received errors while waiting for "
                "send/recv from rank 0: the error of rank 0 names the ranks that did not reach it"
            ) from error
        return
    if not limit_s:
        raise dist.DistBackendError("Rank 0 timed out in monitoredBarrier: pass a timeout above 0")
    names = [call.name(rank) for rank in range(1, group.size)]
    ready, _ = await call.run("wait", names, timeout=limit_s)
    reached = set(map(str, ready))
    missing = [rank for rank, name in enumerate(names, 1) if name not in reached]
    if missing:
        late = missing if wait_all_ranks else missing[:1]
        raise dist.DistBackendError(
            f"{ranks_in_words(late).capitalize()} failed to pass monitoredBarrier in {limit_s:g} s: "
            "check whether they still run"
        )
    group.cleanup.read_by_all(call.number, [await call.put(b"")])
    group.cleanup.read(names, 0)
