"""Deletion of the objects that operations of a group leave behind.

An object with one reader is deleted by it. An object that all ranks read is deleted by the rank that put it, after all
ranks have finished the operation. They confirm that together, once for many operations: every rank puts the number of
the last one, and rank 0 puts the lowest of these numbers for all. Does not know tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from hoplite.errors import HopliteError
from hoplite.torch.backend.loop import FOREVER_S, in_loop, submit

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from typing import Any

    from hoplite.torch.backend.group import Group

# Operations between two confirmations. One costs about as much as one small all_reduce, in the background.
OPERATIONS = 128

# Objects with one reader are deleted together, up to so many or so many bytes.
TRASH_OBJECTS = 64
TRASH_BYTES = 4 << 20


class Cleanup:
    """The objects of one group that this rank must delete.

    Args:
        group: the group.
        budget_bytes: size of objects that all ranks read after which the ranks confirm. All ranks pass the same value.
    """

    def __init__(self, group: Group, budget_bytes: int) -> None:
        self._group = group
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._shared: list[tuple[int, list[str]]] = []
        self._running: dict[int, Future[Any]] = {}
        self._trash: list[str] = []
        self._trash_bytes = 0
        self._operations = 0
        self._bytes = 0
        self._confirmations = 0

    def read_by_all(self, number: int, names: Iterable[str]) -> None:
        """Registers objects that this rank has put and all ranks read.

        Args:
            number: number of the operation.
            names: names of the objects.
        """
        with self._lock:
            self._shared.append((number, list(names)))

    def read(self, names: Iterable[str], nbytes: int) -> None:
        """Registers objects whose only reader was this rank, and their size in all."""
        with self._lock:
            self._trash += names
            self._trash_bytes += nbytes
            if len(self._trash) < TRASH_OBJECTS and self._trash_bytes < TRASH_BYTES:
                return
            full, self._trash, self._trash_bytes = self._trash, [], 0
        submit(self._delete(full))

    def issued(self, number: int, nbytes: int, running: Future[Any] | None) -> None:
        """Counts an operation, which all ranks count alike, and confirms if it is time.

        Args:
            number: number of the operation.
            nbytes: size of its objects that all ranks read, the same on all ranks.
            running: the operation, if it is not over.
        """
        with self._lock:
            if running is not None:
                self._running[number] = running
                running.add_done_callback(lambda _: self._running.pop(number, None))
            self._operations += 1
            self._bytes += nbytes
            if self._operations < OPERATIONS and self._bytes < self._budget_bytes:
                return
            self._operations = self._bytes = 0
            self._confirmations += 1
            confirmation = self._confirmations
            running_now = list(self._running.values())
        submit(self._confirm(confirmation, number, running_now))

    async def _confirm(self, confirmation: int, number: int, running: list[Future[Any]]) -> None:
        """Deletes this rank's objects of all operations up to `number`, once all ranks have finished these."""
        await asyncio.gather(*map(asyncio.wrap_future, running), return_exceptions=True)
        group, run = self._group, in_loop(self._group.client)
        names = [f"{group.prefix}/done/{confirmation}/r{rank}" for rank in range(group.size)]
        everyone = f"{group.prefix}/done/{confirmation}/all"
        # If the group has failed, the job deletes everything.
        with contextlib.suppress(HopliteError):
            await run("put", b"%d" % number, name=names[group.rank])
            if group.rank == 0:
                # The operations that all ranks have finished, should they ever count differently.
                numbers = [int(bytes(each)) for each in await run("get", names, timeout=FOREVER_S)]
                await run("put", b"%d" % min(numbers), name=everyone)
                self.read_by_all(number, [everyone])
            last = int(bytes(await run("get", everyone, timeout=FOREVER_S)))
            with self._lock:
                over = [name for of, shared in self._shared if of <= last for name in shared if name != everyone]
                self._shared = [(of, shared) for of, shared in self._shared if of > last or everyone in shared]
            await self._delete([*over, names[group.rank]])

    async def _delete(self, names: list[str]) -> None:
        with contextlib.suppress(HopliteError):
            await in_loop(self._group.client)("delete", names)
