"""The verbs that return objects or the newest ref: `get` and `latest`."""

# A mixin of one class, which annotates `self` with that class.
# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from hoplite import values
from hoplite._arguments import check_after, check_list, check_outs, check_part, check_ref
from hoplite._attachment import Attachment
from hoplite._shared import DEFAULT
from hoplite._verbs.several import Several
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish, get, get_async
from hoplite.errors import InvalidArgument
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite._client import Client
    from hoplite._native import Pending
    from hoplite._waits import Waits

# Types of a single ref. A union in `isinstance` would be created for each get.
_ONE = (Ref, str)


class Getting(Attachment):
    """Base class of `Client`."""

    @overload
    def get(
        self: Client,
        ref: Ref | str,
        *,
        part: slice | None = None,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Any: ...
    @overload
    def get(
        self: Client,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> list[Any]: ...

    def get(
        self: Client,
        ref: Ref | str | Iterable[Ref | str],
        *,
        part: slice | None = None,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Any:
        """Waits until an object is complete on this host, and returns it without a copy.

        Args:
            ref: a ref that `put`, `reduce` or `latest` returned, in any process, or a name. The object need not exist
                yet. If the object of a name was deleted, the call waits for the next put of the name. A list requests
                several objects at once.
            part: rows of an array or tensor along axis 0, or bytes of a bytes object, as a slice with step 1. Negative
                bounds count from the end, and bounds outside are clipped. Only these bytes are transferred, unless the
                object is on this host, is arriving here or has at most 32 KiB. They are not checked against a digest.
                For a single ref only.
            out: array, CPU tensor or writable buffer of the same dtype and shape, C-contiguous, into which the object
                is copied while it arrives. An object with a digest, or a part, is copied at the end. For several
                objects, a list of values that share no memory. After an error the contents are undefined.
            copy: return a private copy: a writable array, or for bytes an object of type `bytes`, which `json.loads`,
                `.decode()` and pickle need. Tensors are always private copies: torch has no read-only tensors, and a
                write into shared memory kills the process.
            timeout: seconds to wait for the whole object, or for all objects of a list.

        Returns:
            The value as it was put. Arrays are read-only NumPy arrays and bytes are a read-only memoryview (`copy=True`
            or `bytes(value)` copies it), both over shared memory. Arrays inside other objects are read-only too. They
            stay valid after `delete` and `close`, and keep the memory until they are garbage-collected. With `out`, the
            result is `out`. For a list of refs, it is a list in the same order.

        Raises:
            Timeout: the object was not here in time, and a full store is not the reason; with 0, it is not here.
            InvalidArgument: `out` is read-only or not contiguous, or two values of it share memory; or `part` has
                another step, or the object is an array without axes, a pickle or Arrow data, of which there are no
                parts.
            ObjectCorrupt: the object has a digest, and the bytes of all nodes with a copy do not match it.
            ObjectDeleted: the object was deleted during the call; or it was deleted before and has an id, not a name;
                or `retain` of a newer version deleted it.
            ObjectLost: no copy of the object is left.
            ShapeMismatch: `out` has another dtype or shape.
            StoreFull: this node had no capacity in time; or all objects of a list, which must fit together unless `out`
                is given, exceed the store. Two concurrent lists that only fit one after the other wait for each other:
                set a timeout.
            DecodeError: a pickle can't be read here, for example because its class is missing, or `allow_pickle` of
                this client does not allow it.
            UnsupportedDtype: the value needs a package that is not installed (numpy, ml_dtypes, torch, pyarrow).

        Examples:
            >>> refs = [hp.put({"step": step}) for step in range(3)]
            >>> hp.get(refs, timeout=10)
            [{'step': 0}, {'step': 1}, {'step': 2}]
            >>> hp.get("not/yet", timeout=0)
            Traceback (most recent call last):
            hoplite.errors.Timeout: timed out after 0 s waiting for object not/yet: no client has put it
            >>> text = hp.put(b"rows of a table")
            >>> bytes(hp.get(text, part=slice(0, 4), timeout=10))
            b'rows'
        """
        limit = self._limit(timeout)
        if part is None and out is None and isinstance(ref, _ONE):
            native, limit = self._open_within(limit)
            return self._decode(get(native, check_ref(ref), limit), copy)
        return finish(self._get(IN_THREAD, ref, part, out, copy, limit))

    @overload
    async def get_async(
        self: Client,
        ref: Ref | str,
        *,
        part: slice | None = None,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Any: ...
    @overload
    async def get_async(
        self: Client,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> list[Any]: ...

    async def get_async(
        self: Client,
        ref: Ref | str | Iterable[Ref | str],
        *,
        part: slice | None = None,
        out: Any = None,
        copy: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Any:
        """`get`, for asyncio."""
        limit = self._limit(timeout)
        if part is None and out is None and isinstance(ref, _ONE):
            native, limit = self._open_within(limit)
            return self._decode(await get_async(native, check_ref(ref), limit), copy)
        return await self._get(IN_LOOP, ref, part, out, copy, limit)

    async def _get(
        self,
        waits: Waits,
        ref: Ref | str | Iterable[Ref | str],
        part: slice | None,
        out: Any,
        copy: bool,
        limit: float | None,
    ) -> Any:
        """Gets several objects or a part of one, or copies them into the caller's memory."""
        if isinstance(ref, _ONE):
            return await self._get_one(waits, check_ref(ref), part, out, copy, limit)
        if part is not None:
            raise InvalidArgument("part works with a single ref: call get for each ref of the list")
        texts = check_list("refs to get", ref)
        outs = check_outs(out, len(texts))
        memories = [values.writable(each) for each in outs or ()]
        values.check_apart(memories, texts)
        native, limit = self._open_within(limit)
        if outs is not None:
            into = zip(texts, memories, strict=True)
            copies = [native.start_get_into(text, memory, None, None, limit) for text, memory in into]
            await Several(waits, native, texts, copies, limit).results()
            return outs
        views = await Several(waits, native, texts, [native.start_get(text, limit) for text in texts], limit).results()
        try:
            return [self._decode(view, copy) for view in views]
        finally:
            # The frames of a traceback must not pin memory.
            views.clear()

    async def _get_one(
        self, waits: Waits, text: str, part: slice | None, out: Any, copy: bool, limit: float | None
    ) -> Any:
        """Gets rows or bytes of an object, or copies them or all of it into the caller's memory."""
        bounds = (None, None) if part is None else check_part(part)
        memory = None if out is None else values.writable(out)
        native, limit = self._open_within(limit)
        if memory is not None:
            await waits.answer(native.start_get_into(text, memory, *bounds, limit))
            return out
        views = [await waits.answer(native.start_get_range(text, *bounds, limit))]
        try:
            return self._decode(views[0], copy)
        finally:
            # The frames of a traceback must not pin memory.
            views.clear()

    def latest(self: Client, prefix: str, *, after: int | None = None, timeout: float | None = DEFAULT) -> Ref:
        """Returns the newest object under a prefix. With `after`, waits for a number higher than that.

        Delete old versions with `put(retain=)`, not with `delete`. A late reader of an old version then gets
        `ObjectDeleted`. After `delete`, it would wait for the next put of that name.

        Args:
            prefix: text before the number, with the slash: "policy/" for "policy/17".
            after: accept only numbers above this one; None and -1 accept any.
            timeout: seconds to wait for such a name; 0 does not wait.

        Returns:
            The ref of the existing object with the highest number; `ref.number` is that number.

        Raises:
            Timeout: no such name existed in time.
            InvalidArgument: the prefix does not end in "/", or `after` is below -1.

        Examples:
            >>> refs = [hp.put(b"weights", name=f"model/{step}") for step in (1, 2)]
            >>> hp.latest("model/", after=1, timeout=10)
            Ref('model/2')
        """
        return Ref(answer(self._start_latest(prefix, after, timeout)), self)

    async def latest_async(
        self: Client, prefix: str, *, after: int | None = None, timeout: float | None = DEFAULT
    ) -> Ref:
        """`latest`, for asyncio."""
        return Ref(await answer_async(self._start_latest(prefix, after, timeout)), self)

    def _start_latest(self, prefix: str, after: int | None, timeout: float | None) -> Pending[str]:
        text = check_ref(prefix)
        if not text.endswith("/"):
            raise InvalidArgument(f'the prefix {text!r} does not end in "/": write {text + "/"!r}')
        native, limit = self._open_within(self._limit(timeout))
        return native.start_latest(text, check_after(after), limit)
