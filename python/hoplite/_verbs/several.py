"""`get` of several objects at once.

The views of the objects that have arrived are pinned until all have. A list that exceeds the capacity of the store
could therefore never complete: it is rejected. Objects that are copied into the caller's memory are released one by
one, and may exceed it. Does not know what the objects contain.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Generic, TypeVar

from hoplite import _native
from hoplite._loop import FIRST_WORD_AFTER_S, SILENT, Looks
from hoplite.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hoplite._native import Pending
    from hoplite._waits import Waits

T = TypeVar("T")


class Several(Generic[T]):
    """Objects requested together. If one fails, or the caller cancels, the other requests are canceled.

    Args:
        waits: how to wait for them.
        native: the attachment.
        texts: refs of the objects.
        pendings: request for each of them, with a view or a copy.
        limit: seconds to wait for all of them.
    """

    def __init__(
        self,
        waits: Waits,
        native: _native.Client,
        texts: Sequence[str],
        pendings: Sequence[Pending[T]],
        limit: float | None,
    ) -> None:
        self._waits = waits
        self._native = native
        self._texts = texts
        self._logs = limit is None
        self._inbox = _native.Inbox()
        self._results: dict[int, T] = {}
        self._pendings = pendings

    async def results(self) -> list[T]:
        """Waits for all objects and returns the replies in order."""
        looks = Looks(self._until_check)
        try:
            for key, pending in enumerate(self._pendings):
                if not pending.register(self._inbox, key):
                    self._take(key)
            while self._is_incomplete():
                await self._waits.arrival(self._inbox, looks.wait_s())
                for key in self._inbox.take():
                    self._take(key)
                if self._is_incomplete() and looks.is_node_silent():
                    self._take(next(self._missing()))
                if (waited := looks.due()) is not None and self._is_incomplete():
                    await self._look(waited)
            return [self._results[key] for key in range(len(self._pendings))]
        except BaseException as error:
            self._results.clear()
            for pending in self._pendings:
                pending.cancel()
            self._waits.hint(error)
            raise

    def _take(self, key: int) -> None:
        """Takes an object that has arrived, or raises its error."""
        self._results[key] = self._pendings[key].result()

    def _is_incomplete(self) -> bool:
        return len(self._results) < len(self._pendings)

    def _missing(self) -> Iterator[int]:
        return (key for key in range(len(self._pendings)) if key not in self._results)

    def _until_check(self) -> float | None:
        return self._pendings[next(self._missing())].until_check() if self._is_incomplete() else None

    async def _look(self, waited: float) -> None:
        """Checks why the other objects are missing: they may wait for memory that this call pins itself."""
        held = self._held()
        for key in self._missing() if held else ():
            lacks = await self._waits.brief(self._native.start_lacks(self._texts[key]), SILENT)
            if isinstance(lacks, str) or self._has_news():
                break
            self._refuse_if_too_large(held, lacks)
        if self._logs and waited >= FIRST_WORD_AFTER_S:
            first = self._texts[next(self._missing())]
            state = await self._waits.brief(self._native.start_explain(first), SILENT)
            missing = len(self._pendings) - len(self._results)
            what = f"{missing} of {len(self._pendings)} objects, including {first},"
            self._waits.still_waiting(what, waited, state)

    def _has_news(self) -> bool:
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _held(self) -> dict[str, int]:
        """Objects that have arrived in the store, and the memory that each uses. Small objects use none."""
        # An object that is listed twice is stored once.
        views = {key: view for key, view in self._results.items() if isinstance(view, _native.View)}
        held = {self._texts[key]: view.nbytes for key, view in views.items()}
        return {
            text: nbytes + _native.COPY_OVERHEAD_BYTES
            for text, nbytes in held.items()
            if nbytes > _native.INLINE_BYTES_MAX
        }

    def _refuse_if_too_large(self, held: dict[str, int], lacks: tuple[int, int] | None) -> None:
        """Raises `StoreFull` if the next object can only fit after this call has ended."""
        if lacks is None:
            return
        needed, capacity = lacks
        taken = sum(held.values())
        if taken + needed + _native.COPY_OVERHEAD_BYTES > capacity:
            raise StoreFull(
                f"{len(self._texts)} objects of one get exceed the capacity of the store, {capacity} bytes: "
                f"{len(held)} have arrived and take {taken}, and the next needs {needed}. Get fewer at a time, get "
                "them into your own memory (out=), or increase the capacity"
            )
