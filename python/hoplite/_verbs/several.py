"""Several objects that are got together.

What has come of them is held until all have: a list that takes more than the store has room for could never be
complete, and is refused. Knows nothing of what the objects are.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from hoplite import _native
from hoplite._loop import FIRST_WORD_AFTER_S, SILENT, Looks
from hoplite.errors import StoreFull

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hoplite._native import View
    from hoplite._waits import Waits


class Several:
    """Objects asked for together; as soon as one fails, or the caller gives up, the other questions are taken back.

    Args:
        waits: how to wait for them.
        native: the attachment to ask.
        texts: the objects.
        limit: seconds to wait for all of them.
    """

    def __init__(self, waits: Waits, native: _native.Client, texts: Sequence[str], limit: float | None) -> None:
        self._waits = waits
        self._native = native
        self._texts = texts
        self._speaks = limit is None
        self._inbox = _native.Inbox()
        self._views: dict[int, View] = {}
        self._pendings = [native.start_get(text, limit) for text in texts]
        self._looks = Looks(self._patience)

    async def views(self) -> list[View]:
        """Waits for all objects and returns them in order."""
        try:
            self._begin()
            while not self._is_done():
                await self._waits.arrival(self._inbox, self._looks.wait_s())
                self._take()
                if (waited := self._is_stuck_for()) is None:
                    continue
                for text in self._suspects():
                    lacks = await self._waits.brief(self._native.start_lacks(text), SILENT)
                    if isinstance(lacks, str) or self._has_news():
                        break
                    self._refuse_if_too_large(lacks)
                if self._speaks and waited >= FIRST_WORD_AFTER_S:
                    explained = self._native.start_explain(next(self._missing()))
                    self._speak(waited, await self._waits.brief(explained, SILENT))
            return self._in_order()
        except BaseException as error:
            self._cancel()
            self._waits.hint(error)
            raise
        finally:
            # It refers to this object, and views must not wait for a collection of garbage.
            del self._looks

    def _begin(self) -> None:
        for key, pending in enumerate(self._pendings):
            if not pending.tell(self._inbox, key):
                self._views[key] = pending.result()

    def _take(self) -> None:
        for key in self._inbox.take():
            self._views[key] = self._pendings[key].result()

    def _has_news(self) -> bool:
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _is_done(self) -> bool:
        return len(self._views) == len(self._pendings)

    def _in_order(self) -> list[View]:
        return [self._views[key] for key in range(len(self._pendings))]

    def _cancel(self) -> None:
        self._views.clear()
        for pending in self._pendings:
            pending.cancel()

    def _missing(self) -> Iterator[str]:
        return (text for key, text in enumerate(self._texts) if key not in self._views)

    def _is_stuck_for(self) -> float | None:
        """For how long it has been waited, if it is time to look why."""
        waited = self._looks.due()
        if self._is_done():
            return None
        if self._looks.is_node_silent():
            key = self._first_missing()
            self._views[key] = self._pendings[key].result()
        return waited

    def _first_missing(self) -> int:
        return next(key for key in range(len(self._pendings)) if key not in self._views)

    def _patience(self) -> float | None:
        return None if self._is_done() else self._pendings[self._first_missing()].patience()

    def _held(self) -> dict[str, int]:
        """What has come into the store's memory, and the bytes that it takes there; small objects take none."""
        # One that is asked for twice is there once.
        held = {self._texts[key]: view.nbytes for key, view in self._views.items()}
        return {
            text: nbytes + _native.COPY_OVERHEAD_BYTES
            for text, nbytes in held.items()
            if nbytes > _native.INLINE_BYTES_MAX
        }

    def _suspects(self) -> Iterator[str]:
        """What may wait for room that this call has itself."""
        return self._missing() if self._held() else iter(())

    def _speak(self, waited: float, state: str) -> None:
        missing = len(self._pendings) - len(self._views)
        what = f"{missing} of {len(self._pendings)} objects, {next(self._missing())} for one,"
        self._waits.still_waiting(what, waited, state)

    def _refuse_if_too_large(self, lacks: tuple[int, int] | None) -> None:
        """Ends a wait for room that only its own end could make."""
        if lacks is None:
            return
        needed, capacity = lacks
        held = self._held()
        taken = sum(held.values())
        if taken + needed + _native.COPY_OVERHEAD_BYTES > capacity:
            raise StoreFull(
                f"{len(self._texts)} objects got together don't fit into the store of {capacity} bytes: {len(held)} "
                f"that have come take {taken}, and the next needs {needed}; get fewer at a time, get them into memory "
                "of your own (out=), or give the node more capacity"
            )
