"""How a verb waits: with the calling thread, or with a running event loop of asyncio.

A verb with one request waits by `answer` or `answer_async`. One of several steps is written once, as a coroutine that
waits by a `Waits`. Those of `IN_THREAD` never suspend it, so that `finish` runs it to its end.

asyncio is imported by what needs it: its callers have imported it already, and it would double the time of
`import hoplite` for all others.
"""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite import _native, log
from hoplite._loop import ANSWER_S, answer_async, aside_async, is_in_loop, remind_async
from hoplite.errors import HopliteError, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hoplite._native import Inbox, Pending, View
    from hoplite.values import Encoded

__all__ = ["IN_LOOP", "IN_THREAD", "Waits", "answer", "answer_async", "finish", "get", "get_async"]

T = TypeVar("T")
U = TypeVar("U")

# Where a loop runs, as in a coroutine or a notebook, another task of that loop may have to put what is waited for.
BLOCKED_LOOP = (
    "this call blocks the event loop of its thread: if another task of that loop makes what it waits for, await the "
    "method of the client with the suffix _async instead, such as hp.get_async"
)


def answer(pending: Pending[T]) -> T:
    """Waits for the reply to a request."""
    try:
        return pending.result()
    except Timeout as error:
        IN_THREAD.hint(error)
        raise


def get(native: _native.Client, text: str, limit: float | None) -> View:
    """Waits for an object to be complete on this host. Without a limit it logs what it waits for."""
    try:
        return native.get(text, limit)
    except Timeout as error:
        IN_THREAD.hint(error)
        raise


async def get_async(native: _native.Client, text: str, limit: float | None) -> View:
    """`get`, with the running loop."""
    about = text if limit is None else None
    return await answer_async(native.start_get(text, limit), ref=about, explain=native.start_explain)


def finish(steps: Coroutine[Any, Any, T]) -> T:
    """Runs what waits by `IN_THREAD`."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it waits for a loop")


class Waits:
    """Waits with the calling thread."""

    async def answer(self, pending: Pending[T]) -> T:
        """Waits for the reply to a request."""
        return answer(pending)

    async def put(
        self,
        native: _native.Client,
        what: Encoded,
        name: str | None,
        ttl: float | None,
        limit: float | None,
    ) -> str:
        """Makes an object; returns the text of its ref."""
        return native.put(what, what.parts, name, ttl, limit)

    async def digested(self, what: Encoded) -> Encoded:
        """A value with the digest of its bytes."""
        return what._replace(digest=_native.digest(what.parts))

    async def brief(self, pending: Pending[T], otherwise: U) -> T | U:
        """The reply to a request that a node serves from memory; something else if the node does not reply."""
        if pending.wait(ANSWER_S):
            return pending.result()
        pending.cancel()
        return otherwise

    async def arrival(self, inbox: Inbox, seconds: float) -> None:
        """Waits for a number in an inbox, or for the end of so many seconds. A signal's handler may end it."""
        poll = select.poll()
        poll.register(inbox.fileno(), select.POLLIN)
        poll.poll(1000 * seconds)

    async def aside(self, call: Callable[[], T]) -> T:
        """Makes a call that writes much memory of the caller's."""
        return call()

    async def remind(
        self,
        waits: Sequence[tuple[str, Pending[Any]]],  # noqa: ARG002 - a loop's
        explain: Callable[[str], Pending[str]],  # noqa: ARG002 - a loop's
    ) -> Callable[[], None] | None:
        """Has a loop log waits as it does its own, until what this returns is called; a thread logs them itself."""
        return None

    def hint(self, error: BaseException) -> None:
        """Adds to the timeout of a thread that blocked its event loop how to wait without that."""
        if isinstance(error, Timeout) and is_in_loop():
            error.add_note(BLOCKED_LOOP)

    def still_waiting(self, what: str, waited: float, state: str) -> None:
        """Logs that a call goes on waiting; see `log.still_waiting`."""
        log.still_waiting(what, waited, f"{state}; {BLOCKED_LOOP}" if is_in_loop() else state)


class _LoopWaits(Waits):
    """Waits with the running loop. What takes long is done by another thread."""

    async def answer(self, pending: Pending[T]) -> T:
        return await answer_async(pending)

    async def put(
        self,
        native: _native.Client,
        what: Encoded,
        name: str | None,
        ttl: float | None,
        limit: float | None,
    ) -> str:
        # Cancelled, it leaves no object.
        if what.nbytes <= _native.INLINE_BYTES_MAX:
            return await answer_async(native.start_put(what, what.parts, name, ttl, limit))
        import asyncio

        space = await answer_async(native.start_create(what, name, ttl, limit))
        ref, sealing = space.ref, None
        try:
            await aside_async(space.write, what.parts)
            sealing = space.seal()
            return await answer_async(sealing)
        except asyncio.CancelledError:
            if sealing is None:
                space.discard()
            elif ref is not None:
                # If the node is gone, so is the object.
                with contextlib.suppress(HopliteError):
                    native.start_delete([ref], 10.0)
            raise

    async def digested(self, what: Encoded) -> Encoded:
        if what.nbytes <= _native.INLINE_BYTES_MAX:
            return await super().digested(what)
        return what._replace(digest=await aside_async(_native.digest, what.parts))

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
        # Not wait_for, which before Python 3.12 loses a cancellation that comes with what it waits for.
        limit = loop.call_later(seconds, arrived.set)
        try:
            await arrived.wait()
        finally:
            limit.cancel()
            loop.remove_reader(inbox.fileno())

    async def aside(self, call: Callable[[], T]) -> T:
        return await aside_async(call)

    async def remind(
        self, waits: Sequence[tuple[str, Pending[Any]]], explain: Callable[[str], Pending[str]]
    ) -> Callable[[], None] | None:
        return await remind_async(waits, explain)

    def hint(self, error: BaseException) -> None:
        """Nothing: the loop was not blocked."""

    def still_waiting(self, what: str, waited: float, state: str) -> None:
        log.still_waiting(what, waited, state)


IN_THREAD = Waits()
IN_LOOP = _LoopWaits()
