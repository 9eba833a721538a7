"""Answers of the node, awaited by asyncio: one descriptor wakes a loop for all of them.

The thread that has an answer, of the node or of the attachment, drops a number into the loop's inbox and never takes
the interpreter; the loop takes all numbers at once. So ten thousand answers cost one wake-up where they come together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from hoplite import _native
from hoplite.errors import HopliteError
from hoplite.log import still_waiting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from hoplite._native import Pending

P = ParamSpec("P")
T = TypeVar("T")

# As long as a thread's wait is silent; then twice as long each time, up to the maximum.
FIRST_WORD_AFTER_S = 10.0
SILENCE_MAX_S = 300.0

# As long may take what a node answers from memory.
ANSWER_S = 1.0

# What there is to say of a node that does not.
SILENT = "the node of this host does not answer"


def is_in_loop() -> bool:
    """Whether the calling thread runs an event loop of asyncio just now: it must not wait."""
    # Where it is not imported no loop runs.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class _Waiting:
    """A coroutine that waits, by a future or by an inbox of its own, and what to say if that takes long."""

    __slots__ = ("begun", "explain", "future", "next_word", "pending", "ref")

    def __init__(
        self,
        future: asyncio.Future[None] | None,
        pending: Pending[Any],
        ref: str | None,
        explain: Callable[[str], Pending[str]] | None,
    ) -> None:
        self.future = future
        self.pending = pending
        self.ref = ref
        self.explain = explain
        self.begun = time.monotonic()
        self.next_word = self.begun + FIRST_WORD_AFTER_S


class _Bridge:
    """The inbox of one loop and who waits for what comes into it. Used by that loop's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox = _native.Inbox()
        self.waiting: dict[int, _Waiting] = {}
        self.keys = itertools.count(1)
        self._loop = weakref.ref(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._words: set[asyncio.Task[None]] = set()
        loop.add_reader(self.inbox.fileno(), self._deliver)

    def _deliver(self) -> None:
        for key in self.inbox.take():
            self.end(key)

    def end(self, key: int) -> None:
        """Ends a wait: there is an answer, or none will come."""
        waiting = self.waiting.pop(key, None)
        if waiting is not None and waiting.future is not None and not waiting.future.done():
            waiting.future.set_result(None)

    def add(self, waiting: _Waiting) -> int:
        """Takes up a wait and returns its key."""
        key = next(self.keys)
        self.waiting[key] = waiting
        if waiting.ref is not None:
            self.watch()
        return key

    def drop(self, key: int) -> None:
        """Forgets a wait, which is over."""
        self.waiting.pop(key, None)
        if not self.waiting:
            self.rest()

    def watch(self) -> None:
        """Sees to it that the log is told of long waits."""
        loop = self._loop()
        if self._timer is None and loop is not None:
            self._timer = loop.call_later(FIRST_WORD_AFTER_S, self._remind)

    def rest(self) -> None:
        """Stops the timer, which would keep the loop alive, when no coroutine waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remind(self) -> None:
        self._timer = None
        loop = self._loop()
        if loop is None:
            return
        now = time.monotonic()
        # Those that began a moment after the first are told of with it.
        soon = now + FIRST_WORD_AFTER_S / 8
        late = []
        for waiting in self.waiting.values():
            # What is here, and the loop has only to look at, needs no word.
            if waiting.ref is not None and soon >= waiting.next_word and not waiting.pending.is_over():
                waiting.next_word = now + min(now - waiting.begun, SILENCE_MAX_S)
                late.append(waiting)
        if late:
            # One line for all that this loop waits for.
            word = loop.create_task(_say(late, now))
            self._words.add(word)
            word.add_done_callback(self._words.discard)
        if self.waiting:
            self.watch()


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()


def _bridge(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge


async def answer_async(
    pending: Pending[T],
    *,
    ref: str | None = None,
    explain: Callable[[str], Pending[str]] | None = None,
) -> T:
    """Waits for an answer without a thread. Cancelled, it takes the question back, and what that brought into being.

    Args:
        pending: the question.
        ref: the object that is waited for without a timeout, if one is.
        explain: asks why that object is not here.
    """
    if pending.is_over():
        return pending.result()
    # It takes as long to import as all the rest of this package; a program that awaits has imported it.
    import asyncio

    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    future = loop.create_future()
    key = bridge.add(_Waiting(future, pending, ref, explain))
    if not pending.tell(bridge.inbox, key):
        bridge.drop(key)
        return pending.result()
    check: asyncio.TimerHandle | None = None

    def check_node() -> None:
        # A node answers at the deadline. If it does not answer at all, the result is that error.
        nonlocal check
        patience = pending.patience()
        if patience == 0:
            bridge.end(key)
        elif patience is not None:
            check = loop.call_later(patience, check_node)

    check_node()
    try:
        await future
    except BaseException:
        pending.cancel()
        raise
    finally:
        if check is not None:
            check.cancel()
        bridge.drop(key)
    return pending.result()


async def remind_async(
    waits: Iterable[tuple[str, Pending[Any]]], explain: Callable[[str], Pending[str]]
) -> Callable[[], None]:
    """Has the running loop tell the log of waits that it does not end, as of its own; returns what ends that.

    Args:
        waits: each object and the question for it.
        explain: asks why an object is not here.
    """
    import asyncio

    bridge = _bridge(asyncio.get_running_loop())
    keys = [bridge.add(_Waiting(None, pending, ref, explain)) for ref, pending in waits]

    def end() -> None:
        for key in keys:
            bridge.drop(key)

    return end


async def aside_async(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Runs what writes into memory of the caller's in a thread; cancelled, it is over only when the thread is."""
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **options))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        raise


async def _say(late: list[_Waiting], now: float) -> None:
    """Tells the log of waits that are long; why, of the one that has been waited for longest."""
    first = late[0]
    assert first.ref is not None
    assert first.explain is not None
    try:
        state = await answer_async(first.explain(first.ref))
    except HopliteError as error:
        state = str(error)
    # It may have come meanwhile.
    missing = sum(not waiting.pending.is_over() for waiting in late)
    if first.pending.is_over() or not missing:
        return
    what = first.ref if missing == 1 else f"{missing} objects, {first.ref} for one,"
    still_waiting(what, now - first.begun, state)


class Looks:
    """When to look why something has not come: after a while, and then after twice as long each time.

    Args:
        patience: seconds until the next check whether the node answers at all; see `Pending.patience`.
    """

    def __init__(self, patience: Callable[[], float | None]) -> None:
        self._patience = patience
        self._begun = time.monotonic()
        self._next = self._begun + FIRST_WORD_AFTER_S / 8
        self._until = -math.inf
        self.is_node_silent()

    def wait_s(self) -> float:
        """Seconds until the next."""
        return max(min(self._next, self._until) - time.monotonic(), 0.0)

    def due(self) -> float | None:
        """For how long it has been waited, if it is time to look, and else nothing."""
        now = time.monotonic()
        if now < self._next:
            return None
        waited = now - self._begun
        self._next = now + min(waited, SILENCE_MAX_S)
        return waited

    def is_node_silent(self) -> bool:
        """Whether the node does not answer at all: then `Pending.result` raises that without waiting."""
        now = time.monotonic()
        if now < self._until:
            return False
        patience = self._patience()
        self._until = math.inf if patience is None else now + patience
        return patience == 0
