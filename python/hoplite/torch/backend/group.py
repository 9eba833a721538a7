"""A process group on Hoplite: the names of its objects, its operations, and what ends them.

Ranks of a group share no connection. Rank 2 puts its part of operation 7 as PREFIX/7/all_reduce/r2, and a rank that
needs it gets that name. Does not know what the operations do with the objects.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch.distributed as dist

from hoplite.errors import ClientClosed, HopliteError, NodeDown, ObjectLost, ShapeMismatch, StoreFull, Timeout
from hoplite.torch.backend.cleanup import Cleanup
from hoplite.torch.backend.loop import finish, in_loop, in_thread, submit
from hoplite.torch.backend.operators import named
from hoplite.torch.backend.tensors import inherit_streams
from hoplite.torch.backend.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    import hoplite
    from hoplite.torch.backend.loop import Run

# Time to look up, after a timeout, what other ranks have called.
DIAGNOSIS_S = 2.0

# Time to announce a failure before this rank closes its own client.
ANNOUNCE_S = 1.0

# An operation with a larger tensor runs in the loop even if the caller waits: there it can put and get at once.
IN_THREAD_BYTES = 64 << 10

# Handles of the newest operations up to this size are kept, so many of them.
SMALL_BYTES = 1024
SMALL_WORKS = 64

T = TypeVar("T")
U = TypeVar("U")


class Host(NamedTuple):
    """The store of one host.

    Attributes:
        ranks: the ranks that use it.
        capacity: its capacity, in bytes.
    """

    ranks: list[int]
    capacity: int


class Group:
    """One group, as one of its ranks sees it.

    Args:
        client: client of this group alone. Closing it ends all operations.
        prefix: start of the names of all objects of the group.
        rank: this rank.
        size: number of ranks.
        timeout_s: timeout of an operation without one of its own, in seconds.
        budget_bytes: see `Cleanup`.
        hosts: the stores of all ranks.
    """

    def __init__(
        self,
        client: hoplite.Client,
        prefix: str,
        rank: int,
        size: int,
        timeout_s: float,
        budget_bytes: int,
        hosts: Sequence[Host],
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self.cleanup = Cleanup(self, budget_bytes)
        self._hosts = hosts
        # Why no operation can succeed, once that is known.
        self.failure: str | None = None
        self._pid = os.getpid()
        # Number of the newest collective operation.
        self.number = 0
        self._lock = threading.Lock()
        # torch's DistributedDataParallel drops the handle of a small operation, and then waits for it in C++, where it
        # is a handle that never completes if the Python object is gone.
        self._small: collections.deque[Work] = collections.deque(maxlen=SMALL_WORKS)

    def others(self) -> list[int]:
        """Returns the other ranks, from the next one on, so that ranks do not all read from the same rank first."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def ranks_elsewhere(self, rank: int) -> int:
        """Returns how many ranks are on another host than a rank."""
        return self.size - next(len(ranks) for ranks, _ in self._hosts if rank in ranks)

    def check_fits(
        self, inputs: Sequence[int], result: int = 0, *, root: int | None = None, copies: bool = False
    ) -> None:
        """Checks that all objects that an operation needs at the same time fit into the stores.

        Args:
            inputs: size of what each rank puts, in bytes.
            result: size of the result in the store of each reader.
            root: the only rank that reads; None means that all do.
            copies: whether readers also need space for an input of another host.

        Raises:
            StoreFull: they do not: the operation would wait until its timeout.
        """
        for ranks, capacity in self._hosts:
            needed = sum(inputs[rank] for rank in ranks)
            if root is None or root in ranks:
                needed += result
                if copies and len(ranks) < self.size:
                    needed += max(inputs[rank] for rank in range(self.size) if rank not in ranks)
            if needed > capacity:
                raise StoreFull(
                    f"the tensors of {ranks_in_words(ranks)} and the result need {needed} bytes at the same time, but "
                    f"the store of their host has a capacity of {capacity} bytes: set HOPLITE_CAPACITY to more, or "
                    "pass smaller tensors"
                )

    def start(
        self,
        op: str,
        timeout_s: float | None,
        steps: Callable[[Call], Coroutine[Any, Any, Any]],
        *,
        asynchronous: bool,
        outputs: list[Any],
        nbytes: int = 0,
        shared_bytes: int = 0,
    ) -> Work:
        """Starts a collective operation: in the caller's thread, or in the loop.

        Args:
            op: name of the operation, such as "all_reduce".
            timeout_s: timeout in seconds; None means that of the group.
            steps: the operation.
            asynchronous: whether to return before the operation is over.
            outputs: the tensors that it fills.
            nbytes: size of the tensor that it moves.
            shared_bytes: size of its objects that all ranks read, the same on all ranks.

        Raises:
            DistBackendError: the operation failed.
        """
        self.check_process()
        inherit_streams()
        with self._lock:
            self.number += 1
            number = self.number
        call = Call(self, op, f"{number}/{op}", timeout_s, number)
        call.in_loop = asynchronous or nbytes > IN_THREAD_BYTES
        if call.in_loop:
            running = submit(call.carry_out(in_loop(self.client), steps))
            self.cleanup.issued(number, shared_bytes, running)
            if not asynchronous:
                running.result()
            work = Work(outputs, running)
            if 0 < shared_bytes <= SMALL_BYTES:
                self._small.append(work)
            return work
        try:
            finish(call.carry_out(in_thread(self.client), steps))
        finally:
            # Also after an error, so that all ranks count alike.
            self.cleanup.issued(number, shared_bytes, None)
        return Work(outputs)

    def check_process(self) -> None:
        """Checks that this process is the rank.

        Raises:
            DistBackendError: it was forked from the rank.
        """
        if os.getpid() != self._pid:
            raise dist.DistBackendError(
                f"this process ({os.getpid()}) was forked from rank {self.rank} and is not in its group: call "
                "init_process_group after the fork"
            )

    @property
    def failed(self) -> str:
        """Name of the object whose content is the reason that ends the group on all ranks."""
        return f"{self.prefix}/failed"

    async def announce(self, run: Run, why: str) -> None:
        """Ends the group on all ranks, with a reason or with that which another rank announced first."""
        with contextlib.suppress(HopliteError):
            await run("put", why.encode(), name=self.failed, exist_ok=True, timeout=ANNOUNCE_S)
            why = bytes(await run("get", self.failed, timeout=ANNOUNCE_S)).decode()
        self.fail(why)

    def fail(self, why: str) -> None:
        """Ends all operations of this rank, now and later."""
        if self.failure is None:
            self.failure = why
            self.client.close()


class Call:
    """One operation of one rank.

    Args:
        group: the group.
        op: name of the operation, for messages.
        path: its part in the names of its objects.
        timeout_s: timeout in seconds; None means that of the group.
        number: number of a collective operation.
    """

    def __init__(self, group: Group, op: str, path: str, timeout_s: float | None, number: int = 0) -> None:
        self.group = group
        self.op = op
        self.number = number
        self.in_loop = False
        # Whether other ranks wait for what this one does.
        self.is_awaited = number > 0
        self.run: Run
        self._path = f"{group.prefix}/{path}"
        self._timeout_s = group.timeout_s if timeout_s is None else timeout_s
        self._deadline = time.monotonic() + self._timeout_s

    def name(self, rank: int, part: object = "") -> str:
        """Returns the name of an object that a rank puts in this operation."""
        return f"{self._path}/r{rank}{part}"

    def left_s(self) -> float:
        """Seconds until the timeout."""
        return max(self._deadline - time.monotonic(), 0.0)

    async def put(self, value: object, part: object = "") -> str:
        """Puts an object of this rank; returns its name."""
        name = self.name(self.group.rank, part)
        await self.run("put", value, name=name, timeout=self.left_s())
        return name

    async def get(self, name: str, out: object = None) -> Any:
        """Gets an object, or copies it into `out`."""
        return await self.run("get", name, out=out, timeout=self.left_s())

    async def get_all(self, names: Sequence[str], outs: Sequence[object]) -> None:
        """Copies several objects, each into its memory."""
        if names:
            await self.run("get", names, out=outs, timeout=self.left_s())

    async def together(
        self, put: Callable[[], Coroutine[Any, Any, T]], get: Callable[[], Coroutine[Any, Any, U]]
    ) -> tuple[T, U]:
        """Puts and gets at the same time, if this runs in the loop; else in turn."""
        if not self.in_loop:
            return await put(), await get()
        running: list[asyncio.Task[Any]] = []
        try:
            running.append(asyncio.ensure_future(get()))
            # The request is sent before the put.
            await asyncio.sleep(0)
            running.append(asyncio.ensure_future(put()))
            # The first error of either ends both: the put may wait for space that only a get frees.
            got, stored = await asyncio.gather(*running)
        except BaseException:
            for task in running:
                task.cancel()
            raise
        return stored, got

    async def reduce(self, names: Sequence[str], op: str, name: str) -> None:
        """Starts to fold objects into a new one."""
        await self.run("reduce", names, op, name=name, timeout=self.left_s())

    async def carry_out(self, run: Run, steps: Callable[[Call], Coroutine[Any, Any, Any]]) -> Any:
        """Carries out the operation; its errors name it, and the ranks that miss.

        The other ranks can't finish a collective operation that failed here. So this ends the group on all of them,
        with the reason. After a timeout it does not: each rank reports what it waited for.

        Raises:
            DistBackendError: the operation failed.
        """
        self.run = run
        group = self.group
        try:
            if group.failure is not None:
                raise ClientClosed(group.failure)
            return await steps(self)
        except Timeout as error:
            why = f"timeout after {self._timeout_s:g} s: {await self._diagnosis() or error}"
            raise dist.DistBackendError(f"{self._title()} failed: {why}") from error
        except (ClientClosed, NodeDown) as error:
            why = group.failure or f"{error}"
            raise dist.DistBackendError(f"{self._title()} failed: {why}") from error
        except ObjectLost as error:
            # Whoever watches the rank that died announces it.
            raise dist.DistBackendError(f"{self._title()} failed: {error}") from error
        except HopliteError as error:
            text = f"{self._title()} failed: {self._in_words(error)}"
            await self._announce(text)
            raise dist.DistBackendError(text) from error
        except dist.DistBackendError:
            raise
        except Exception as error:
            await self._announce(f"{self._title()} failed: {error}")
            raise

    async def _announce(self, why: str) -> None:
        if self.is_awaited:
            await self.group.announce(self.run, why)

    def _in_words(self, error: HopliteError) -> str:
        if not isinstance(error, ShapeMismatch):
            return f"{error}"
        text = f"{error}".partition(": pass an out")[0].replace("but out is", "but this rank passed")
        text = named(text) if "reduce" in self.op else text
        return f"{text}: pass tensors of one dtype and size, and one operator, on all ranks"

    def _title(self) -> str:
        return f"{self.op} of rank {self.group.rank} of {self.group.size}"

    async def _diagnosis(self) -> str:
        """Returns what the other ranks have called in this place, or "" if they all called the same."""
        if not self.number:
            return ""
        group, prefix = self.group, f"{self.group.prefix}/{self.number}/"
        try:
            rows = await self.run("directory", prefix, timeout=DIAGNOSIS_S)
        except HopliteError:
            return ""
        return differences(group, self.op, (row["ref"].removeprefix(prefix) for row in rows))


def differences(group: Group, op: str, paths: Iterable[str]) -> str:
    """Describes which ranks called another operation than this one, and which called none.

    Args:
        group: the group.
        op: the operation of this rank.
        paths: names of the objects that exist, after the number of the operation, such as "all_reduce/r2".
    """
    called: dict[str, set[int]] = {}
    for path in paths:
        other, _, rest = path.partition("/r")
        digits = "".join(itertools.takewhile(str.isdigit, rest))
        if digits:
            called.setdefault(other, set()).add(int(digits))
    parts = [
        f"{ranks_in_words(ranks)} called {other} instead of {op}"
        for other, ranks in sorted(called.items())
        if other != op
    ]
    missing = set(range(group.size)) - {group.rank}.union(*called.values())
    if missing:
        parts.append(f"{ranks_in_words(missing)} did not call {op}, or has nothing to send in it")
    return "; ".join(parts)


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Returns "rank 2" or "ranks 1, 3"."""
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(map(str, ordered))}"
