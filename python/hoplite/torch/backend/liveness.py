"""Detection of ranks that end: each rank watches the next one in a ring, and announces its failure to all.

Each rank has reserved a ref under its own client. It creates that object when it leaves in order. If its process dies,
or its host, the object is lost, and so the watcher knows. Does not know operations.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, ObjectLost
from hoplite.torch.backend.group import ANNOUNCE_S
from hoplite.torch.backend.loop import FOREVER_S, in_loop, submit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from hoplite.torch.backend.group import Group

# What has become of a rank that did not leave in order.
DIED = "died: its process or its host ended"

# Interval in which this rank checks, after another has left, whether it waits for that one.
POLL_S = 0.1


class Liveness:
    """What one rank knows of the others.

    Args:
        group: the group.
        refs: the reserved ref of each rank.
    """

    def __init__(self, group: Group, refs: Sequence[str]) -> None:
        self._group = group
        self._refs = refs
        self._watches: list[Future[Any]] = []
        if group.size > 1:
            self._watches = [submit(self._watch_next()), submit(self._watch_announcement())]

    def leave(self, messages: dict[str, int]) -> None:
        """Announces that this rank leaves in order, after its last operation.

        Args:
            messages: how many messages this rank has sent in each channel.
        """
        last = json.dumps({"operations": self._group.number, "messages": messages}).encode()
        with contextlib.suppress(HopliteError):
            self._group.client.put(last, name=self._refs[self._group.rank], timeout=ANNOUNCE_S)
        for watch in self._watches:
            watch.cancel()

    def wait_for_others(self, seconds: float) -> None:
        """Waits until all other ranks have left or died, for at most so many seconds."""
        refs = [self._refs[rank] for rank in self._group.others()]
        with contextlib.suppress(HopliteError):
            self._group.client.wait(refs, timeout=seconds)

    async def left(self, rank: int) -> dict[str, Any]:
        """Waits until a rank leaves in order; returns what it announced then.

        Raises:
            ObjectLost: the rank died.
        """
        value = await self._group.client.get_async(self._refs[rank], timeout=FOREVER_S)
        return json.loads(bytes(value))  # type: ignore[no-any-return]

    async def _watch_next(self) -> None:
        """Watches the next rank. After that has left, watches the one behind it too."""
        group = self._group
        for rank in group.others():
            try:
                operations = (await self.left(rank))["operations"]
            except ObjectLost:
                await self._announce(f"rank {rank} {DIED}")
                return
            except HopliteError as error:
                group.fail(f"{error}")
                return
            self._watches.append(submit(self._end_of(rank, operations)))

    async def _end_of(self, rank: int, operations: int) -> None:
        """Fails the group once this rank waits for an operation in which a rank that has left takes no part."""
        group = self._group
        while group.number <= operations and group.failure is None:  # noqa: ASYNC110 - operations start in other threads
            await asyncio.sleep(POLL_S)
        await self._announce(f"rank {rank} left the group after {operations} collective operations")

    async def _watch_announcement(self) -> None:
        group = self._group
        with contextlib.suppress(HopliteError):
            group.fail(bytes(await group.client.get_async(group.failed, timeout=FOREVER_S)).decode())

    def abort(self) -> None:
        """Announces that this rank ends all operations of the group, and ends its own."""
        rank = self._group.rank
        with contextlib.suppress(TimeoutError):
            submit(self._announce(f"rank {rank} aborted the group")).result(2 * ANNOUNCE_S)
        self._group.fail("the group was aborted")

    async def _announce(self, why: str) -> None:
        await self._group.announce(in_loop(self._group.client), why)
