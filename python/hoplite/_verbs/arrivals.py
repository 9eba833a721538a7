"""Several requests, and their replies in the order of arrival.

Each request is sent once, and one inbox receives all replies, so that the cost of each reply does not depend on the
number of requests. Does not know what the requests are for.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Generic, TypeVar

from hoplite import _loop, _native
from hoplite._loop import SILENT, Looks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hoplite._native import Pending
    from hoplite._waits import Waits

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Requests that were sent together. The caller calls `cancel` when it needs no more replies.

    Args:
        waits: how to wait for them.
        pendings: the requests; the index of each is its key.
    """

    def __init__(self, waits: Waits, pendings: Sequence[Pending[T]]) -> None:
        self._waits = waits
        self._inbox = _native.Inbox()
        self._missing = dict(enumerate(pendings))
        self._over = [key for key, pending in self._missing.items() if not pending.register(self._inbox, key)]
        self._looks = Looks(self._until_check)

    def __len__(self) -> int:
        """Returns the number of requests whose reply was not taken."""
        return len(self._missing)

    def missing(self) -> list[int]:
        """Returns the keys of the requests whose reply was not taken, in order."""
        return list(self._missing)

    def first_missing(self) -> int:
        """Returns the first of them."""
        return next(iter(self._missing))

    async def next(self, look: Callable[[float], Awaitable[None]] | None = None) -> list[int]:
        """Waits for replies.

        Args:
            look: called at intervals that double, with the seconds since the start.

        Returns:
            The keys of one or more requests that are over, in order of arrival. If the node does not reply, the key of
            one request, whose `take` raises that error.
        """
        while True:
            keys = self._over or [key for key in self._inbox.take() if key in self._missing]
            if keys:
                self._over = []
                return keys
            if self._looks.is_node_silent():
                return [self.first_missing()]
            if (waited := self._looks.due()) is not None and look is not None:
                await look(waited)
            else:
                await self._waits.arrival(self._inbox, self._looks.wait_s())

    def take(self, key: int) -> T:
        """Returns the reply to a request, or raises its error."""
        return self._missing.pop(key).result()

    def has_news(self) -> bool:
        """Whether a reply has arrived that `next` has not returned."""
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def cancel(self) -> None:
        """Cancels the requests whose reply was not taken."""
        for pending in self._missing.values():
            pending.cancel()
        self._missing.clear()

    async def log(self, native: _native.Client, texts: Sequence[str], waited: float) -> None:
        """Logs a long wait: how many objects are missing, and why the first one is.

        Args:
            native: the attachment.
            texts: refs of the objects, by key.
            waited: seconds since the start.
        """
        if waited < _loop.FIRST_WORD_AFTER_S:
            return
        first = texts[self.first_missing()]
        state = await self._waits.brief(native.start_explain(first), SILENT)
        what = first if len(texts) == 1 else f"{len(self)} of {len(texts)} objects, including {first},"
        self._waits.still_waiting(what, waited, state)

    def _until_check(self) -> float | None:
        return self._missing[self.first_missing()].until_check() if self._missing else None
