"""Waits of verbs: in the calling thread, or in a running asyncio event loop.

A verb with one request waits with `answer` or `answer_async`. A verb with several steps is one coroutine, which waits
with a `Waits`. The methods of `IN_THREAD` never suspend, so `finish` runs the coroutine to its end.

asyncio is imported only where it is used, because it would double the time of `import hoplite`. Programs that use it
have imported it already.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite import log
from hoplite._loop import ANSWER_S, answer_async, is_in_loop
from hoplite.errors import Timeout

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hoplite import _native
    from hoplite._native import Inbox, Pending, View

__all__ = ["IN_LOOP", "IN_THREAD", "Waits", "answer", "answer_async", "finish", "get", "get_async"]

T = TypeVar("T")
U = TypeVar("U")

# Advice for a blocking call in a thread whose event loop runs, as in a coroutine or a notebook.
BLOCKED_LOOP = (
    "this call blocks the event loop of its thread: if a task of that loop creates the object, await the client's "
    "method with the suffix _async instead, such as hp.get_async"
)


def answer(pending: Pending[T]) -> T:
    """Waits for the reply to a request."""
    try:
        return pending.result()
    except Timeout as error:
        IN_THREAD.hint(error)
        raise


def get(native: _native.Client, text: str, limit: float | None) -> View:
    """Waits until an object is complete on this host."""
    try:
        return native.get(text, limit)
    except Timeout as error:
        IN_THREAD.hint(error)
        raise


async def get_async(native: _native.Client, text: str, limit: float | None) -> View:
    """`get`, in the running loop."""
    return await answer_async(native.start_get(text, limit))


def finish(steps: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits only with `IN_THREAD`."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine was suspended")


class Waits:
    """Waits in the calling thread."""

    async def answer(self, pending: Pending[T]) -> T:
        """Waits for the reply to a request."""
        return answer(pending)

    async def brief(self, pending: Pending[T], otherwise: U) -> T | U:
        """Returns the reply to a request that a node serves from memory, or `otherwise` if there is none in 1 s."""
        if pending.wait(ANSWER_S):
            return pending.result()
        pending.cancel()
        return otherwise

    async def arrival(self, inbox: Inbox, seconds: float) -> None:
        """Waits for a number in an inbox, for at most so many seconds. A signal handler may end the wait earlier."""
        poll = select.poll()
        poll.register(inbox.fileno(), select.POLLIN)
        poll.poll(1000 * seconds)

    def hint(self, error: BaseException) -> None:
        """Adds a note to a timeout of a thread that blocked its event loop: use the asyncio twin."""
        if isinstance(error, Timeout) and is_in_loop():
            error.add_note(BLOCKED_LOOP)

    def still_waiting(self, what: str, waited: float, state: str) -> None:
        """Logs that a call is still waiting; see `log.still_waiting`."""
        log.still_waiting(what, waited, f"{state}; {BLOCKED_LOOP}" if is_in_loop() else state)


class _LoopWaits(Waits):
    """Waits in the running loop."""

    async def answer(self, pending: Pending[T]) -> T:
        return await answer_async(pending)

    async def brief(self, pending: Pending[T], otherwise: U) -> T | U:
        import asyncio

        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer_async(pending)
        except TimeoutError:
            return otherwise

    async def arrival(self, inbox: Inbox, seconds: float) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        loop.add_reader(inbox.fileno(), arrived.set)
        # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with the result.
        limit = loop.call_later(seconds, arrived.set)
        try:
            await arrived.wait()
        finally:
            limit.cancel()
            loop.remove_reader(inbox.fileno())

    def hint(self, error: BaseException) -> None:
        """Does nothing: the loop was not blocked."""

    def still_waiting(self, what: str, waited: float, state: str) -> None:
        log.still_waiting(what, waited, state)


IN_THREAD = Waits()
IN_LOOP = _LoopWaits()

# Called by name from crates/py/src/wait.rs, for the waits of threads.
still_waiting = IN_THREAD.still_waiting
