"""Copies of objects into memory of the caller's own while they arrive: `get(out=...)`.

However the call ends, nothing writes into that memory after it, and none of its questions is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hoplite import _native, values
from hoplite._loop import FIRST_WORD_AFTER_S, SILENT, Looks
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite._native import View
    from hoplite._waits import Waits
    from hoplite.values import OutBuffer

# Between two looks at what has arrived: 1 ms is 1.2 MB at 10 Gbit/s, which is then copied in less than that.
COPY_EVERY_S = 0.001


class Filling:
    """An object that is asked for, and the memory that it is to fill. To be released, come what may.

    Args:
        native: the attachment to ask.
        text: the object.
        out: the memory; see `values.writable`.
        limit: seconds to wait for the object.
    """

    def __init__(self, native: _native.Client, text: str, out: Any, limit: float | None) -> None:
        self.out = out
        self.text = text
        self._memory: OutBuffer | None = values.writable(out)
        self._copier: _native.Copier | None = _native.Copier(self._memory.data)
        self._copying: _native.Copier | None = None
        # What pins memory is kept here alone, and not in the frames, which an error keeps.
        self._view: View | None = None
        self._native = native
        # After the get, which brings what is followed: alone it is answered that there is nothing to follow.
        self._got = native.start_get(text, limit)
        self._following = native.start_follow(text, limit)

    def tell(self, inbox: _native.Inbox, key: int) -> list[int]:
        """Lets an inbox hear by `key` of what to follow, by the next of the object; returns what is known already."""
        told = [self._following.tell(inbox, key), self._got.tell(inbox, key + 1)]
        return [key + at for at, is_told in enumerate(told) if not is_told]

    def follow(self) -> None:
        """Takes what there is to copy from before the object is complete, if anything, which is known now."""
        assert self._copier is not None
        assert self._memory is not None
        try:
            growing = self._following.result()
        except HopliteError:
            # The get says what is wrong.
            return
        if growing is not None and (said := self._copier.follow(growing)) is not None:
            kind, shape, form, nbytes = said
            self._memory.check(kind, tuple(shape), form, nbytes, self.text)
            self._copying = self._copier

    def is_growing(self) -> bool:
        """Whether there is anything to be copied before the object is complete."""
        return self._copying is not None

    def more(self) -> None:
        """Copies what has arrived."""
        if self._copying is not None:
            self._copying.more()

    def finish(self) -> None:
        """Fills the memory from the object, which is here, and lets go of it."""
        assert self._copier is not None
        assert self._memory is not None
        self._view = self._got.result()
        self._memory.check(self._view.kind, self._view.shape, self._view.form, self._view.nbytes, self.text)
        self._copier.finish(self._view)
        self.release()

    def why(self) -> _native.Pending[str]:
        """Asks why the object is not here."""
        return self._native.start_explain(self.text)

    @property
    def question(self) -> tuple[str, _native.Pending[View]]:
        """The object and the question for it."""
        return self.text, self._got

    def patience(self) -> float | None:
        """Seconds until the next check whether the node answers at all; see `Pending.patience`."""
        return self._got.patience()

    def release(self) -> None:
        """Takes back what was asked and lets go of what came."""
        self._following.cancel()
        self._got.cancel()
        self._copier = self._copying = self._memory = self._view = None


async def fill(
    waits: Waits, native: _native.Client, texts: Sequence[str], outs: Sequence[Any], limit: float | None
) -> list[Any]:
    """Copies objects into memory, all of them asked for at once; returns that memory, in order.

    Each is let go of as soon as it is copied, so that together they may be more than the store has room for.
    """
    fillings: list[Filling] = []
    end_reminders: Callable[[], None] | None = None
    try:
        for text, out in zip(texts, outs, strict=True):
            fillings.append(Filling(native, text, out, limit))
        if limit is None:
            questions = [filling.question for filling in fillings]
            end_reminders = await waits.remind(questions, native.start_explain)
        await _finish(waits, fillings, speaks=limit is None and end_reminders is None)
        return [filling.out for filling in fillings]
    except BaseException as error:
        waits.hint(error)
        raise
    finally:
        if end_reminders is not None:
            end_reminders()
        for filling in fillings:
            filling.release()


async def _finish(waits: Waits, fillings: Sequence[Filling], *, speaks: bool) -> None:
    inbox = _native.Inbox()
    known = [key for at, filling in enumerate(fillings) for key in filling.tell(inbox, 2 * at)]
    waiting = dict(enumerate(fillings))
    looks = Looks(lambda: waiting[max(waiting)].patience() if waiting else None)
    while waiting:
        # What is complete first: it makes room for others.
        for key in sorted(known, key=lambda key: key % 2, reverse=True):
            at, is_complete = divmod(key, 2)
            if is_complete and at in waiting:
                await waits.aside(waiting.pop(at).finish)
            elif at in waiting:
                waiting[at].follow()
        growing = [filling for filling in waiting.values() if filling.is_growing()]
        for filling in growing:
            await waits.aside(filling.more)
        if waiting:
            await waits.arrival(inbox, COPY_EVERY_S if growing else looks.wait_s())
        known = inbox.take()
        if waiting and (waited := looks.due()) is not None and speaks and waited >= FIRST_WORD_AFTER_S:
            first = next(iter(waiting.values()))
            waits.still_waiting(first.text, waited, await waits.brief(first.why(), SILENT))
        if waiting and looks.is_node_silent():
            waiting.pop(max(waiting)).finish()
