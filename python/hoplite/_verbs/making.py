"""The verbs that make an object."""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hoplite import _native, values
from hoplite._arguments import (
    check_copies,
    check_count,
    check_inputs,
    check_keep,
    check_min_copies,
    check_op,
    check_ref,
    check_shape,
    check_timeout,
    check_ttl,
    left,
)
from hoplite._attachment import Attachment
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.buffer import Buffer
from hoplite.errors import GetTimeout, HopliteError, NameTaken, ObjectDeleted, ObjectLost
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite._native import Pending
    from hoplite._waits import Waits
    from hoplite.client import Client


class Making(Attachment):
    """What `Client` inherits."""

    def promise(self: Client) -> Ref:
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
        return Ref(answer(self._open().start_promise()), self)

    async def promise_async(self: Client) -> Ref:
        """`promise`, for asyncio."""
        return Ref(await answer_async(self._open().start_promise()), self)

    def put(
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
        """
        if keep is None and not digest and not exist_ok and check_copies(copies) == 1:
            # Of one step: a coroutine would add a tenth to the time of a small put.
            check_min_copies(min_copies, 1)
            text = None if name is None else check_ref(name)
            lives, limit = check_ttl(ttl), check_timeout(timeout)
            native = self._open()
            what = values.encode(value, allow_pickle=self._allow_pickle)
            ref = Ref(native.put(what, what.parts, text, lives, limit), self)
            ref._reached(1, 1)
            return ref
        return finish(self._put(IN_THREAD, value, name, keep, copies, min_copies, digest, ttl, exist_ok, timeout))

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
        """`put`, for asyncio.

        Asyncio:
            The value must not change before this returns. Cancelled, it leaves no object.
        """
        return await self._put(IN_LOOP, value, name, keep, copies, min_copies, digest, ttl, exist_ok, timeout)

    async def _put(
        self: Client,
        waits: Waits,
        value: object,
        name: Ref | str | None,
        keep: int | None,
        copies: int,
        min_copies: int,
        digest: bool,
        ttl: float | None,
        exist_ok: bool,
        timeout: float | None,
    ) -> Ref:
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
                if await waits.answer(native.start_locations(text, None, limit)):
                    return Ref(text, self)
            for_room = left(limit, begun)
        what = values.encode(value, allow_pickle=self._allow_pickle)
        if digest:
            what = await waits.digested(what)
        try:
            ref = Ref(await waits.put(native, what, text, lives, for_room), self)
        except NameTaken:
            if exist_ok and text is not None:
                return Ref(text, self)
            raise
        try:
            reached = 1
            if wanted > 1:
                reached = await waits.answer(native.start_keep(str(ref), wanted, left(limit, begun)))
            if kept is not None and text is not None:
                # If time is over the object is there all the same; the next put prunes what is left.
                with contextlib.suppress(GetTimeout):
                    await waits.answer(native.start_prune(text, kept, left(limit, begun)))
        except (HopliteError, KeyboardInterrupt):
            # Only its copies are late, or another caller has deleted it: what has the name now may be another object.
            raise
        except BaseException:
            # Cancelled, and no caller has learnt of the ref.
            self._discard(str(ref))
            raise
        ref._reached(reached, least)
        return ref

    def create(
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
        """
        return finish(self._create(IN_THREAD, shape, dtype, name, copies, min_copies, ttl, timeout))

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
        """`create`, for asyncio.

        Asyncio:
            `async with await hp.create_async(...) as buf:` seals at the end.
        """
        return await self._create(IN_LOOP, shape, dtype, name, copies, min_copies, ttl, timeout)

    async def _create(
        self: Client,
        waits: Waits,
        shape: int | Sequence[int],
        dtype: object,
        name: Ref | str | None,
        copies: int,
        min_copies: int,
        ttl: float | None,
        timeout: float | None,
    ) -> Buffer:
        wanted, lives = check_copies(copies), check_ttl(ttl)
        least = check_min_copies(min_copies, wanted)
        what = check_shape(shape, dtype)
        text = None if name is None else check_ref(name)
        limit = check_timeout(timeout)
        native = self._open()
        is_small = what.nbytes <= _native.INLINE_BYTES_MAX
        space = None if is_small else await waits.answer(native.start_create(what, text, lives, limit))
        return Buffer(self, what, text, space, wanted, lives, least)

    def reduce(
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
        """
        return Ref(answer(self._start_reduce(inputs, op, count, name, ttl, timeout)), self)

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
        """`reduce`, for asyncio.

        Asyncio:
            It returns as soon as the reduce is accepted; cancel that by `delete`.
        """
        return Ref(await answer_async(self._start_reduce(inputs, op, count, name, ttl, timeout)), self)

    def _start_reduce(
        self,
        inputs: Iterable[Ref | str],
        op: str,
        count: int | None,
        name: Ref | str | None,
        ttl: float | None,
        timeout: float | None,
    ) -> Pending[str]:
        texts = check_inputs(inputs)
        number = check_count(count, len(texts))
        text = None if name is None else check_ref(name)
        return self._open().start_reduce(texts, check_op(op), number, text, check_ttl(ttl), check_timeout(timeout))
