"""Groups of `ray.util.collective` with the backend "hoplite": each operation is puts, gets and reduces of names.

Operations fill the tensors they are given, so these are writable: an array that Ray passed as an argument is read-only,
and refused.

The death of a member ends the waits of the others with an error: each has promised an object that it makes only as
a farewell, and a thread of each member hears which promise is broken. How an object is named and when it may go is said
here; how members find each other is the supervisor's.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import ray

from hoplite import Client, HopliteError, InvalidArgument, NodeDown, Ref, Timeout
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

# How long members wait for each other where an operation says nothing: to begin, and in an operation. A member that
# is alive may come late; that one has died is noticed by itself.
MEET_S = 120.0
OPERATION_S = 1800.0

DELETE_S = 10.0

# How long a farewell is there to be read, by threads that do nothing else.
FAREWELL_S = 10.0

# Operations whose objects may wait for slower members, before the next waits for them.
AHEAD = 2

OPS = {ReduceOp.SUM: "sum", ReduceOp.PRODUCT: "prod", ReduceOp.MIN: "min", ReduceOp.MAX: "max"}


class HopliteGroup(BaseGroup):  # type: ignore[misc] # Ray is not there when types are checked
    """A member of a group. It waits until all others are there.

    Args:
        world_size: how many members the group has.
        rank: of this one.
        group_name: of the group.

    Raises:
        ConnectError: Hoplite does not run on this Ray node.
        Timeout: not all members were there in time; names those that are missing.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        self._own = place.client()
        # Kept as a farewell, broken by death.
        self._promise: Ref | None = self._own.reserve()
        try:
            generation, self._promises = self._meet()
            self._prefix = f"ray-group/{generation}"
            # Its objects go with the last member. A broken group closes it, which ends all waits of this member.
            self._hp: Client = place.another(job=self._prefix)
        except BaseException:
            # Others must not form the group with a member that has given up.
            with contextlib.suppress(HopliteError):
                self._own.delete(self._promise, timeout=DELETE_S)
            raise
        self._gone: int | None = None
        # Members that have left, and how many operations they have done before.
        self._left: dict[int, int] = {}
        # What this member waits for: the number of an operation, or a sender and what it is to send.
        self._under_way: int | None = None
        self._receiving: tuple[int, str] | None = None
        self._lock = threading.Lock()
        # Operations that have begun here, by all members and between two.
        self._number = 0
        self._between: dict[tuple[int, int], int] = {}
        # What of each operation is to be deleted when all members have ended it.
        self._used: dict[int, list[str]] = {}
        self._watching = threading.Thread(target=self._watch, name=f"hoplite-group-{group_name}", daemon=True)
        self._watching.start()

    @classmethod
    def backend(cls) -> str:
        """The name by which groups ask for it."""
        return BACKEND

    @classmethod
    def check_backend_availability(cls) -> bool:
        """It needs nothing but Hoplite."""
        return True

    def destroy_group(self) -> None:
        """Leaves. What others still want of this member stays until the last has left."""
        if self._promise is not None:
            promise, self._promise = self._promise, None
            # If its node is gone, the promise is broken.
            with contextlib.suppress(HopliteError):
                self._own.put(str(self._number).encode(), name=promise, ttl=FAREWELL_S)
            self._hp.close()

    def allreduce(self, tensor: list[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Replaces each member's tensor by the sum, product, least or greatest of all, element by element."""
        self._fold("allreduce", tensor, allreduce_options, root=0, is_for_all=True)

    def reduce(self, tensor: list[Any], reduce_options: Any = ReduceOptions) -> None:
        """Replaces the root's tensor by the fold of all."""
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
        """Replaces each member's tensor by the root's."""
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
        """Fills each member's list with the tensors of all, in the order of the ranks."""
        mine, filled = _one(tensor), [_filled([each]) for each in _one(tensor_list)]

        def run(at: str, until: float, used: list[str]) -> None:
            used.append(self._put(f"{at}/in", mine))
            for name, out in zip(self._of_all(f"{at}/in"), filled, strict=True):
                self._fill(name, out, until)

        self._operation("allgather", allgather_options, run)

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = ReduceScatterOptions
    ) -> None:
        """Replaces the tensor of rank r by the fold of the r-th tensors of all lists."""
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
        """Waits until each member has called it."""

        def run(at: str, until: float, used: list[str]) -> None:
            used.append(self._put(f"{at}/in", b""))
            for name in self._of_all(f"{at}/in"):
                self._hp.get(name, timeout=_left(until))

        self._operation("barrier", barrier_options, run)

    def send(self, tensor: list[Any], send_options: Any = SendOptions) -> None:
        """Puts a tensor for another member, and does not wait until that has got it."""
        mine = _one(tensor)
        until = _until(send_options)

        def run() -> None:
            with self._next(self.rank, send_options.dst_rank) as name:
                self._hp.put(mine, name=name, timeout=_left(until))

        self._guarded(f"send to rank {send_options.dst_rank}", run)

    def recv(self, tensor: list[Any], recv_options: Any = RecvOptions) -> None:
        """Replaces a tensor by the next one from another member; one that it can not be replaced by stays the next."""
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
            said = ray.get(supervisor.meet.remote(self._group_name, self.world_size, self.rank, str(self._promise)))
            if "generation" in said:
                return said["generation"], said["promises"]
            if time.monotonic() >= until:
                missing = ", ".join(str(rank) for rank in said["missing"])
                raise Timeout(
                    f"group {self._group_name} of {self.world_size} members was not complete after {MEET_S:g} s: "
                    f"rank {missing} did not come"
                )
            time.sleep(place.POLL_S)

    def _watch(self) -> None:
        """Hears of members that are gone: a promise is broken by death, and kept by a farewell."""
        others = {text: rank for rank, text in enumerate(self._promises) if rank != self.rank}
        rank = self.rank
        while others:
            try:
                said, _ = self._hp.wait(list(others), 1)
                rank = others.pop(str(said[0]))
                # A farewell is small, and there when it is heard of.
                farewell = int(bytes(self._hp.get(said[0], timeout=FAREWELL_S)))
                with self._lock:
                    self._left[rank] = farewell
                    is_awaited = self._lacks(rank)
            except HopliteError:
                # That member has died; or this one has left, or its node is gone: its calls say so.
                is_awaited = not self._hp.closed
            if is_awaited:
                self._break(rank)
            if self._hp.closed:
                return

    def _lacks(self, rank: int) -> bool:
        """Whether the operation under way waits for something that a member has left without doing."""
        if self._receiving is not None:
            source, name = self._receiving
            return source == rank and not self._hp.wait([name], timeout=0)[0]
        return self._under_way is not None and self._under_way >= self._left[rank]

    def _break(self, rank: int) -> None:
        """Ends all waits of this member."""
        self._gone = rank
        self._hp.close()

    def _operation(self, what: str, options: Any, run: Callable[[str, float, list[str]], None]) -> None:
        """Runs an operation of all members, and cleans up after those that all have ended.

        An operation that fails here has ended too: the others do not wait for its success.

        Args:
            what: it is called.
            options: of Ray; say how long it may take.
            run: does it, given a prefix for names, a time to end, and a list for the names to be deleted later.
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
        """Deletes what this member has put in operations up to one, when all members have ended that."""
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
            # A member that is gone may be the reason, and is heard of a moment later.
            if isinstance(error, (NodeDown, Timeout)) or self._gone is not None:
                self._explain(what, error)
            raise

    def _explain(self, what: str, error: HopliteError) -> NoReturn:
        if self._gone is not None:
            raise HopliteError(
                f"{what} of group {self._group_name}: rank {self._gone} is gone; make the group again without it, or "
                "with another in its place"
            ) from None
        if self._promise is None:
            raise HopliteError(f"{what} of group {self._group_name}: this member has left it") from None
        raise error

    def _put(self, at: str, value: Any) -> str:
        """Puts what this member gives to an operation."""
        return str(self._hp.put(value, name=f"{at}/{self.rank}"))

    def _of_all(self, at: str) -> list[str]:
        """The names that the members' `_put` give."""
        return [f"{at}/{rank}" for rank in range(self.world_size)]

    @contextlib.contextmanager
    def _next(self, source: int, target: int) -> Iterator[str]:
        """The name of the next tensor between two members; if the transfer fails, it is the next again."""
        number = self._between.get((source, target), 0)
        self._between[source, target] = number + 1
        try:
            yield f"{self._prefix}/from-{source}-to-{target}/{number}"
        except BaseException:
            if self._between[source, target] == number + 1:
                self._between[source, target] = number
            raise

    def _fill(self, name: str, out: Any, until: float) -> None:
        """Gets an object into a tensor of the caller's."""
        if _is_contiguous(out):
            self._hp.get(name, out=out, timeout=_left(until))
        else:
            # An assignment alone would take other shapes and dtypes too.
            whole = out.contiguous() if hasattr(out, "contiguous") else out.copy(order="C")
            self._hp.get(name, out=whole, timeout=_left(until))
            out[...] = whole


def register_backend() -> None:
    """Makes the backend known to Ray in this process; twice is fine."""
    if not _global_registry.is_registered(BACKEND):
        register_collective_backend(BACKEND, HopliteGroup)


def check_group() -> None:
    """Refuses a Ray whose groups have other operations.

    Raises:
        UnknownRay: names them.
    """
    missing = sorted(getattr(HopliteGroup, "__abstractmethods__", ()))
    if missing:
        raise unknown(f"asks a collective group for more operations ({', '.join(missing)})")


def _one(tensors: list[T]) -> T:
    """The only tensor of a list: there are several where a process has several devices."""
    if len(tensors) != 1:
        raise InvalidArgument(f"a member has one tensor for an operation, not {len(tensors)}")
    return tensors[0]


def _filled(tensors: list[T]) -> T:
    """The only tensor of a list, which an operation is to fill."""
    tensor = _one(tensors)
    flags = getattr(tensor, "flags", None)
    if flags is not None and not flags["WRITEABLE"]:
        raise InvalidArgument(
            "the array that the operation fills is read-only, as are those that Ray passes as arguments: pass a copy "
            "of your own, numpy.array(it)"
        )
    return tensor


def _op(options: Any) -> str:
    op = options.reduceOp
    if op not in OPS:
        raise InvalidArgument(f"unknown operation {op}: use one of {', '.join(sorted(OPS.values()))}")
    return OPS[op]


def _until(options: Any) -> float:
    """When an operation is to end, by the monotonic clock."""
    # Ray's options for receiving call it otherwise.
    limit = getattr(options, "timeout_ms", None) or getattr(options, "unset_timeout_ms", None)
    seconds = limit.total_seconds() if limit is not None else -1.0
    return time.monotonic() + (seconds if seconds > 0 else OPERATION_S)


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _is_contiguous(tensor: Any) -> bool:
    flags = getattr(tensor, "flags", None)
    return bool(tensor.is_contiguous() if flags is None else flags["C_CONTIGUOUS"])
