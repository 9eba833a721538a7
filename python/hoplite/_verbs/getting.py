"""The verbs that wait for objects: for their bytes, or for their coming."""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from hoplite._arguments import check_after, check_count, check_list, check_outs, check_ref, check_timeout
from hoplite._attachment import Attachment
from hoplite._verbs.into import fill
from hoplite._verbs.several import Several
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish, get, get_async
from hoplite.errors import InvalidArgument
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite._client import Client
    from hoplite._native import Pending
    from hoplite._waits import Waits

# One object, not several. Made once: a union would be for each get.
_ONE = (Ref, str)


class Getting(Attachment):
    """What `Client` inherits."""

    @overload
    def get(
        self: Client, ref: Ref | str, *, out: Any = None, copy: bool = False, timeout: float | None = None
    ) -> Any: ...
    @overload
    def get(
        self: Client,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool = False,
        timeout: float | None = None,
    ) -> list[Any]: ...

    def get(
        self: Client,
        ref: Ref | str | Iterable[Ref | str],
        *,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Waits until an object is complete on this host and returns it without a copy.

        Args:
            ref: what `put`, `reduce` or `latest` returned, here or elsewhere, or a name; it need not exist yet, but a
                call after the deletion of a name waits for its next put. Of several, a list, all are got at once.
            out: an array, CPU tensor or writable buffer of the same dtype and shape, C-contiguous, to copy the object
                into while it arrives, or at the end if it was put with a digest; of several, a list of them. After an
                error its contents are undefined.
            copy: make a private, writable copy instead. Tensors are always private copies: torch has no read-only ones,
                and a write into shared memory kills the process.
            timeout: seconds to wait for the whole object, or for all of them.

        Returns:
            The value as it was put: arrays as read-only NumPy arrays and bytes as a read-only memoryview
            (`bytes(value)` copies it), both over the store's own memory; arrays inside other objects are read-only
            too. They stay valid after `delete` and after
            `close`, and hold the memory until they are garbage. With `out`, that. Of several, a list in their order.

        Raises:
            Timeout: the object is not here in time, and a full store is not the reason; with 0, it was not here
                already.
            InvalidArgument: `out` is read-only or not contiguous.
            ObjectCorrupt: it was put with a digest, and each node that has it sent bytes of another one.
            ObjectDeleted: the object was deleted during the call, or has no name, or `keep` removed it and a newer
                version exists.
            ObjectLost: no copy of it is left.
            ShapeMismatch: `out` has another dtype or shape.
            StoreFull: this node had no room for a copy in time, or will never have it for all of a list, which are here
                together at the end; with `out` they need not be. Two lists at a time that fit only one after the other
                wait for each other: give them a timeout.
            DecodeError: a pickled object can't be read here, for want of its class for instance, or `allow_pickle` of
                this client does not allow it.
            UnsupportedDtype: the value needs a package that is not installed (numpy, ml_dtypes, torch, pyarrow).

        Examples:
            >>> refs = [hp.put({"step": step}) for step in range(3)]
            >>> hp.get(refs, timeout=10)
            [{'step': 0}, {'step': 1}, {'step': 2}]
            >>> hp.get("not/yet", timeout=0)
            Traceback (most recent call last):
            hoplite.errors.Timeout: object not/yet did not come within 0 s: no client has put it
        """
        limit = check_timeout(timeout)
        if out is None and isinstance(ref, _ONE):
            return self._decode(get(self._open(), check_ref(ref), limit), copy)
        return finish(self._get(IN_THREAD, ref, out, copy, limit))

    @overload
    async def get_async(
        self: Client, ref: Ref | str, *, out: Any = None, copy: bool = False, timeout: float | None = None
    ) -> Any: ...
    @overload
    async def get_async(
        self: Client,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool = False,
        timeout: float | None = None,
    ) -> list[Any]: ...

    async def get_async(
        self: Client,
        ref: Ref | str | Iterable[Ref | str],
        *,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """`get`, for asyncio."""
        limit = check_timeout(timeout)
        if out is None and isinstance(ref, _ONE):
            return self._decode(await get_async(self._open(), check_ref(ref), limit), copy)
        return await self._get(IN_LOOP, ref, out, copy, limit)

    async def _get(
        self, waits: Waits, ref: Ref | str | Iterable[Ref | str], out: Any, copy: bool, limit: float | None
    ) -> Any:
        """Gets several objects, or copies one or several into memory of the caller's."""
        if isinstance(ref, _ONE):
            return (await fill(waits, self._open(), [check_ref(ref)], [out], limit))[0]
        texts = check_list("refs to get", ref)
        outs = check_outs(out, len(texts))
        if outs is not None:
            return await fill(waits, self._open(), texts, outs, limit)
        views = await Several(waits, self._open(), texts, limit).views()
        try:
            return [self._decode(view, copy) for view in views]
        finally:
            # What an error's frames keep must not pin memory.
            views.clear()

    def wait(
        self: Client, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """Waits until some of several objects have come.

        An object has come when all of its bytes are somewhere in the cluster, or when it is certain that it can't come
        (deleted, lost): in both cases `get` waits for the network alone.

        Args:
            refs: refs or names, each once; not yet created is fine.
            count: how many to wait for; None means all.
            timeout: seconds to wait; 0 tells what has come.

        Returns:
            Two lists of refs: those that came, in the order in which that was seen, exactly `count` of them unless the
            time was over; and the others, in the order given.

        Raises:
            InvalidArgument: a ref is there twice, or count is negative or above their number.

        Examples:
            >>> first = hp.put(b"here", name="part/1")
            >>> hp.wait(["part/1", "part/2"], count=1)
            ([Ref('part/1')], [Ref('part/2')])
        """
        texts, pending = self._start_wait(refs, count, timeout)
        return self._parted(texts, [] if pending is None else answer(pending))

    async def wait_async(
        self: Client, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """`wait`, for asyncio."""
        texts, pending = self._start_wait(refs, count, timeout)
        return self._parted(texts, [] if pending is None else await answer_async(pending))

    def _start_wait(
        self, refs: Iterable[Ref | str], count: int | None, timeout: float | None
    ) -> tuple[list[str], Pending[list[int]] | None]:
        """The objects, and the request for the places of those that have come; None if none is to be waited for."""
        texts = check_list("refs to wait for", refs)
        if len(set(texts)) < len(texts):
            raise InvalidArgument("a ref is among the refs to wait for twice; name each once")
        number = check_count(count, len(texts), least=0)
        if number == 0 or not texts:
            return texts, None
        wanted = len(texts) if number is None else number
        return texts, self._open().start_wait(texts, wanted, check_timeout(timeout))

    def _parted(self: Client, texts: list[str], ready: list[int]) -> tuple[list[Ref], list[Ref]]:
        came = set(ready)
        rest = [Ref(text, self) for place, text in enumerate(texts) if place not in came]
        return [Ref(texts[place], self) for place in ready], rest

    def latest(self: Client, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """Finds the newest object under a prefix; waits for one that is newer than a number.

        Remove old ones with `put(retain=)`, not with `delete`: a reader that gets a version too late then has
        `ObjectDeleted`, where a name that `delete` freed would have it wait for the next put of that name.

        Args:
            prefix: the text before the number, with the slash: "policy/" for "policy/17".
            after: only a higher number than this will do; None, or -1, takes any.
            timeout: seconds to wait for such a name; 0 asks without waiting.

        Returns:
            The ref with the highest number that is alive; `ref.number` is that number.

        Raises:
            Timeout: no such name came in time.
            InvalidArgument: the prefix does not end in "/", or `after` is below -1.

        Examples:
            >>> refs = [hp.put(b"weights", name=f"model/{step}") for step in (1, 2)]
            >>> hp.latest("model/", after=1, timeout=10)
            Ref('model/2')
        """
        return Ref(answer(self._start_latest(prefix, after, timeout)), self)

    async def latest_async(self: Client, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """`latest`, for asyncio."""
        return Ref(await answer_async(self._start_latest(prefix, after, timeout)), self)

    def _start_latest(self, prefix: str, after: int | None, timeout: float | None) -> Pending[str]:
        text = check_ref(prefix)
        if not text.endswith("/"):
            raise InvalidArgument(f'the prefix {text!r} does not end in "/"; write {text + "/"!r}')
        return self._open().start_latest(text, check_after(after), check_timeout(timeout))
