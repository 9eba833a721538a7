"""How a verb waits: each way in two forms, with the calling thread and, with the suffix `_async`, with a running loop.

asyncio is imported by what needs it: its callers have imported it already, and it would double the time of
`import hoplite` for all others.
"""

from __future__ import annotations

import contextlib
import select
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from hoplite import _native, log
from hoplite._loop import ANSWER_S, answer_async, aside_async, is_in_loop, remind_async
from hoplite.errors import GetTimeout, HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite._native import Inbox, Pending, View
    from hoplite.values import Encoded

__all__ = [
    "answer",
    "answer_async",
    "arrival",
    "arrival_async",
    "aside",
    "aside_async",
    "brief",
    "brief_async",
    "digested",
    "digested_async",
    "get",
    "get_async",
    "hint",
    "hint_async",
    "put",
    "put_async",
    "remind",
    "remind_async",
    "still_waiting",
    "still_waiting_async",
]

T = TypeVar("T")
U = TypeVar("U")

# Where a loop runs, as in a coroutine or a notebook, another task of that loop may have to make what is waited for.
IN_LOOP = (
    "this call blocks the event loop of its thread: if another task of that loop makes what it waits for, await the "
    "method of the client with the suffix _async instead, such as hp.get_async"
)

# A new object; the text of its ref.
put = _native.Client.put


def hint(error: BaseException) -> None:
    """Adds to the end of a timeout in a thread whose event loop was blocked meanwhile how to wait without that."""
    if isinstance(error, GetTimeout) and is_in_loop():
        error.add_note(IN_LOOP)


def hint_async(error: BaseException) -> None:
    """`hint`, with the running loop, which is not blocked: nothing."""


def still_waiting(what: str, waited: float, state: str) -> None:
    """Tells the log that a call goes on waiting; see `log.still_waiting`."""
    log.still_waiting(what, waited, f"{state}; {IN_LOOP}" if is_in_loop() else state)


still_waiting_async = log.still_waiting


def answer(pending: Pending[T]) -> T:
    """The answer to a question."""
    try:
        return pending.result()
    except GetTimeout as error:
        hint(error)
        raise


def get(native: _native.Client, text: str, limit: float | None) -> View:
    """An object, complete on this host. Without a limit it tells the log what it waits for."""
    try:
        return native.get(text, limit)
    except GetTimeout as error:
        hint(error)
        raise


async def get_async(native: _native.Client, text: str, limit: float | None) -> View:
    """`get`, with the running loop."""
    about = text if limit is None else None
    return await answer_async(native.start_get(text, limit), ref=about, explain=native.start_explain)


async def put_async(
    native: _native.Client,
    what: Encoded,
    parts: Sequence[Any],
    name: str | None,
    ttl: float | None,
    limit: float | None,
) -> str:
    """`put`, with the running loop; another thread copies many bytes. Cancelled, it leaves no object."""
    if what.nbytes <= _native.INLINE_BYTES_MAX:
        return await answer_async(native.start_put(what, parts, name, ttl, limit))
    import asyncio

    writing = _Writing(native, what, await answer_async(native.start_create(what, name, ttl, limit)))
    try:
        return await asyncio.to_thread(writing.write)
    except asyncio.CancelledError:
        writing.give_up()
        raise


def digested(what: Encoded) -> Encoded:
    """A value with the digest of its bytes."""
    return what._replace(digest=_native.digest(what.parts))


async def digested_async(what: Encoded) -> Encoded:
    """`digested`, with the running loop; another thread looks at many bytes."""
    return digested(what) if what.nbytes <= _native.INLINE_BYTES_MAX else await aside_async(digested, what)


def brief(pending: Pending[T], otherwise: U) -> T | U:
    """The answer to a question that a node answers at once; something else if the node does not answer."""
    if pending.wait(ANSWER_S):
        return pending.result()
    pending.cancel()
    return otherwise


async def brief_async(pending: Pending[T], otherwise: U) -> T | U:
    """`brief`, with the running loop."""
    import asyncio

    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer_async(pending)
    except TimeoutError:
        return otherwise


def arrival(inbox: Inbox, seconds: float) -> None:
    """The next number in an inbox, or the end of so many seconds. A signal's handler may end it by an exception."""
    poll = select.poll()
    poll.register(inbox.fileno(), select.POLLIN)
    poll.poll(1000 * seconds)


async def arrival_async(inbox: Inbox, seconds: float) -> None:
    """`arrival`, with the running loop."""
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


def aside(call: Callable[[], T]) -> T:
    """The end of a call that writes much memory, which a loop gives to another thread."""
    return call()


def remind(
    waits: Sequence[tuple[str, Pending[Any]]],  # noqa: ARG001 - as of its twin
    explain: Callable[[str], Pending[str]],  # noqa: ARG001 - as of its twin
) -> Callable[[], None] | None:
    """None: a thread tells the log itself what it waits for. A loop does for all of its waits, until this is called."""
    return None


class _Writing:
    """Bytes that a thread copies into the store. It can't be stopped, and its loop may be gone before it ends."""

    def __init__(self, native: _native.Client, what: Encoded, space: _native.Space) -> None:
        self._native = native
        self._what = what
        self._space = space
        self._lock = threading.Lock()
        self._sealed: str | None = None
        self._is_given_up = False

    def write(self) -> str:
        self._space.write(self._what.parts)
        if self._is_given_up:
            self._space.discard()
            return ""
        ref = self._space.seal().result()
        with self._lock:
            self._sealed = ref
            if self._is_given_up:
                self._discard(ref)
        return ref

    def give_up(self) -> None:
        """There is to be no object, whenever the thread has ended or will end."""
        with self._lock:
            self._is_given_up = True
            if self._sealed is not None:
                self._discard(self._sealed)

    def _discard(self, ref: str) -> None:
        # If the node is gone, so is the object.
        with contextlib.suppress(HopliteError):
            self._native.start_delete([ref], 10.0)
