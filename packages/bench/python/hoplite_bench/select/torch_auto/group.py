"""Process groups of the backend "hoplite_auto": torch's calls, passed on to the backend that the plan names.

It owns which sizes count: only those that are the same on all ranks by torch's rules. So broadcasts, reductions and
gathers count a rank's tensor, and all-gathers an equal share of the outputs. Operations without rules, or whose sizes
can differ between ranks, go to Gloo.
"""

from __future__ import annotations

import collections
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup

from hoplite.errors import InvalidArgument
from hoplite_bench.select.torch_auto import mpi, source
from hoplite_bench.select.torch_auto.routes import DEFAULT
from hoplite_bench.select.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from torch import Tensor

    from hoplite_bench.select.torch_auto.members import Members

# Operations that end on no rank before all have called them, so that the time of one rank is comparable with that of
# the plan, which ends on the last rank. The root of a broadcast, or a leaf of a gather, can return early.
COMPARED = ("allreduce", "allgather")


class Collectives:
    """The operations that plans have rules for.

    Attributes:
        members: the backends, and the plan.
    """

    members: Members
    _calls: collections.Counter[str]
    _bytes: collections.Counter[str]
    _watch: Watch | None
    _is_stale: bool

    def _begin(self, members: Members) -> None:
        self.members = members
        self._calls, self._bytes = collections.Counter(), collections.Counter()
        self._watch = None if members.routes.plan is None else Watch(members.routes.plan)
        self._is_stale = False

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Returns "hoplite_auto"."""
        return "hoplite_auto"

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Any:
        """Copies the root's tensor to all ranks."""
        return self._run("broadcast", "broadcast", _size(tensors), (tensors, opts))

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Folds the tensors of all ranks into each of them."""
        if tensors[0].is_sparse:
            return self._on(DEFAULT, "allreduce", 0, (tensors, opts))
        return self._run("allreduce", "allreduce", _size(tensors), (tensors, opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> Any:
        """Folds several tensors of all ranks."""
        return self._run("allreduce", "allreduce_coalesced", _size(tensors), (tensors, opts))

    def reduce(self, tensors: list[Tensor], opts: Any) -> Any:
        """Folds the tensors of all ranks into that of the root."""
        return self._run("reduce", "reduce", _size(tensors), (tensors, opts))

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """Copies the tensor of each rank into a list on the root."""
        return self._run("gather", "gather", _size(inputs), (outputs, inputs, opts))

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """Copies the tensor of each rank into a list on every rank."""
        return self._run("allgather", "allgather", self._share(outputs[0]), (outputs, inputs, opts))

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Any:
        """Copies several tensors of each rank."""
        every = [tensor for tensors in outputs for tensor in tensors]
        return self._run("allgather", "allgather_coalesced", self._share(every), (outputs, inputs, opts))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any) -> Any:  # noqa: A002 - torch's name
        """Copies the tensor of each rank into one tensor on every rank."""
        return self._run("allgather", "all_gather_single", self._share([output]), (output, input, opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> Any:
        """Copies several tensors of each rank, each into one tensor on every rank."""
        return self._run("allgather", "all_gather_single_coalesced", self._share(outputs), (outputs, inputs, opts))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""
        for name, backend in self.members.backends.items():
            if name != mpi.NAME:
                backend.set_timeout(timeout)

    def abort(self) -> None:
        """Ends all operations of this rank, with an error."""
        for name, backend in self.members.backends.items():
            if name != mpi.NAME:
                backend.abort()

    def shutdown(self) -> None:
        """Leaves the group."""
        for backend in reversed(self.members.backends.values()):
            backend.shutdown()

    def status(self) -> dict[str, Any]:
        """Describes the plan and the calls of this rank, as `torch_auto.status`."""
        members = self.members
        return {
            "plan": members.routes.plan and members.routes.plan.fingerprint,
            "source": members.source,
            "members": {name: {"calls": self._calls[name], "bytes": self._bytes[name]} for name in members.backends},
            "left_out": dict(members.left_out),
            "drift": self._watch.stale() if self._watch else "",
        }

    def _share(self, outputs: Iterable[Tensor]) -> int:
        """Returns the bytes of one rank in all outputs, which are the same on all ranks even if their inputs differ."""
        nbytes: int = sum(tensor.nbytes for tensor in outputs)
        return nbytes // self.members.size

    def _run(self, op: str, method: str, nbytes: int, arguments: tuple[Any, ...]) -> Any:
        """Runs an operation on the backend of its rule; takes its time if that is comparable."""
        name = self.members.routes.member(op, nbytes)
        if name == mpi.NAME and not mpi.takes(method, arguments):
            name = DEFAULT
        is_chosen = name == self.members.routes.chosen(op, nbytes)
        if self._watch is None or op not in COMPARED or not is_chosen or arguments[-1].asyncOp:
            return self._on(name, method, nbytes, arguments)
        start = time.perf_counter()
        work = self._on(name, method, nbytes, arguments)
        work.wait()
        self._watch.observe(op, nbytes, time.perf_counter() - start)
        if not self._is_stale and (why := self._watch.stale()):
            # Only a report: the ranks would have to agree on other routes.
            self._is_stale = True
            if self.members.rank == 0:
                how = f"run `{source.command(self.members.size)} --refresh` and set {source.VARIABLE} to its file"
                warnings.warn(f"the plan of hoplite_auto has drifted: {why}; {how}", RuntimeWarning, 2)
        return work

    def _on(self, name: str, method: str, nbytes: int, arguments: tuple[Any, ...]) -> Any:
        self._calls[name] += 1
        self._bytes[name] += nbytes
        run = getattr(self.members.backends[name], method)
        return mpi.dense(run, arguments) if name == mpi.NAME else run(*arguments)


class AutoProcessGroup(Collectives, ProcessGroup):
    """A process group for tensors in host memory. Operations without rules reach Gloo through torch's own class.

    Args:
        members: the backends, and the plan.
    """

    def __init__(self, members: Members) -> None:
        ProcessGroup.__init__(self, members.rank, members.size)
        self._begin(members)
        kind = ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cpu"), kind, members.backends[DEFAULT])
        self._set_default_backend(kind)

    def rank(self) -> int:
        """Returns this rank."""
        return self.members.rank

    def size(self) -> int:
        """Returns the number of ranks."""
        return self.members.size

    def name(self) -> str:
        """Returns "hoplite_auto"."""
        return self.getBackendName()


class AutoBackend(Collectives, Backend):
    """The backend of host memory in a group with another backend for another device.

    Args:
        members: the backends, and the plan.
    """

    # torch 2.15 looks these up without end unless a subclass defines them.
    supports_coalescing = supports_shrinking = supports_splitting = supports_window = _supports_time_estimate = False

    def __init__(self, members: Members) -> None:
        Backend.__init__(self, members.rank, members.size)
        self._begin(members)

    def monitored_barrier(self, options: Any, wait_all_ranks: bool = False) -> None:
        """Waits until all ranks have called it; torch passes a timeout, or options that have one."""
        self._on(DEFAULT, "monitored_barrier", 0, (getattr(options, "timeout", options), wait_all_ranks))


def _passed_on(method: str) -> Any:
    def run(self: AutoBackend, *arguments: Any) -> Any:
        return self._on(DEFAULT, method, 0, arguments)

    run.__name__, run.__doc__ = method, "Runs the operation on Gloo."
    return run


# By the names that torch looks up in a backend in Python.
for _name, _method in {
    "_reduce_scatter_base": "reduce_scatter_single",
    "all_to_all_single": "all_to_all_single",
    "alltoall": "alltoall",
    "alltoall_base": "all_to_all_single",
    "barrier": "barrier",
    "recv": "recv",
    "recv_anysource": "recv_anysource",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "scatter": "scatter",
    "send": "send",
}.items():
    setattr(AutoBackend, _name, _passed_on(_method))


def _size(tensors: Sequence[Tensor]) -> int:
    """Returns the bytes of tensors, which must be in host memory."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise InvalidArgument(
                f"hoplite_auto takes tensors in host memory, not on {tensor.device}: call "
                'init_process_group("cpu:hoplite_auto,cuda:nccl")'
            )
    return sum(tensor.nbytes for tensor in tensors)
