"""The backend "hoplite" of torch.distributed: torch's calls, translated to the operations of a group.

It owns torch's calling conventions: which lists hold which tensors, and which device they are on. Source of the
transfers: Hoplite (SIGCOMM 2021), sections 3.3 and 3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup

from hoplite._aside import in_own_thread
from hoplite.errors import InvalidArgument
from hoplite.torch.backend import collectives
from hoplite.torch.backend.loop import submit
from hoplite.torch.backend.operators import operator
from hoplite.torch.backend.tensors import give_all_back, give_back, host, hosts
from hoplite.torch.backend.untraced import untraced
from hoplite.torch.backend.work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from torch import Tensor

    from hoplite.torch.backend.group import Call
    from hoplite.torch.backend.membership import Member


@untraced
class Collectives:
    """The operations of a process group, with torch's names and arguments.

    Attributes:
        member: this rank's membership in the group.
    """

    member: Member

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Returns "hoplite"."""
        return "hoplite"

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        """Copies the root's tensor to all ranks."""
        tensor, root = _only(tensors), opts.rootRank

        async def steps(call: Call) -> None:
            memory = host(tensor, filled=call.group.rank == root)
            await collectives.broadcast(call, memory, root)
            if call.group.rank != root:
                give_back(tensor, memory)

        return self._start("broadcast", opts, steps, tensors, tensor.nbytes)

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Folds the tensors of all ranks into each of them."""
        tensor = _only(tensors)
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        op = operator(opts.reduceOp, tensor.dtype, self.member.size)

        async def steps(call: Call) -> None:
            memory = host(tensor)
            await collectives.all_reduce(call, memory, op)
            give_back(tensor, memory)

        return self._start("all_reduce", opts, steps, tensors, tensor.nbytes)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Work:
        """Folds several tensors of all ranks, those of one dtype together."""
        kinds = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        ops = [operator(opts.reduceOp, kind, self.member.size) for kind in kinds]

        async def steps(call: Call) -> None:
            for part, (kind, op) in enumerate(zip(kinds, ops, strict=True)):
                some = [tensor for tensor in tensors if tensor.dtype == kind]
                memory = torch.cat([host(tensor).reshape(-1) for tensor in some])
                await collectives.all_reduce(call, memory, op, f"part{part}")
                for tensor, piece in zip(some, memory.split([tensor.numel() for tensor in some]), strict=True):
                    give_back(tensor, piece.view(tensor.shape))

        return self._start("all_reduce_coalesced", opts, steps, tensors, sum(tensor.nbytes for tensor in tensors))

    def allreduce_sparse(self, tensors: list[Tensor], opts: Any) -> Work:
        """Adds sparse COO tensors of all ranks."""
        tensor = _only(tensors)
        if operator(opts.reduceOp, tensor.dtype, self.member.size).name != "SUM":
            raise InvalidArgument("sparse tensors can only be added: use ReduceOp.SUM")

        async def steps(call: Call) -> None:
            total = (await collectives.all_reduce_sparse(call, tensor.detach().cpu())).to(tensor.device)
            with torch.no_grad():
                tensor.copy_(total)

        # The size of the dense tensor is the same on all ranks.
        nbytes = tensor.numel() * tensor.dtype.itemsize
        return self._start("all_reduce_sparse", opts, steps, tensors, nbytes)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Folds the tensors of all ranks into that of the root."""
        tensor, root = _only(tensors), opts.rootRank
        op = operator(opts.reduceOp, tensor.dtype, self.member.size)

        async def steps(call: Call) -> None:
            memory = host(tensor)
            await collectives.reduce(call, memory, op, root)
            if call.group.rank == root:
                give_back(tensor, memory)

        return self._start("reduce", opts, steps, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Copies the tensor of each rank into a list on every rank."""
        return self._all_gather("all_gather", [outputs[0]], inputs, opts, outputs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Copies several tensors of each rank: output k of rank r, in list r of torch's layout."""
        if outputs and len(outputs[0]) == len(inputs):
            by_input = [[of_rank[k] for of_rank in outputs] for k in range(len(inputs))]
        else:
            by_input = outputs
        return self._all_gather("all_gather_coalesced", by_input, inputs, opts, outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:  # noqa: A002
        """Copies the tensor of each rank into one tensor on every rank."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Copies several tensors of each rank, each into one tensor on every rank."""

        async def steps(call: Call) -> None:
            memories = hosts(outputs, filled=False)
            for part, (memory, tensor) in enumerate(zip(memories, inputs, strict=True)):
                pieces = (
                    list(memory.reshape(-1).chunk(call.group.size)) if memory.numel() else [memory] * call.group.size
                )
                await collectives.all_gather(call, host(tensor), pieces, f"part{part}")
            give_all_back(outputs, memories)

        return self._start("all_gather_into_tensor", opts, steps, outputs, sum(output.nbytes for output in outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """Copies the tensor of each rank into a list on the root."""
        tensor, root = _only(inputs), opts.rootRank
        lists = outputs[0] if outputs else []

        async def steps(call: Call) -> None:
            memories = hosts(lists, filled=False) if call.group.rank == root else None
            await collectives.gather(call, host(tensor), memories, root)
            if memories is not None:
                give_all_back(lists, memories)

        return self._start("gather", opts, steps, outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Copies tensor r of the root's list to rank r."""
        tensor, root = _only(outputs), opts.rootRank
        lists = inputs[0] if inputs else []

        async def steps(call: Call) -> None:
            memory = host(tensor, filled=False)
            await collectives.scatter(call, memory, hosts(lists) if call.group.rank == root else None, root)
            give_back(tensor, memory)

        return self._start("scatter", opts, steps, outputs)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Folds tensor r of all ranks' lists into the output of rank r."""
        return self._reduce_scatter("reduce_scatter", outputs, inputs, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any) -> Work:  # noqa: A002
        """Folds part r of all ranks' tensors into the output of rank r."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Folds several tensors, part r of each into the output of rank r."""
        parts = [list(tensor.reshape(-1).chunk(self.member.size)) for tensor in map(_dense, inputs)]
        return self._reduce_scatter("reduce_scatter_tensor", outputs, parts, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Work:
        """Copies tensor s of rank r into tensor r of rank s."""

        async def steps(call: Call) -> None:
            memories = hosts(outputs, filled=False)
            await collectives.all_to_all(call, hosts(inputs), memories)
            give_all_back(outputs, memories)

        return self._start("all_to_all", opts, steps, outputs, nbytes=_nbytes(inputs, outputs))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any,
    ) -> Work:
        """Copies part s of rank r's tensor into part r of rank s's; sizes count rows of the first axis."""

        async def steps(call: Call) -> None:
            memory = host(output, filled=False)
            size = call.group.size
            await collectives.all_to_all(call, _rows(host(input), input_sizes, size), _rows(memory, output_sizes, size))
            give_back(output, memory)

        return self._start("all_to_all_single", opts, steps, [output], nbytes=_nbytes([input], [output]))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any) -> Work:
        """Waits until all ranks have called it."""
        return self._start("barrier", opts, collectives.barrier, [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks have called it. Rank 0 names the ranks that did not in time: the first one, or all."""

        async def steps(call: Call) -> None:
            await collectives.monitored_barrier(call, wait_all_ranks=wait_all_ranks)

        seconds = None if timeout is None else timeout.total_seconds()
        self.member.group.start("monitored_barrier", seconds, steps, asynchronous=False, outputs=[])

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Work:
        """Sends a tensor to a rank."""
        return self.member.messages.send(_only(tensors), to, tag)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Work:
        """Receives a tensor from a rank."""
        return self.member.messages.receive(_only(tensors), source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receives a tensor from the rank whose message arrives first."""
        return self.member.messages.receive_any(_only(tensors), tag)

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""
        self.member.group.timeout_s = timeout.total_seconds()

    def abort(self) -> None:
        """Ends all operations of this rank, with an error."""
        self.member.abort()

    def shutdown(self) -> None:
        """Leaves the group."""
        self.member.leave()

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the ranks of the group can change."""
        return True

    def get_reconfigure_handle(self) -> str:
        """Returns what other ranks need to form a group with this one."""
        return self.member.handle()

    def reconfigure(self, opts: Any) -> Work:
        """Forms the group anew, with the ranks of the given handles."""
        timeout_s = None if opts.timeout is None else opts.timeout.total_seconds()
        return Work([], submit(in_own_thread(self.member.reconfigure, opts.uuid, opts.handles, timeout_s)))

    def _start(
        self, op: str, opts: Any, steps: Any, outputs: list[Any], shared_bytes: int = 0, nbytes: int = 0
    ) -> Work:
        timeout_s = opts.timeout.total_seconds()
        return self.member.group.start(
            op,
            # torch's "unset" is negative.
            timeout_s if timeout_s > 0 else None,
            steps,
            asynchronous=opts.asyncOp,
            outputs=outputs,
            nbytes=max(nbytes, shared_bytes),
            shared_bytes=shared_bytes,
        )

    def _all_gather(
        self,
        op: str,
        by_input: Sequence[Sequence[Tensor]],
        inputs: Sequence[Tensor],
        opts: Any,
        outputs: list[Any],
    ) -> Work:
        async def steps(call: Call) -> None:
            for part, (lists, tensor) in enumerate(zip(by_input, inputs, strict=True)):
                memories = hosts(lists, filled=False)
                await collectives.all_gather(call, host(tensor), memories, f"part{part}")
                give_all_back(lists, memories)

        # The inputs of the ranks can differ, all outputs are the same on all ranks.
        return self._start(op, opts, steps, outputs, sum(tensor.nbytes for lists in by_input for tensor in lists))

    def _reduce_scatter(
        self,
        op: str,
        outputs: list[Tensor],
        inputs: Sequence[Sequence[Tensor]],
        opts: Any,
    ) -> Work:
        ops = [operator(opts.reduceOp, output.dtype, self.member.size) for output in outputs]

        async def steps(call: Call) -> None:
            for part, (output, lists) in enumerate(zip(outputs, inputs, strict=True)):
                memory = host(output, filled=False)
                await collectives.reduce_scatter(call, memory, hosts(lists), ops[part], f"part{part}")
                give_back(output, memory)

        return self._start(op, opts, steps, outputs)


@untraced
class HopliteProcessGroup(Collectives, ProcessGroup):
    """A process group whose tensors of all devices use Hoplite.

    Args:
        member: this rank's membership.
    """

    def __init__(self, member: Member) -> None:
        ProcessGroup.__init__(self, member.rank, member.size)
        self.member = member
        # torch keeps the group's name in its backends, and looks there for the devices that the group supports.
        backend = HopliteBackend(member)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.CUSTOM, backend)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def rank(self) -> int:
        """Returns this rank."""
        return self.member.rank

    def size(self) -> int:
        """Returns the number of ranks."""
        return self.member.size

    def name(self) -> str:
        """Returns "hoplite"."""
        return self.getBackendName()


@untraced
class HopliteBackend(Collectives, Backend):
    """The backend of one device: in a `HopliteProcessGroup`, or in a group with another backend for another device.

    In the latter, torch does not ask it whether an operation is complete, nor which rank sent a message:
    `is_completed` is False, and `recv` from any rank raises an error after it has received the message.

    Args:
        member: this rank's membership.
    """

    # torch 2.15 looks these up without end unless a subclass defines them.
    supports_coalescing = supports_shrinking = supports_splitting = supports_window = _supports_time_estimate = False

    def __init__(self, member: Member) -> None:
        Backend.__init__(self, member.rank, member.size)
        self.member = member

    def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:  # type: ignore[override]
        """Waits until all ranks have called it. torch passes the timeout in options here, not by itself."""
        super().monitored_barrier(opts.timeout, wait_all_ranks)


def _only(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise InvalidArgument(f"the backend hoplite takes one tensor for each rank, not {len(tensors)}")
    return tensors[0]


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous()


def _nbytes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Returns the size of what a rank sends and receives, in bytes."""
    return sum(tensor.nbytes for tensor in (*inputs, *outputs))


def _rows(memory: Tensor, sizes: list[int], ranks: int) -> list[Tensor]:
    """Splits a tensor into the rows of each rank; no sizes mean equal parts."""
    if sizes:
        return list(memory.split(sizes))
    return list(memory.reshape(-1).chunk(ranks)) if memory.numel() else [memory] * ranks
