"""The backend "hoplite" of `ray.util.collective`: each operation consists of puts, gets and reduces of names.

Owns the names and the lifetimes of a group's objects. The supervisor owns the rendezvous of the members.

Operations fill the tensors that they are given. They reject read-only arrays, such as arguments passed by Ray.

If a member dies, the waits of the others end with an error. Each member has reserved an object that it puts only as
a farewell. A thread in each member waits for the other members' farewells: a lost reservation means a dead member.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import ray

from hoplite import Client, ClientClosed, HopliteError, InvalidArgument, NodeDown, ObjectLost, Ref, Timeout
from hoplite.ray import place
from hoplite.ray._versions import unknown

try:
    from ray.util.collective.backend_registry import _global_registry, register_collective_backend
    from ray.util.collective.collective_group.base_collective_group import BaseGroup
    from ray.util.collective.types import (
        AllGatherOptions,
        AllReduceOptions,
        BarrierOptions,
        BroadcastOptions,
        RecvOptions,
        ReduceOp,
        ReduceOptions,
        ReduceScatterOptions,
        SendOptions,
    )
except ImportError:
    raise unknown("has no ray.util.collective with a registry of backends and the options of its operations") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACKEND = "HOPLITE"

T = TypeVar("T")

# Timeouts for the start of a group, and for operations without a timeout of their own. They only limit the wait for
# slow members: dead members are detected separately.
MEET_S = 120.0
OPERATION_S = 1800.0

DELETE_S = 10.0

# Time to live of a farewell. The threads that read it do nothing else.
FAREWELL_S = 10.0

# Time to detect a member that is gone, after another one has lost something by it.
DETECTION_S = 5.0

# Number of operations whose objects may exist for slower members. A further operation waits until the first is done.
AHEAD = 2

OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


class HopliteGroup(BaseGroup):  # type: ignore[misc] # Ray is not there when types are checked
    """A member of a group. The constructor waits for all members.

    Args:
        world_size: number of members.
        rank: rank of this member.
        group_name: name of the group.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        Timeout: not all members arrived in time; the message names the missing ranks.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._own = place.client()
        # Put as a farewell, lost if this member dies.
        self._reservation: Ref | None = self._own.reserve()
        try:
            generation, self._reservations = self._meet()
            self._prefix = f"ray-group/{generation}"
            # The job deletes the objects with the last member. Closing this client ends all waits of this member.
            self._hp: Client = place.another(job=self._prefix)
        except BaseException:
            # Otherwise other members could form the group with this one.
            with contextlib.suppress(HopliteError):
                self._own.delete(self._reservation, timeout=DELETE_S)
            raise
        self._gone: int | None = None
        self._broken = threading.Event()
        # Members that have left, and the number of operations that they completed.
        self._left: dict[int, int] = {}
        # What this member waits for: the number of an operation, or a sender and the name of its object.
        self._under_way: int | None = None
        self._receiving: tuple[int, str] | None = None
        self._lock = threading.Lock()
        # Number of operations started here: with all members, and per pair of ranks.
        self._number = 0
        self._between: dict[tuple[int, int], int] = {}
        # Names to delete once all members have completed an operation, by its number.
        self._used: dict[int, list[str]] = {}
        self._watching = threading.Thread(target=self._watch, name=f"hoplite-group-{group_name}", daemon=True)
        self._watching.start()

    @classmethod
    def backend(cls) -> str:
        """Returns the name of the backend."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Returns True: the backend needs Hoplite only."""
        return True

    def destroy_group(self) -> None:
        """Leaves the group. Objects of this member stay for the others until the last member has left."""
        if self._reservation is not None:
            reservation, self._reservation = self._reservation, None
            # If the node has failed, the reservation is lost anyway.
            with contextlib.suppress(HopliteError):
                self._own.put(str(self._number).encode(), name=reservation, ttl=FAREWELL_S)
            self._hp.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Replaces each member's tensor with the element-wise sum, product, minimum or maximum of all tensors."""
        self._fold("allreduce", tensor, allreduce_options, root=0, is_for_all=True)

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """Replaces the root's tensor with the fold of all tensors."""
        self._fold("reduce", tensor, reduce_options, root=reduce_options.root_rank, is_for_all=False)

    def _fold(self, name: str, tensor: list[Any], options: Any, *, root: int, is_for_all: bool) -> None:
        mine = _filled(tensor) if self.rank == root or is_for_all else _one(tensor)
        op = _op(options)

        def run(at: str, until: float, used: list[str]) -> None:
            used.append(self._put(f"{at}/in", mine))
            if self.rank == root:
                self._hp.reduce(self._of_all(f"{at}/in"), op, name=f"{at}/out", timeout=_left(until))
                used.append(f"{at}/out")
            if self.rank == root or is_for_all:
                self._fill(f"{at}/out", mine, until)

        self._operation(name, options, run)

    def broadcast(self, tensor: list[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Replaces each member's tensor with the root's tensor."""
        is_root = self.rank == broadcast_options.root_rank
        mine = _one(tensor) if is_root else _filled(tensor)

        def run(at: str, until: float, used: list[str]) -> None:
            if is_root:
                used.append(str(self._hp.put(mine, name=f"{at}/out", timeout=_left(until))))
            else:
                self._fill(f"{at}/out", mine, until)

        self._operation("broadcast", broadcast_options, run)

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = AllGatherOptions
    ) -> None:
        """Fills each member's list with the tensors of all members, in the order of ranks."""
        mine, filled = _one(tensor), [_filled([each]) for each in _one(tensor_list)]

        def run(at: str, until: float, used: list[str]) -> None:
            used.append(self._put(f"{at}/in", mine))
            for name, out in zip(self._of_all(f"{at}/in"), filled, strict=True):
                self._fill(name, out, until)

        self._operation("allgather", allgather_options, run)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = ReduceScatterOptions
    ) -> None:
        """Replaces the tensor of rank r with the fold of the r-th tensors of all lists."""
        mine, given = _filled(tensor), _one(tensor_list)
        op = _op(reducescatter_options)

        def run(at: str, until: float, used: list[str]) -> None:
            for rank, each in enumerate(given):
                used.append(self._put(f"{at}/for-{rank}", each))
            out = f"{at}/out/{self.rank}"
            self._hp.reduce(self._of_all(f"{at}/for-{self.rank}"), op, name=out, timeout=_left(until))
            used.append(out)
            self._fill(out, mine, until)

        self._operation("reducescatter", reducescatter_options, run)

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Waits until all members have called it."""

        def run(at: str, until: float, used: list[str]) -> None:
            used.append(self._put(f"{at}/in", b""))
            for name in self._of_all(f"{at}/in"):
                self._hp.get(name, timeout=_left(until))

        self._operation("barrier", barrier_options, run)

    def send(self, tensor: list[Any], send_options: Any = SendOptions) -> None:
        """Puts a tensor for another member, without waiting for the receiver."""
        mine = _one(tensor)
        until = _until(send_options)

        def run() -> None:
            with self._next(self.rank, send_options.dst_rank) as name:
                self._hp.put(mine, name=name, timeout=_left(until))

        self._guarded(f"send to rank {send_options.dst_rank}", run)

    def recv(self, tensor: list[Any], recv_options: Any = RecvOptions) -> None:
        """Replaces a tensor with the next one from another member. After an error, that one remains the next."""
        mine = _filled(tensor)
        until = _until(recv_options)

        def run() -> None:
            with self._next(recv_options.src_rank, self.rank) as name:
                with self._lock:
                    self._receiving = recv_options.src_rank, name
                    is_gone = recv_options.src_rank in self._left and self._lacks(recv_options.src_rank)
                if is_gone:
                    self._break(recv_options.src_rank)
                try:
                    self._fill(name, mine, until)
                finally:
                    self._receiving = None
            self._hp.delete(name, timeout=DELETE_S)

        self._guarded(f"receive from rank {recv_options.src_rank}", run)

    def _meet(self) -> tuple[str, list[str]]:
        until = time.monotonic() + MEET_S
        supervisor = place.supervisor()
        while True:
            said = ray.get(supervisor.meet.remote(self._group_name, self.world_size, self.rank, str(self._reservation)))
            if "generation" in said:
                return said["generation"], said["reservations"]
            if time.monotonic() >= until:
                missing = ", ".join(str(rank) for rank in said["missing"])
                raise Timeout(
                    f"group {self._group_name} of {self.world_size} members was not complete after {MEET_S:g} s: "
                    f"rank {missing} is missing. Create the group in all members at the same time"
                )
            time.sleep(place.POLL_S)

    def _watch(self) -> None:
        """Detects members that are gone: a farewell means that one has left, a lost reservation that one has died."""
        others = {text: rank for rank, text in enumerate(self._reservations) if rank != self.rank}
        rank = self.rank
        while others:
            try:
                said, _ = self._hp.wait(list(others), 1, timeout=place.FOREVER_S)
                rank = others.pop(str(said[0]))
                # A farewell is small: its bytes arrive together with the announcement.
                farewell = int(bytes(self._hp.get(said[0], timeout=FAREWELL_S)))
                with self._lock:
                    self._left[rank] = farewell
                    is_awaited = self._lacks(rank)
            except HopliteError:
                # The other member has died. Or this one has left or lost its node; then its calls raise the error.
                is_awaited = not self._hp.closed
            if is_awaited:
                self._break(rank)
            if self._hp.closed:
                return

    def _lacks(self, rank: int) -> bool:
        """Returns whether the current operation waits for something that a departed member did not do."""
        if self._receiving is not None:
            source, name = self._receiving
            return source == rank and not self._hp.wait([name], timeout=0)[0]
        return self._under_way is not None and self._under_way >= self._left[rank]

    def _break(self, rank: int) -> None:
        """Ends all waits of this member, because a rank is gone."""
        self._gone = rank
        self._hp.close()
        self._broken.set()

    def _operation(self, what: str, options: Any, run: Callable[[str, float, list[str]], None]) -> None:
        """Runs an operation of all members, and deletes the objects of an operation that all have completed.

        A failed operation counts as completed: the others do not wait for its success.

        Args:
            what: name of the operation.
            options: Ray's options, with the timeout.
            run: performs it. Its arguments are a prefix for names, a deadline, and a list that collects the names to
                delete later.
        """
        number, self._number = self._number, self._number + 1
        until = _until(options)

        def whole() -> None:
            with self._lock:
                self._under_way = number
                gone = [rank for rank in self._left if self._lacks(rank)]
            if gone:
                self._break(gone[0])
            ended = f"{self._prefix}/ended-{self.rank}/{number}"
            try:
                self._clean(number - AHEAD, until)
                run(f"{self._prefix}/{number}", until, self._used.setdefault(number, []))
            except BaseException:
                with contextlib.suppress(HopliteError):
                    self._hp.put(b"", name=ended, retain=1, timeout=FAREWELL_S)
                raise
            else:
                self._hp.put(b"", name=ended, retain=1, timeout=_left(until))
            finally:
                self._under_way = None

        self._guarded(what, whole)

    def _clean(self, through: int, until: float) -> None:
        """Deletes what this member put in one operation, once all members have completed that."""
        if through not in self._used:
            return
        for rank in range(self.world_size):
            if rank != self.rank:
                self._hp.latest(f"{self._prefix}/ended-{rank}/", after=through - 1, timeout=_left(until))
        names = self._used.pop(through)
        if names:
            self._hp.delete(names, timeout=_left(until))

    def _guarded(self, what: str, run: Callable[[], T]) -> T:
        try:
            return run()
        except HopliteError as error:
            # A member that is gone may be the cause. Others may detect it first, and end what this one waits for.
            if isinstance(error, ObjectLost):
                self._broken.wait(DETECTION_S)
            if isinstance(error, (ClientClosed, NodeDown, Timeout)) or self._gone is not None:
                self._explain(what, error)
            raise

    def _explain(self, what: str, error: HopliteError) -> NoReturn:
        if self._gone is not None:
            raise HopliteError(
                f"{what} of group {self._group_name} failed: rank {self._gone} is gone. Create the group again without "
                "it, or with another actor at that rank"
            ) from None
        if self._reservation is None:
            raise HopliteError(
                f"{what} of group {self._group_name} failed: this member has left the group. Create the group again"
            ) from None
        raise error

    def _put(self, at: str, value: Any) -> str:
        """Puts this member's input of an operation."""
        return str(self._hp.put(value, name=f"{at}/{self.rank}"))

    def _of_all(self, at: str) -> list[str]:
        """Returns the names that all members' `_put` use."""
        return [f"{at}/{rank}" for rank in range(self.world_size)]

    @contextlib.contextmanager
    def _next(self, source: int, target: int) -> Iterator[str]:
        """Yields the name of the next tensor between two members. After an error, the same name remains the next."""
        number = self._between.get((source, target), 0)
        self._between[source, target] = number + 1
        try:
            yield f"{self._prefix}/from-{source}-to-{target}/{number}"
        except BaseException:
            if self._between[source, target] == number + 1:
                self._between[source, target] = number
            raise

    def _fill(self, name: str, out: Any, until: float) -> None:
        """Gets an object into the caller's tensor."""
        if _is_contiguous(out):
            self._hp.get(name, out=out, timeout=_left(until))
        else:
            # An assignment alone would also accept other shapes and dtypes.
            whole = out.contiguous() if hasattr(out, "contiguous") else out.copy(order="C")
            self._hp.get(name, out=whole, timeout=_left(until))
            out[...] = whole


def register_backend() -> None:
    """Registers the backend with Ray in this process. A second call does nothing."""
    if not _global_registry.is_registered(BACKEND):
        register_collective_backend(BACKEND, HopliteGroup)


def check_group() -> None:
    """Checks that this Ray requires no other operations of a group.

    Raises:
        UnknownRay: it does; the message names them.
    """
    missing = sorted(getattr(HopliteGroup, "__abstractmethods__", ()))
    if missing:
        raise unknown(f"requires additional operations of a collective group ({', '.join(missing)})")


def _one(tensors: list[T]) -> T:
    """Returns the only tensor of a list. Ray passes several if a process has several devices."""
    if len(tensors) != 1:
        raise InvalidArgument(f"an operation takes one tensor per member, not {len(tensors)}: pass one CPU tensor")
    return tensors[0]


def _filled(tensors: list[T]) -> T:
    """Returns the only tensor of a list, after a check that it can be filled."""
    tensor = _one(tensors)
    flags = getattr(tensor, "flags", None)
    if flags is not None and not flags["WRITEABLE"]:
        raise InvalidArgument(
            "the operation can't fill a read-only array, such as an argument that Ray passed: pass a copy, "
            "numpy.array(argument)"
        )
    return tensor


def _op(options: Any) -> str:
    op = options.reduceOp
    if op not in OPS:
        raise InvalidArgument(f"unknown operation {op}: use one of {', '.join(sorted(OPS.values()))}")
    return OPS[op]


def _until(options: Any) -> float:
    """Returns the deadline of an operation, by the monotonic clock."""
    # Ray's options of recv have another name for the timeout.
    limit = getattr(options, "timeout_ms", None) or getattr(options, "unset_timeout_ms", None)
    seconds = limit.total_seconds() if limit is not None else -1.0
    return time.monotonic() + (seconds if seconds > 0 else OPERATION_S)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _is_contiguous(tensor: Any) -> bool:
    flags = getattr(tensor, "flags", None)
    return bool(tensor.is_contiguous() if flags is None else flags["C_CONTIGUOUS"])
