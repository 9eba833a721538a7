"""`get(out=...)`: copies objects into the caller's memory while they arrive.

After the call, whether it succeeds or fails, nothing writes into that memory, and none of its requests is pending.
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

# Bounds of the interval between two copies of the blocks that have arrived, and the bytes that a copy should have. Each
# copy costs a wake-up of this process: 1 ms is 1.2 MB at 10 Gbit/s, 8 ms are 1 MB at 1 Gbit/s.
COPY_EVERY_S = (0.001, 0.008)
COPY_BYTES = 1 << 20


class Filling:
    """One requested object and the memory that it fills. Always call `release`.

    Args:
        native: the attachment.
        text: ref of the object.
        out: the memory; see `values.writable`.
        limit: seconds to wait for the object.
    """

    def __init__(self, native: _native.Client, text: str, out: Any, limit: float | None) -> None:
        self.out = out
        self.text = text
        self._memory: OutBuffer | None = values.writable(out)
        self._copier: _native.Copier | None = _native.Copier(self._memory.data)
        self._copying: _native.Copier | None = None
        self._copied = 0
        # The only reference to the view, which pins memory: the frames of a traceback must not keep one.
        self._view: View | None = None
        self._native = native
        # `follow` must be sent after `get`, which starts the transfer: without one, the reply is that there is nothing
        # to follow.
        self._got = native.start_get(text, limit)
        self._following = native.start_follow(text, limit)

    def register(self, inbox: _native.Inbox, key: int) -> list[int]:
        """Registers two keys at an inbox: `key` for the growing copy, `key + 1` for the complete object.

        Returns:
            The keys whose reply has arrived already; the inbox does not receive them.
        """
        is_pending = [self._following.register(inbox, key), self._got.register(inbox, key + 1)]
        return [key + at for at, is_later in enumerate(is_pending) if not is_later]

    def follow(self) -> None:
        """Takes the reply to `follow`: a growing copy to read from, or nothing."""
        assert self._copier is not None
        assert self._memory is not None
        try:
            growing = self._following.result()
        except HopliteError:
            # The get raises the error.
            return
        if growing is not None and (description := self._copier.follow(growing)) is not None:
            kind, shape, form, nbytes = description
            self._memory.check(kind, tuple(shape), form, nbytes, self.text)
            self._copying = self._copier

    def is_growing(self) -> bool:
        """Whether blocks can be copied before the object is complete."""
        return self._copying is not None

    def more(self) -> int:
        """Copies the blocks that have arrived; returns their bytes."""
        assert self._copying is not None
        before, self._copied = self._copied, self._copying.more()
        return self._copied - before

    def finish(self) -> None:
        """Copies the rest from the complete object, and releases it."""
        assert self._copier is not None
        assert self._memory is not None
        self._view = self._got.result()
        self._memory.check(self._view.kind, self._view.shape, self._view.form, self._view.nbytes, self.text)
        self._copier.finish(self._view)
        self.release()

    def why(self) -> _native.Pending[str]:
        """Requests why the object is not here."""
        return self._native.start_explain(self.text)

    @property
    def request(self) -> tuple[str, _native.Pending[View]]:
        """The object and the request for it."""
        return self.text, self._got

    def until_check(self) -> float | None:
        """Seconds until the next check whether the node replies; see `Pending.until_check`."""
        return self._got.until_check()

    def release(self) -> None:
        """Cancels the requests and releases the object."""
        self._following.cancel()
        self._got.cancel()
        self._copier = self._copying = self._memory = self._view = None


async def fill(
    waits: Waits, native: _native.Client, texts: Sequence[str], outs: Sequence[Any], limit: float | None
) -> list[Any]:
    """Requests several objects at once and copies them into memory; returns that memory, in order.

    Each object is released when it is copied. Together they may exceed the capacity of the store.
    """
    fillings: list[Filling] = []
    end_reminders: Callable[[], None] | None = None
    try:
        for text, out in zip(texts, outs, strict=True):
            fillings.append(Filling(native, text, out, limit))
        if limit is None:
            requests = [filling.request for filling in fillings]
            end_reminders = await waits.remind(requests, native.start_explain)
        await _finish(waits, fillings, logs=limit is None and end_reminders is None)
        return [filling.out for filling in fillings]
    except BaseException as error:
        waits.hint(error)
        raise
    finally:
        if end_reminders is not None:
            end_reminders()
        for filling in fillings:
            filling.release()


async def _finish(waits: Waits, fillings: Sequence[Filling], *, logs: bool) -> None:
    inbox = _native.Inbox()
    arrived = [key for at, filling in enumerate(fillings) for key in filling.register(inbox, 2 * at)]
    waiting = dict(enumerate(fillings))
    looks = Looks(lambda: waiting[max(waiting)].until_check() if waiting else None)
    shortest, longest = COPY_EVERY_S
    interval = shortest
    while waiting:
        # Complete objects first: releasing them frees memory for others.
        for key in sorted(arrived, key=lambda key: key % 2, reverse=True):
            at, is_complete = divmod(key, 2)
            if is_complete and at in waiting:
                await waits.aside(waiting.pop(at).finish)
            elif at in waiting:
                waiting[at].follow()
        growing = [filling for filling in waiting.values() if filling.is_growing()]
        if growing:
            copied = [await waits.aside(filling.more) for filling in growing]
            interval = max(interval / 2, shortest) if sum(copied) > COPY_BYTES else min(2 * interval, longest)
        if waiting:
            await waits.arrival(inbox, interval if growing else looks.wait_s())
        arrived = inbox.take()
        if waiting and (waited := looks.due()) is not None and logs and waited >= FIRST_WORD_AFTER_S:
            first = next(iter(waiting.values()))
            waits.still_waiting(first.text, waited, await waits.brief(first.why(), SILENT))
        if waiting and looks.is_node_silent():
            waiting.pop(max(waiting)).finish()
