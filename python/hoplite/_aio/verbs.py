"""The verbs: what a process does with objects through the node of its host.

Those that only tell how things are stand in `overview`.
"""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, overload

from hoplite import _native, values
from hoplite._aio.into import fill_async
from hoplite._aio.overview import AsyncOverview
from hoplite._aio.several import AsyncSeveral
from hoplite._arguments import (
    check_after,
    check_copies,
    check_count,
    check_inputs,
    check_keep,
    check_list,
    check_min_copies,
    check_op,
    check_outs,
    check_ref,
    check_refs,
    check_shape,
    check_timeout,
    check_ttl,
    left,
)
from hoplite._waits import answer_async, digested_async, get_async, put_async
from hoplite.buffer import Buffer
from hoplite.errors import GetTimeout, HopliteError, InvalidArgument, NameTaken, ObjectDeleted, ObjectLost
from hoplite.lease import Lease
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite.client import Client

# One object, not several. Made once: a union would be for each get.
_ONE = (Ref, str)


class AsyncVerbs(AsyncOverview):
    """What `Client` inherits."""

    async def promise_async(self: Client) -> Ref:
        """Returns the ref of an object that does not exist yet, so that others can wait for it, or reduce it, already.

        Keep the promise by `put`, `create` or `reduce` with `name=` the ref; only this client can. This host
        tells those who wait; of a name the hosts that its hash says do so: small objects arrive sooner here.

        If this client closes, or its process ends, before it has made the object, those who wait get `ObjectLost`;
        `delete` takes the promise back.

        Examples:
            >>> ref = hp.promise()
            >>> hp.put(b"as I said", name=ref) == ref
            True
            >>> bytes(hp.get(ref))
            b'as I said'
        """
        return Ref(await answer_async(self._open().start_promise()), self)

    async def put_async(
        self: Client,
        value: object,
        *,
        name: Ref | str | None = None,
        keep: int | None = None,
        copies: int = 1,
        min_copies: int = 1,
        digest: bool = False,
        ttl: float | None = None,
        exist_ok: bool = False,
        timeout: float | None = None,
    ) -> Ref:
        """Copies a value into the store as a new immutable object.

        Others can stream the object while it is being copied. It stays, in at least one copy, until `delete`, for as
        long as this node lives; with `copies=2` it outlives this node.

        Args:
            value: a NumPy array or scalar, a PyTorch CPU tensor, or anything with the buffer protocol or DLPack, of
                float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool, complex64, complex128,
                datetime64 or timedelta64, any shape, 0-d and empty ones too, copied once more if it is strided, in
                Fortran order or big-endian; a pyarrow array, record batch or table; bytes; or any other object, by
                pickle protocol 5, where arrays inside it are not copied into the pickle. docs/values.md has a table.
            name: what to call the object, such as "policy/17", or a ref that this client's `promise` returned; None
                mints an id.
            keep: how many to keep of this name and those under the same prefix with lower numbers; `keep=2` of
                "policy/17" deletes "policy/15" and older, if "policy/16" is alive; that they are gone everywhere is
                not waited for. None keeps all.
            copies: how many nodes are to hold the object until `delete`, this one among them: so many less one may die.
                Where there are fewer nodes, all do, and others as they join; a copy that is lost with its node is made
                again elsewhere, as long as this node lives.
            min_copies: how many of these nodes there have to be, so that a cluster with fewer is an error; `ref.copies`
                tells how many there were.
            digest: whether this client announces the SHA-256 of the bytes with the object. Each node that receives the
                object compares its bytes with that before a `get` there returns, and asks another node if they differ.
                docs/security.md says which attackers that stops, and what it costs.
            ttl: seconds after which the object is deleted, counted by the monotonic clock of a node from when it is
                complete, whichever nodes live by then; readers keep what they have got. None lets it live until
                `delete`.
            exist_ok: return the ref of the living object if the name is taken, whatever its bytes and however many
                copies of it there are.
            timeout: seconds to wait for room in the store, and for the copies.

        Returns:
            The object's ref, when its bytes are in the store, and so many nodes hold them, or all if there are fewer.

        Raises:
            GetTimeout: the copies were not made in time, or a node does not say whether it keeps one and there is no
                other to ask, and the object is there all the same; or its memory was not made, or its name not
                confirmed, and there is no object.
            InvalidArgument: the name is empty or too long, or a ref that this client did not promise or has put
                already; `keep` or `copies` is below 1, `min_copies` is not 1 to `copies`, or the name has no number;
                `ttl` is not above 0; or pickle can't take the value.
            NameTaken: an object of that name is alive.
            ObjectDeleted: it was deleted before `copies` nodes held it; or the promised ref was deleted before this
                put; or the network was cut, the name was put on the other side too, and that object stays.
            StoreFull: there was no room in time, or the object is larger than the store.
            TooFewCopies: the cluster has fewer nodes than `min_copies`, and the object is there all the same.
            UnsupportedDtype: the value takes a pickle that `allow_pickle` of this client does not allow; or it is on
                another device.

        Examples:
            >>> ref = hp.put(b"weights of step 17", name="policy/17", keep=2)
            >>> bytes(hp.get("policy/17"))
            b'weights of step 17'
            >>> hp.put(b"others", name="policy/17", exist_ok=True)
            Ref('policy/17')

        Asyncio:
            The value must not change before this returns. Cancelled, it leaves no object.
        """
        text = None if name is None else check_ref(name)
        kept = check_keep(keep, text)
        wanted = check_copies(copies)
        least = check_min_copies(min_copies, wanted)
        lives = check_ttl(ttl)
        limit = check_timeout(timeout)
        native = self._open()
        begun = time.monotonic()
        for_room = limit
        if exist_ok and text is not None:
            # A put waits for room before it learns that its name is taken, and what is there needs none.
            with contextlib.suppress(GetTimeout, ObjectDeleted, ObjectLost):
                if await answer_async(native.start_locations(text, None, limit)):
                    return Ref(text, self)
            for_room = left(limit, begun)
        what = values.encode(value, allow_pickle=self._allow_pickle)
        if digest:
            what = await digested_async(what)
        try:
            ref = Ref(await put_async(native, what, what.parts, text, lives, for_room), self)
        except NameTaken:
            if exist_ok and text is not None:
                return Ref(text, self)
            raise
        try:
            reached = 1
            if wanted > 1:
                reached = await answer_async(native.start_keep(str(ref), wanted, left(limit, begun)))
            if kept is not None and text is not None:
                # If time is over the object is there all the same; the next put prunes what is left.
                with contextlib.suppress(GetTimeout):
                    await answer_async(native.start_prune(text, kept, left(limit, begun)))
        except (HopliteError, KeyboardInterrupt):
            # Only its copies are late, or another caller has deleted it: what has the name now may be another object.
            raise
        except BaseException:
            # Cancelled, and no caller has learnt of the ref.
            self._discard(str(ref))
            raise
        ref._reached(reached, least)
        return ref

    async def create_async(
        self: Client,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        name: Ref | str | None = None,
        copies: int = 1,
        min_copies: int = 1,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Buffer:
        """Makes space for an array in the store, to be filled in place and sealed: no copy at all.

        Args:
            shape: length of each axis, or of the only one.
            dtype: whatever `numpy.dtype` takes ("float32", "f4", float, "datetime64[ns]"); torch.float32,
                ml_dtypes.bfloat16 and the like; or "bytes", whose shape is their number.
            name: what to call the object, as for `put`; None mints an id. Either way `buf.ref` is known at once.
            copies: how many nodes are to hold the object, as for `put`; `seal` waits for them.
            min_copies: how many of these nodes there have to be, as for `put`; else `seal` raises `TooFewCopies`.
            ttl: seconds after which the object is deleted, as for `put`, counted from `seal`.
            timeout: seconds to wait for room in the store.

        Returns:
            The space: `buf[...] = values`, then `ref = buf.seal()`; or `with hp.create(...) as buf:`.

        Raises:
            InvalidArgument: the shape has a negative axis, the name is empty or too long, `copies` is below 1,
                `min_copies` is not 1 to `copies`, or `ttl` is not above 0.
            NameTaken: an object of that name is alive; for an object of up to 32 KiB `seal` finds out.
            StoreFull: there was no room in time, or the object is larger than the store.
            UnsupportedDtype: arrays of that dtype can't be held.

        Examples:
            >>> with hp.create((2, 3), "int64", name="counts/1") as buf:
            ...     buf[...] = 7
            >>> int(hp.get("counts/1").sum())
            42

        Asyncio:
            `async with await hp.create_async(...) as buf:` seals at the end.
        """
        wanted, lives = check_copies(copies), check_ttl(ttl)
        least = check_min_copies(min_copies, wanted)
        what = check_shape(shape, dtype)
        text = None if name is None else check_ref(name)
        limit = check_timeout(timeout)
        native = self._open()
        is_small = what.nbytes <= _native.INLINE_BYTES_MAX
        space = None if is_small else await answer_async(native.start_create(what, text, lives, limit))
        return Buffer(self, what, text, space, wanted, lives, least)

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
            GetTimeout: the object is not here in time, and a full store is not the reason; with 0, it was not here
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
            Undecodable: a pickled object can't be read here, for want of its class for instance, or `allow_pickle` of
                this client does not allow it.
            UnsupportedDtype: the value needs a package that is not installed (numpy, ml_dtypes, torch, pyarrow).

        Examples:
            >>> refs = [hp.put({"step": step}) for step in range(3)]
            >>> hp.get(refs, timeout=10)
            [{'step': 0}, {'step': 1}, {'step': 2}]
            >>> hp.get("not/yet", timeout=0)
            Traceback (most recent call last):
            hoplite.errors.GetTimeout: object not/yet did not come within 0 s: no client has put it
        """
        limit = check_timeout(timeout)
        if not isinstance(ref, _ONE):
            return await self._get_several_async(check_list("refs to get", ref), out, copy, limit)
        text = check_ref(ref)
        if out is None:
            return self._decode(await get_async(self._open(), text, limit), copy)
        return (await fill_async(self._open(), [text], [out], limit))[0]

    async def _get_several_async(
        self: Client, texts: list[str], out: Any, copy: bool, limit: float | None
    ) -> list[Any]:
        outs = check_outs(out, len(texts))
        if outs is not None:
            return await fill_async(self._open(), texts, outs, limit)
        views = await AsyncSeveral(self._open(), texts, limit).views_async()
        try:
            return [self._decode(view, copy) for view in views]
        finally:
            # What an error's frames keep must not pin memory.
            views.clear()

    async def wait_async(
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
        texts = check_list("refs to wait for", refs)
        if len(set(texts)) < len(texts):
            raise InvalidArgument("a ref is among the refs to wait for twice; name each once")
        number = check_count(count, len(texts), least=0)
        if number == 0 or not texts:
            ready = []
        else:
            asked = self._open().start_wait(texts, len(texts) if number is None else number, check_timeout(timeout))
            ready = await answer_async(asked)
        came = set(ready)
        rest = [Ref(text, self) for place, text in enumerate(texts) if place not in came]
        return [Ref(texts[place], self) for place in ready], rest

    async def reduce_async(
        self: Client,
        inputs: Iterable[Ref | str],
        op: str = "sum",
        *,
        count: int | None = None,
        name: Ref | str | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Ref:
        """Folds the first `count` inputs to arrive into one new object.

        Nodes that hold inputs fold them on the way to this one. The result streams to its readers while it grows.

        Args:
            inputs: refs or names of arrays of one dtype (and unit) and shape, each once; not yet created is fine, and
                results of other reduces are too.
            op: "sum", "min", "max", "prod" or "mean", or of bool "any" or "all", element by element. Integers wrap
                around on overflow; min and max are NaN or NaT where an element is; mean is for floats and complex.
                Floats are added in order of arrival, so the last bits of a sum can differ from run to run.
                docs/values.md says which op goes with which dtype.
            count: how many inputs to fold; None means all of them. Spares that arrive later are left alone.
            name: what to call the result, as for `put`; None mints an id. No other client can put the name from now on.
            ttl: seconds after which the result is deleted, as for `put`, counted from when it is complete.
            timeout: seconds until the inputs must have arrived and the result be folded. After that the reduce is
                given up, and `get` and `inputs` raise `GetTimeout`, which names the inputs that are missing; or
                `StoreFull`, if only room for the result is missing.

        Returns:
            A ref at once; `get` on it waits, `ref.inputs()` tells what was folded in, `ref.lost()` what can't be.

        Raises:
            InvalidArgument: no inputs, one of them twice, a count below 1 or above their number, or a `ttl` that
                is not above 0.
            NameTaken: an object of that name is alive, or is to be the result of another reduce.
            ObjectDeleted: an input was deleted before it was folded: one of more than 2 MiB, before the last input
                arrived; also raised by `get` on the result.
            ShapeMismatch: two inputs differ in shape or dtype; names both; also raised by `get` on the result.
            UnknownOp: the op is none of these.
            UnsupportedDtype: the inputs are no arrays, or the op is not for their dtype; also raised by `get` on the
                result.

        Examples:
            >>> import numpy as np
            >>> total = hp.reduce(["grad/1", "grad/2", "grad/3"], "sum", count=2, name="sum/1")
            >>> here = hp.put(np.array([1.0, 2.0]), name="grad/3"), hp.put(np.array([10.0, 20.0]), name="grad/1")
            >>> hp.get("sum/1", timeout=10)
            array([11., 22.])
            >>> total.inputs()
            [Ref('grad/3'), Ref('grad/1')]

        Source: Hoplite (SIGCOMM 2021), section 3.4.

        Asyncio:
            It returns as soon as the reduce is accepted; cancel that by `delete`.
        """
        texts = check_inputs(inputs)
        number = check_count(count, len(texts))
        text = None if name is None else check_ref(name)
        asked = self._open().start_reduce(texts, check_op(op), number, text, check_ttl(ttl), check_timeout(timeout))
        return Ref(await answer_async(asked), self)

    async def hold_async(self: Client, ref: Ref | str, *, timeout: float | None = None) -> Lease:
        """Takes a lease of an object: it lives as long as some client of the cluster has one.

        When the last lease is released, or its client has closed or died, the object is deleted, 5 s later: a client
        that is handed the ref has taken its own lease by then. An object of which no lease was taken lives until
        `delete`.

        Args:
            ref: the object; it need not exist yet, so that there is no moment at which it is not held. Of a name, what
                has the name when the last lease ends is deleted.
            timeout: seconds to wait until the owner of the object knows of the lease.

        Returns:
            The lease: `with hp.hold(ref): ...`, or `lease.release()`. One that is garbage is released.

        Raises:
            GetTimeout: the owner has not answered in time, and there is no lease.
            InvalidArgument: it is no ref.

        Examples:
            >>> ref = hp.promise()
            >>> with hp.hold(ref):
            ...     bytes(hp.get(hp.put(b"for a while", name=ref)))
            b'for a while'
        """
        text, limit = check_ref(ref), check_timeout(timeout)
        native = self._open()
        lease = Lease(self, text)
        try:
            await answer_async(native.start_take_lease(text))
            # The owner has heard of the lease when it answers this, which it is asked after it.
            with contextlib.suppress(ObjectDeleted, ObjectLost):
                await answer_async(native.start_locations(text, None, limit))
        except BaseException:
            lease.release()
            raise
        return lease

    async def delete_async(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None) -> None:
        """Deletes all copies of objects everywhere.

        Values that `get` returned stay valid; their memory is free once they are garbage. Calls that wait for a deleted
        object raise `ObjectDeleted`. A name is free at once.

        Args:
            refs: one ref or name, or several; none is fine.
            timeout: seconds to wait until the owners of the objects know.

        Examples:
            >>> ref = hp.put(b"x", name="scratch/1")
            >>> hp.delete(["scratch/1"])
            >>> ref = hp.put(b"y", name="scratch/1")

        Asyncio:
            Cancelled, it does not wait any more; what is deleted stays deleted.
        """
        texts = check_refs(refs)
        limit = check_timeout(timeout)
        await answer_async(self._open().start_delete(texts, limit))

    async def latest_async(self: Client, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """Finds the newest object under a prefix; waits for one that is newer than a number.

        Remove old ones with `put(keep=)`, not with `delete`: a reader that gets a version too late then has
        `ObjectDeleted`, where a name that `delete` freed would have it wait for the next put of that name.

        Args:
            prefix: the text before the number, with the slash: "policy/" for "policy/17".
            after: only a higher number than this will do; None, or -1, takes any.
            timeout: seconds to wait for such a name; 0 asks without waiting.

        Returns:
            The ref with the highest number that is alive; `ref.number` is that number.

        Raises:
            GetTimeout: no such name came in time.
            InvalidArgument: the prefix does not end in "/", or `after` is below -1.

        Examples:
            >>> refs = [hp.put(b"weights", name=f"model/{step}") for step in (1, 2)]
            >>> hp.latest("model/", after=1, timeout=10)
            Ref('model/2')
        """
        text = check_ref(prefix)
        if not text.endswith("/"):
            raise InvalidArgument(f'the prefix {text!r} does not end in "/"; write {text + "/"!r}')
        number = check_after(after)
        return Ref(await answer_async(self._open().start_latest(text, number, check_timeout(timeout))), self)
