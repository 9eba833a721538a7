"""`get` of several objects at once.

The views of the objects that have arrived are pinned until all have. A list that exceeds the capacity of the store
could therefore never complete: it is rejected. Objects that are copied into the caller's memory are released one by
one, and may exceed it. Does not know what the objects contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from hoplite import _native
from hoplite._loop import SILENT
from hoplite._verbs.arrivals import Arrivals
from hoplite.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._results: dict[int, T] = {}
        self._arrivals = Arrivals(waits, pendings)

    async def results(self) -> list[T]:
        """Waits for all objects and returns the replies in order."""
        try:
            while self._arrivals:
                for key in await self._arrivals.next(self._look):
                    self._results[key] = self._arrivals.take(key)
            return [self._results[key] for key in range(len(self._texts))]
        except BaseException as error:
            self._results.clear()
            self._arrivals.cancel()
            self._waits.hint(error)
            raise

    async def _look(self, waited: float) -> None:
        """Checks why the other objects are missing: they may wait for memory that this call pins itself."""
        held = self._held()
        for key in self._arrivals.missing() if held else ():
            lacks = await self._waits.brief(self._native.start_lacks(self._texts[key]), SILENT)
            if isinstance(lacks, str) or self._arrivals.has_news():
                break
            self._refuse_if_too_large(held, lacks)
        if self._logs:
            await self._arrivals.log(self._native, self._texts, waited)

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
