"""Replies of the node, awaited in asyncio. One descriptor wakes an event loop for all of them.

The thread that receives a reply puts a number into the loop's inbox, without the GIL. The loop takes all numbers at
once. Ten thousand replies that arrive together cost one wake-up.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite import _native
from hoplite.errors import HopliteError
from hoplite.log import still_waiting

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hoplite._native import Pending

T = TypeVar("T")

# A call that waits logs first after this time, as in crates/py/src/wait.rs. The interval then doubles, up to a maximum.
FIRST_WORD_AFTER_S = 10.0
SILENCE_MAX_S = 300.0

# Timeout of a request that a node serves from memory.
ANSWER_S = 1.0

# Logged if the node does not reply in that time.
SILENT = "the node of this host does not reply"


def is_in_loop() -> bool:
    """Whether the calling thread runs an asyncio event loop now and must not block."""
    # If asyncio is not imported, no loop runs.
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class _Waiting:
    """A waiting coroutine, and what to log if the wait is long."""

    __slots__ = ("begun", "future", "is_logged", "next_log", "pending")

    def __init__(self, future: asyncio.Future[None], pending: Pending[Any]) -> None:
        self.future = future
        self.pending = pending
        self.is_logged = False
        self.begun = time.monotonic()
        self.next_log = self.begun + FIRST_WORD_AFTER_S


class _Bridge:
    """The inbox of one loop, and the coroutines that wait for it. Only that loop's thread uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.inbox = _native.Inbox()
        self.waiting: dict[int, _Waiting] = {}
        self.keys = itertools.count(1)
        self._loop = weakref.ref(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        loop.add_reader(self.inbox.fileno(), self._deliver)

    def _deliver(self) -> None:
        for key in self.inbox.take():
            self.end(key)

    def end(self, key: int) -> None:
        """Ends a wait: the reply has arrived, or none will."""
        waiting = self.waiting.pop(key, None)
        if waiting is not None and not waiting.future.done():
            waiting.future.set_result(None)

    def add(self, waiting: _Waiting) -> int:
        """Adds a wait and returns its key."""
        key = next(self.keys)
        self.waiting[key] = waiting
        return key

    def drop(self, key: int) -> None:
        """Removes a wait that is over."""
        self.waiting.pop(key, None)
        if not self.waiting:
            self.rest()

    def watch(self) -> None:
        """Starts the timer that logs long waits."""
        loop = self._loop()
        if self._timer is None and loop is not None:
            self._timer = loop.call_later(FIRST_WORD_AFTER_S, self._remind)

    def rest(self) -> None:
        """Stops the timer when no coroutine waits: it would keep the loop alive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remind(self) -> None:
        self._timer = None
        loop = self._loop()
        if loop is None:
            return
        now = time.monotonic()
        # Waits that began shortly after the first are logged with it.
        soon = now + FIRST_WORD_AFTER_S / 8
        late = []
        for waiting in self.waiting.values():
            # Not those whose reply is here and waits for the loop.
            if waiting.is_logged and soon >= waiting.next_log and not waiting.pending.is_over():
                waiting.next_log = now + min(now - waiting.begun, SILENCE_MAX_S)
                late.append(waiting)
        if late:
            # One line for all waits of this loop.
            task = loop.create_task(_log(late, now))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self.waiting:
            self.watch()


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()


def _bridge(loop: asyncio.AbstractEventLoop) -> _Bridge:
    bridge = _bridges.get(loop)
    if bridge is None:
        bridge = _bridges[loop] = _Bridge(loop)
    return bridge


async def answer_async(pending: Pending[T]) -> T:
    """Waits for a reply without a thread. Canceling it cancels the request and undoes what it created.

    If the request has no timeout, a long wait is logged.
    """
    if pending.is_over():
        return pending.result()
    # Its import takes as long as the rest of this package. A program that awaits has imported it already.
    import asyncio

    loop = asyncio.get_running_loop()
    bridge = _bridge(loop)
    future = loop.create_future()
    waiting = _Waiting(future, pending)
    key = bridge.add(waiting)
    if not pending.register(bridge.inbox, key):
        bridge.drop(key)
        return pending.result()
    check: asyncio.TimerHandle | None = None

    def check_node() -> None:
        # A node replies at the deadline. If it does not reply at all, `result` raises that error.
        nonlocal check
        until_check = pending.until_check()
        if until_check == 0:
            bridge.end(key)
        elif until_check is not None:
            check = loop.call_later(until_check, check_node)

    check_node()
    if pending.is_unlimited():
        waiting.is_logged = True
        bridge.watch()
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


async def _log(late: list[_Waiting], now: float) -> None:
    """Logs long waits in one line, with the state of the longest one."""
    first = late[0]
    explained = first.pending.start_explain()
    if explained is None:
        # It is between two steps.
        return
    try:
        what, state = await answer_async(explained)
    except HopliteError as error:
        what, state = "a reply", str(error)
    # The reply may have arrived meanwhile.
    others = sum(not waiting.pending.is_over() for waiting in late[1:])
    if not first.pending.is_over():
        still_waiting(f"{what} and {others} more" if others else what, now - first.begun, state)


class Looks:
    """Schedule of the checks why an object has not arrived. The interval doubles each time.

    Args:
        until_check: returns the seconds until the next check whether the node replies; see `Pending.until_check`.
    """

    def __init__(self, until_check: Callable[[], float | None]) -> None:
        self._until_check = until_check
        self._begun = time.monotonic()
        self._next = self._begun + FIRST_WORD_AFTER_S / 8
        self._until = -math.inf
        self.is_node_silent()

    def wait_s(self) -> float:
        """Seconds until the next check."""
        return max(min(self._next, self._until) - time.monotonic(), 0.0)

    def due(self) -> float | None:
        """Returns the seconds since the wait began if a check is due, else None."""
        now = time.monotonic()
        if now < self._next:
            return None
        waited = now - self._begun
        self._next = now + min(waited, SILENCE_MAX_S)
        return waited

    def is_node_silent(self) -> bool:
        """Whether the node does not reply at all. Then `Pending.result` raises immediately."""
        now = time.monotonic()
        if now < self._until:
            return False
        until_check = self._until_check()
        self._until = math.inf if until_check is None else now + until_check
        return until_check == 0
