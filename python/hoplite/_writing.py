"""The verbs for asyncio: the twins of those of `Client`, with the same arguments and answers.

None of them holds a thread while it waits; bytes are copied by a thread, so that the loop goes on. Cancelled, each
takes back what it asked for.

asyncio is imported by the coroutines that need it: whoever runs one has it already, and for all others it would double
the time of `import hoplite`.
"""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite import _native, values
from hoplite._arguments import (
    check_copies,
    check_keep,
    check_list,
    check_outs,
    check_ref,
    check_refs,
    check_timeout,
    left,
)
from hoplite._into import fill_async
from hoplite._listing import ATTEMPTS, questions
from hoplite._loop import answer
from hoplite._several import Several
from hoplite.buffer import Buffer
from hoplite.errors import GetTimeout, HopliteError, NameTaken, NodeDown
from hoplite.location import Location, Watch
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence

    from hoplite.client import Client
    from hoplite.values import Encoded


class Twins:
    """What `Client` inherits."""

    async def promise_async(self: Client) -> Ref:
        """`promise`, for asyncio."""
        return Ref(await answer(self._open().start_promise()), self)

    async def put_async(
        self: Client,
        value: object,
        *,
        name: Ref | str | None = None,
        keep: int | None = None,
        copies: int = 1,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Ref:
        """`put`, for asyncio. The value must not change before this returns. Cancelled, it leaves no object."""
        text = None if name is None else check_ref(name)
        kept = check_keep(keep, text)
        wanted = check_copies(copies)
        limit = check_timeout(timeout)
        native = self._open()
        begun = time.monotonic()
        what = values.encode(value, allow_pickle=self._allow_pickle)
        try:
            ref = await _put(self, native, what, text, limit)
        except NameTaken:
            if exist_ok and text is not None:
                return Ref(text, self)
            raise
        try:
            if wanted > 1:
                await answer(native.start_keep(str(ref), wanted, left(limit, begun)))
            if kept is not None and text is not None:
                # If time is over the object is there all the same; the next put prunes what is left.
                with contextlib.suppress(GetTimeout):
                    await answer(native.start_prune(text, kept, left(limit, begun)))
        except HopliteError:
            # Only its copies are late, or somebody has deleted it: what has the name now may be another one's.
            raise
        except BaseException:
            self._discard(str(ref))
            raise
        return ref

    async def create_async(
        self: Client,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        name: Ref | str | None = None,
        copies: int = 1,
        timeout: float | None = None,
    ) -> Buffer:
        """`create`, for asyncio; `async with await hp.create_async(...) as buf:` seals at the end."""
        wanted = check_copies(copies)
        what, text, pending = self._start_create(shape, dtype, name, timeout)
        if pending is None:
            return Buffer(self, what, text, None, wanted)
        space = await answer(pending)
        return Buffer(self, what, text, space, wanted)

    @overload
    async def get_async(
        self: Client, ref: Ref | str, *, out: Any = None, copy: bool | None = None, timeout: float | None = None
    ) -> Any: ...
    @overload
    async def get_async(
        self: Client,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool | None = None,
        timeout: float | None = None,
    ) -> list[Any]: ...

    async def get_async(
        self: Client,
        ref: Ref | str | Iterable[Ref | str],
        *,
        out: Any = None,
        copy: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """`get`, for asyncio."""
        limit = check_timeout(timeout)
        if not isinstance(ref, Ref | str):
            texts = check_list("refs to get", ref)
            outs = check_outs(out, len(texts))
            native = self._open()
            if outs is not None:
                return await fill_async(native, texts, outs, limit)
            views = await Several(native, texts, limit).answers()
            return self._decode_all(views, copy)
        text = check_ref(ref)
        native = self._open()
        if out is not None:
            return (await fill_async(native, [text], [out], limit))[0]
        about = text if limit is None else None
        view = await answer(native.start_get(text, limit), ref=about, explain=native.start_explain)
        return self._decode(view, copy)

    async def wait_async(
        self: Client, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """`wait`, for asyncio."""
        texts, number = self._check_wait(refs, count)
        if not number:
            return self._split(texts, [])
        ready = await answer(self._open().start_wait(texts, number, check_timeout(timeout)))
        return self._split(texts, ready)

    async def reduce_async(
        self: Client,
        inputs: Iterable[Ref | str],
        op: str = "sum",
        *,
        count: int | None = None,
        name: Ref | str | None = None,
        timeout: float | None = None,
    ) -> Ref:
        """`reduce`, for asyncio. It returns as soon as the reduce is accepted; cancel that by `delete`."""
        pending = self._start_reduce(inputs, op, count, name, timeout)
        return Ref(await answer(pending), self)

    async def inputs_async(self: Client, ref: Ref | str, *, timeout: float | None = None) -> list[Ref]:
        """`inputs`, for asyncio."""
        texts = await answer(self._open().start_inputs(check_ref(ref), check_timeout(timeout)))
        return [Ref(text, self) for text in texts]

    async def lost_async(self: Client, ref: Ref | str, *, timeout: float | None = None) -> list[Ref]:
        """`lost`, for asyncio."""
        texts = await answer(self._open().start_lost(check_ref(ref), check_timeout(timeout)))
        return [Ref(text, self) for text in texts]

    async def delete_async(
        self: Client, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None
    ) -> None:
        """`delete`, for asyncio. Cancelled, it does not wait any more; what is deleted stays deleted."""
        texts = check_refs(refs)
        limit = check_timeout(timeout)
        await answer(self._open().start_delete(texts, limit))

    async def latest_async(self: Client, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """`latest`, for asyncio."""
        return Ref(await answer(self._start_latest(prefix, after, timeout)), self)

    @overload
    def locations_async(
        self: Client, ref: Ref | str, *, watch: Literal[False] = False, timeout: float | None = None
    ) -> Awaitable[list[Location]]: ...
    @overload
    def locations_async(
        self: Client, ref: Ref | str, *, watch: Literal[True], timeout: float | None = None
    ) -> AsyncIterator[Location]: ...

    def locations_async(
        self: Client, ref: Ref | str, *, watch: bool = False, timeout: float | None = None
    ) -> Awaitable[list[Location]] | AsyncIterator[Location]:
        """`locations`, for asyncio: `await` it; with `watch=True`, `async for` over it."""
        text, limit = check_ref(ref), check_timeout(timeout)
        if watch:
            return _watch_locations(self, text, limit)
        return _locations(self, text, limit)

    async def status_async(self: Client) -> dict[str, Any]:
        """`status`, for asyncio."""
        text = await answer(self._open().start_status())
        status: dict[str, Any] = json.loads(text)
        return status

    async def stats_async(self: Client) -> dict[str, int]:
        """`stats`, for asyncio."""
        return self._numbers(await self.status_async())

    async def objects_async(
        self: Client, prefix: str = "", *, everywhere: bool = False, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """`objects`, for asyncio."""
        limit = check_timeout(timeout)
        if not everywhere:
            text = await answer(self._open().start_objects())
            objects: list[dict[str, Any]] = json.loads(text)
            return [each for each in objects if each["ref"].startswith(prefix)]
        begun = time.monotonic()
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(NodeDown):
                return await _list(self, prefix, limit, begun)
        return await _list(self, prefix, limit, begun)


async def _put(client: Client, native: _native.Client, what: Encoded, text: str | None, limit: float | None) -> Ref:
    if what.nbytes <= _native.INLINE_BYTES_MAX:
        pending = native.start_put(what, what.parts, text, limit)
        small = await answer(pending)
        return Ref(small, client)
    import asyncio

    writing = _Writing(client, what, await answer(native.start_create(what, text, limit)))
    try:
        return Ref(await asyncio.to_thread(writing.write), client)
    except asyncio.CancelledError:
        writing.give_up()
        raise


class _Writing:
    """Bytes that a thread copies into the store. It can't be stopped, and its loop may be gone before it ends."""

    def __init__(self, client: Client, what: Encoded, space: _native.Space) -> None:
        self._client = client
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
                self._client._discard(ref)
        return ref

    def give_up(self) -> None:
        """There is to be no object, whenever the thread has ended or will end."""
        with self._lock:
            self._is_given_up = True
            if self._sealed is not None:
                self._client._discard(self._sealed)


async def _list(client: Client, prefix: str, limit: float | None, begun: float) -> list[dict[str, Any]]:
    listing = questions(member["id"] for member in (await client.status_async())["members"])
    try:
        question = next(listing)
        while True:
            asked = client._open().start_list(question[0], prefix, question[1], left(limit, begun))
            question = listing.send(await answer(asked))
    except StopIteration as end:
        found: list[dict[str, Any]] = end.value
        return found


async def _locations(client: Client, text: str, limit: float | None) -> list[Location]:
    rows = await answer(client._open().start_locations(text, None, limit))
    return [Location(*row) for row in rows]


async def _watch_locations(client: Client, text: str, limit: float | None) -> AsyncIterator[Location]:
    watch = Watch()
    while True:
        rows = await answer(client._open().start_locations(text, watch.known, limit))
        for location in watch.news(rows):
            yield location
