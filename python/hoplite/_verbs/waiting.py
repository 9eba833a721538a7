"""The verbs that wait until some of several objects are ready: `wait` and `as_completed`."""

# A mixin of one class, which annotates `self` with that class.
# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite._arguments import check_count, check_list
from hoplite._attachment import Attachment
from hoplite._loop import SILENT
from hoplite._shared import DEFAULT
from hoplite._verbs.arrivals import Arrivals
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.errors import InvalidArgument, Timeout
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable

    from hoplite import _native
    from hoplite._client import Client
    from hoplite._native import Pending
    from hoplite._waits import Waits


class Waiting(Attachment):
    """Base class of `Client`."""

    def wait(
        self: Client, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = DEFAULT
    ) -> tuple[list[Ref], list[Ref]]:
        """Waits until some of several objects are ready.

        An object is ready when a complete copy exists somewhere in the cluster, or when it was deleted or lost. After
        that, `get` waits only for the transfer, or raises. A call takes time for each ref, also for those that are not
        ready: to handle many objects one by one, use `as_completed`.

        Args:
            refs: refs or names, each listed once. The objects need not exist yet.
            count: number of objects to wait for; None means all.
            timeout: seconds to wait; 0 returns the current state.

        Returns:
            Two lists of refs: the ready ones in the order in which they became ready, exactly `count` of them unless
            the timeout expired; and the others in the order given.

        Raises:
            InvalidArgument: a ref is listed twice, or `count` is negative or above the number of refs.

        Examples:
            >>> first = hp.put(b"here", name="part/1")
            >>> hp.wait(["part/1", "part/2"], count=1)
            ([Ref('part/1')], [Ref('part/2')])
        """
        texts, pending = self._start_wait(refs, count, timeout)
        return self._parted(texts, [] if pending is None else answer(pending))

    async def wait_async(
        self: Client, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = DEFAULT
    ) -> tuple[list[Ref], list[Ref]]:
        """`wait`, for asyncio."""
        texts, pending = self._start_wait(refs, count, timeout)
        return self._parted(texts, [] if pending is None else await answer_async(pending))

    def _start_wait(
        self, refs: Iterable[Ref | str], count: int | None, timeout: float | None
    ) -> tuple[list[str], Pending[list[int]] | None]:
        """Returns the refs, and the request for the indexes of the ready ones; None if there is nothing to wait for."""
        texts = _checked(refs)
        number = check_count(count, len(texts), least=0)
        if number == 0 or not texts:
            return texts, None
        wanted = len(texts) if number is None else number
        native, limit = self._open_within(self._limit(timeout))
        return texts, native.start_wait(texts, wanted, limit)

    def _parted(self: Client, texts: list[str], ready: list[int]) -> tuple[list[Ref], list[Ref]]:
        is_ready = set(ready)
        rest = [Ref(text, self) for index, text in enumerate(texts) if index not in is_ready]
        return [Ref(texts[index], self) for index in ready], rest

    def as_completed(
        self: Client, refs: Iterable[Ref | str], *, timeout: float | None = DEFAULT
    ) -> Generator[Ref, None, None]:
        """Yields each of several objects when it is ready.

        An object is ready as for `wait`. The refs are registered at the node once, when this is called, so that the
        time for each object does not depend on their number.

        Args:
            refs: refs or names, each listed once. The objects need not exist yet.
            timeout: seconds from this call until all objects are ready; 0 yields those that are ready now.

        Returns:
            An iterator over the refs, in the order in which they become ready. A deleted or lost object is yielded too;
            `get` of it raises. Closing the iterator early, as the end of its last reference does, ends the waits.

        Raises:
            InvalidArgument: a ref is listed twice.
            Timeout: the iterator has yielded the objects that were ready in time, and others are missing.

        Examples:
            >>> refs = [hp.put(step, name=f"done/{step}") for step in range(3)]
            >>> sorted(hp.get(ref) for ref in hp.as_completed(refs, timeout=10))
            [0, 1, 2]
        """
        return self._completed(self._start_completed(IN_THREAD, refs, timeout))

    def as_completed_async(
        self: Client, refs: Iterable[Ref | str], *, timeout: float | None = DEFAULT
    ) -> AsyncGenerator[Ref, None]:
        """`as_completed`, for asyncio.

        Asyncio:
            `async for` over it. `contextlib.aclosing` ends the waits at once if the loop is left early.
        """
        return self._completed_async(self._start_completed(IN_LOOP, refs, timeout))

    def _start_completed(self, waits: Waits, refs: Iterable[Ref | str], timeout: float | None) -> _Completion:
        texts, limit = _checked(refs), self._limit(timeout)
        native, rest = self._open_within(limit)
        return _Completion(waits, native, texts, limit, rest)

    def _completed(self: Client, completion: _Completion) -> Generator[Ref, None, None]:
        try:
            while texts := finish(completion.next()):
                for text in texts:
                    yield Ref(text, self)
        finally:
            completion.cancel()

    async def _completed_async(self: Client, completion: _Completion) -> AsyncGenerator[Ref, None]:
        try:
            while texts := await completion.next():
                for text in texts:
                    yield Ref(text, self)
        finally:
            completion.cancel()


class _Completion:
    """The waits of one `as_completed`: a request for each object, so that none is repeated.

    Args:
        waits: how to wait for them.
        native: the attachment.
        texts: refs of the objects.
        limit: the timeout of the call.
        rest: what is left of it after a reconnect.
    """

    def __init__(
        self, waits: Waits, native: _native.Client, texts: list[str], limit: float | None, rest: float | None
    ) -> None:
        self._waits = waits
        self._native = native
        self._texts = texts
        self._limit = limit
        self._late: list[str] = []
        self._arrivals = Arrivals(waits, [native.start_wait([text], 1, rest) for text in texts])

    async def next(self) -> list[str]:
        """Waits for ready objects and returns their refs; none if all have been returned.

        Raises:
            Timeout: the others are not ready in time.
        """
        while self._arrivals:
            ready: list[str] = []
            for key in await self._arrivals.next(self._look):
                (ready if self._arrivals.take(key) else self._late).append(self._texts[key])
            if ready:
                return ready
        if self._late:
            await self._time_out()
        return []

    def cancel(self) -> None:
        """Ends the waits for the other objects."""
        self._arrivals.cancel()

    async def _look(self, waited: float) -> None:
        if self._limit is None:
            await self._arrivals.log(self._native, self._texts, waited)

    async def _time_out(self) -> None:
        first, late, total = self._late[0], len(self._late), len(self._texts)
        state = await self._waits.brief(self._native.start_explain(first), SILENT)
        what = f"object {first}" if total == 1 else f"{late} of {total} objects, including {first}"
        error = Timeout(f"timed out after {self._limit:g} s waiting for {what}: {state}")
        self._waits.hint(error)
        raise error


def _checked(refs: Iterable[Ref | str]) -> list[str]:
    texts = check_list("refs to wait for", refs)
    if len(set(texts)) < len(texts):
        raise InvalidArgument("a ref is listed twice in the refs to wait for: list each once")
    return texts
