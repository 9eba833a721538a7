"""The verbs that create an object: `reserve`, `slots`, `put`, `create` and `reduce`."""

# A mixin of one class, which annotates `self` with that class.
# mypy: disable-error-code="misc"

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite import _native, values
from hoplite._arguments import (
    check_count,
    check_inputs,
    check_op,
    check_ref,
    check_replicas,
    check_retain,
    check_shape,
    check_slots,
    check_ttl,
)
from hoplite._attachment import Attachment
from hoplite._shared import DEFAULT
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.buffer import Buffer
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import SupportsIndex

    from hoplite._client import Client
    from hoplite._native import Pending
    from hoplite._waits import Waits


class Making(Attachment):
    """Base class of `Client`."""

    def reserve(self: Client, *, name: str | None = None, timeout: float | None = DEFAULT) -> Ref:
        """Reserves the ref or name of an object that does not exist yet, so that others can wait for it or reduce it.

        Only this client can create the object, by `put`, `create` or `reduce` with `name=` the ref. If this client
        closes, or its process or node ends, before the object is complete, waiting calls raise `ObjectLost` with the
        producer's process and node, and a reduce continues without that input. `delete` cancels the reservation.

        Without a name, this host's node is the owner of the ref; the owner of a name is selected by its hash. Small
        objects therefore arrive sooner under a ref without a name. A name takes a request to its owner. After the loss
        or the deletion of a reserved name, any client can reserve or put it again. Later calls for a lost name raise
        `ObjectLost` until then, for at most 10 minutes.

        Args:
            name: name of the object, such as "grad/1/17". None generates a ref.
            timeout: seconds to wait for the owner of the name.

        Raises:
            InvalidArgument: the name is empty, too long, or a generated ref.
            NameTaken: an object has that name, or another client or a reduce has reserved it.
            NotAllowed: the capability of this client does not allow puts of that name.
            StoreFull: the owner of the name stores no more entries of this node.
            Timeout: the owner of the name did not reply in time.

        Examples:
            >>> ref = hp.reserve()
            >>> hp.put(b"later", name=ref) == ref
            True
            >>> bytes(hp.get(ref))
            b'later'
            >>> ref = hp.reserve(name="grad/1/17")
            >>> ref
            Ref('grad/1/17')
            >>> hp.put(b"computed", name=ref) == ref
            True
        """
        return Ref(answer(self._start_reserve(name, timeout)), self)

    async def reserve_async(self: Client, *, name: str | None = None, timeout: float | None = DEFAULT) -> Ref:
        """`reserve`, for asyncio."""
        return Ref(await answer_async(self._start_reserve(name, timeout)), self)

    def _start_reserve(self, name: str | None, timeout: float | None) -> Pending[str]:
        native, limit = self._open_within(self._limit(timeout))
        return native.start_reserve(name, limit)

    def slots(self: Client, count: SupportsIndex) -> list[Ref]:
        """Makes refs that any client of the cluster may fill, each once, for answers to this client.

        Send a slot with a request. The receiver fills it by `put` or `create` with `name=` the slot, and this client
        gets it or folds it. This host's node is the owner of the slots, so no third host is involved: an answer of up
        to 32 KiB arrives with the message that fills the slot.

        The first put that completes wins; later ones raise `NameTaken`. If a client that fills a slot ends before its
        object is complete, another can fill it: the answer can only be late. If this client closes, or its process or
        node ends, gets and puts of its unfilled slots raise `ObjectLost`. `delete` ends a slot, filled or not. The
        object of a filled slot stays until `delete` or its `ttl`.

        Args:
            count: number of slots, 0 to 65,536.

        Raises:
            InvalidArgument: `count` is not in that range.
            NotAllowed: the capability of this client is limited to a prefix, or does not allow puts.
            StoreFull: this host's node has no directory entries left.

        Examples:
            >>> question, answer = hp.slots(2)
            >>> hp.put(b"6 * 7", name=question) == question
            True
            >>> hp.put(b"42", name=answer) == answer  # by any client of the cluster
            True
            >>> bytes(hp.get(answer))
            b'42'
            >>> hp.delete([question, answer])
        """
        return [Ref(text, self) for text in answer(self._start_slots(count))]

    async def slots_async(self: Client, count: SupportsIndex) -> list[Ref]:
        """`slots`, for asyncio."""
        return [Ref(text, self) for text in await answer_async(self._start_slots(count))]

    def _start_slots(self, count: SupportsIndex) -> Pending[list[str]]:
        return self._open().start_slots(check_slots(count))

    def put(
        self: Client,
        value: object,
        *,
        name: Ref | str | None = None,
        replicas: int = 1,
        retain: int | None = None,
        ttl: float | None = None,
        exist_ok: bool = False,
        newest: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Ref:
        """Copies a value into the store as a new immutable object.

        Other nodes can stream the object while it is being copied. At least one copy remains until `delete`, while
        this node lives. With `replicas=2` the object survives the failure of this node.

        Args:
            value: a NumPy array or scalar, a PyTorch CPU tensor, or anything with the buffer protocol or DLPack. Its
                elements are float16, bfloat16, float32, float64, int8 to int64, uint8 to uint64, bool, complex64,
                complex128, datetime64, timedelta64, or of a narrow dtype such as float8_e4m3fn or int4; its shape is
                any, including 0-d and empty. It is copied once more if it is strided, in Fortran order or big-endian.
                Also a pyarrow array, record batch or table; bytes; or any other object, by pickle protocol 5, where
                arrays inside it are not copied into the pickle. docs/values.md has a table.
            name: name of the object, such as "policy/17", a ref or name from `reserve` of this client, or a ref from
                `slots` of any client. None creates an id.
            replicas: number of nodes, including this one, that keep a copy until `delete`. The object survives the
                failure of all but one of them. If the cluster has fewer nodes, each keeps a copy, and so do nodes that
                join later: check `ref.replicas`. While this node lives, a replica that fails with its node is
                replaced on another.
            retain: number of newest versions to retain under the prefix of the name, including this one: with
                `retain=2`, a put of "policy/17" deletes all numbers below 16 if "policy/16" exists. The call does not
                wait for these deletions. None deletes nothing.
            ttl: seconds until the object is deleted, from when it is complete, by the monotonic clock of a node. It
                does not depend on which nodes live then. Values that `get` returned stay valid. None means no limit.
            exist_ok: if the name is taken, return the ref of the existing object, whatever its bytes and replicas.
                Nothing is replicated or deleted then.
            newest: refuse the put if a higher number exists under the prefix of the name. A program that restarts and
                begins to count anew then gets an error, instead of putting versions that no reader of `latest` takes.
                This is checked before the put, so of two concurrent puts either can be the later one.
            timeout: seconds to wait for memory in the store and for the replicas.

        Returns:
            The object's ref, once its bytes are in the store and `replicas` nodes, or all nodes, keep a copy.

        Raises:
            InvalidArgument: the name is empty or too long, or is a ref that this client did not reserve or has used
                already; `retain` or `replicas` is below 1; `retain` or `newest` is given and the name has no number;
                `newest` is given and a higher number exists, which the message names; `ttl` is not positive; or pickle
                fails on the value.
            NameTaken: an object with that name exists, another client or a reduce has reserved it, or another put has
                filled the slot.
            NotAllowed: the capability of this client does not allow the put. If it does not allow the deletions of
                `retain`, the object exists.
            ObjectDeleted: the object was deleted before `replicas` nodes kept a copy; the reservation or the slot was
                deleted; or the name was put on both sides of a network partition, and the other object stays.
            ObjectLost: the client that made the slot has ended, or its node.
            StoreFull: the store had no capacity in time, or the object is larger than the store.
            Timeout: the replicas were not complete in time, and the object exists; or its memory or its name was not
                confirmed in time, or the node of this host did not reply, and there is no object. The message states
                which.
            UnsupportedDtype: the value needs a pickle, and `allow_pickle` of this client does not allow it; or it is on
                another device.

        Examples:
            >>> ref = hp.put(b"weights of step 17", name="policy/17", retain=2)
            >>> bytes(hp.get("policy/17"))
            b'weights of step 17'
            >>> hp.put(b"others", name="policy/17", exist_ok=True)
            Ref('policy/17')
        """
        if retain is None and not self._options.digest and not (exist_ok or newest) and check_replicas(replicas) == 1:
            # In one step: a coroutine would add a tenth to the time of a small put.
            text = None if name is None else check_ref(name)
            lives = check_ttl(ttl)
            native, limit = self._open_within(self._limit(timeout))
            what = values.encode(value, allow_pickle=self._allow_pickle)
            ref = Ref(native.put(what, what.parts, text, lives, limit), self)
            ref._replicas = 1
            return ref
        started = self._start_put(value, name, replicas, retain, ttl, exist_ok, newest, timeout)
        return self._made(answer(started))

    async def put_async(
        self: Client,
        value: object,
        *,
        name: Ref | str | None = None,
        replicas: int = 1,
        retain: int | None = None,
        ttl: float | None = None,
        exist_ok: bool = False,
        newest: bool = False,
        timeout: float | None = DEFAULT,
    ) -> Ref:
        """`put`, for asyncio.

        Asyncio:
            The value must not change before this returns. If it is canceled, there is no object.
        """
        return self._made(
            await answer_async(self._start_put(value, name, replicas, retain, ttl, exist_ok, newest, timeout))
        )

    def _start_put(
        self,
        value: object,
        name: Ref | str | None,
        replicas: int,
        retain: int | None,
        ttl: float | None,
        exist_ok: bool,
        newest: bool,
        timeout: float | None,
    ) -> Pending[tuple[str, int]]:
        """Returns the request for the ref of a put, and for the number of nodes that keep a copy; 0 if unknown."""
        text = None if name is None else check_ref(name)
        options = check_replicas(replicas), check_retain(retain, text), check_ttl(ttl), bool(exist_ok), bool(newest)
        native, limit = self._open_within(self._limit(timeout))
        what = values.encode(value, allow_pickle=self._allow_pickle)
        return native.start_put(what, what.parts, text, *options, self._options.digest, limit)

    def _made(self: Client, made: tuple[str, int]) -> Ref:
        ref = Ref(made[0], self)
        ref._replicas = made[1] or None
        return ref

    def create(
        self: Client,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        name: Ref | str | None = None,
        replicas: int = 1,
        ttl: float | None = None,
        timeout: float | None = DEFAULT,
    ) -> Buffer:
        """Allocates an array in the store, to be filled in place and sealed without any copy.

        Args:
            shape: length of each axis, or of the only axis.
            dtype: anything that `numpy.dtype` accepts ("float32", "f4", float, "datetime64[ns]"); torch.float32,
                torch.float8_e4m3fn, ml_dtypes.bfloat16 and the like; or "bytes", with the number of bytes as shape.
            name: name of the object, as in `put`. None creates an id. `buf.ref` is the ref of the future object.
            replicas: number of nodes that keep a copy, as in `put`; `seal` waits for them.
            ttl: seconds until the object is deleted, as in `put`, counted from `seal`.
            timeout: seconds to wait for memory in the store.

        Returns:
            The buffer: `buf[...] = values`, then `ref = buf.seal()`; or `with hp.create(...) as buf:`.

        Raises:
            InvalidArgument: the shape has a negative axis, the name is empty or too long, `replicas` is below 1, or
                `ttl` is not positive.
            NameTaken: an object with that name exists. For an object of up to 32 KiB, `seal` raises this.
            StoreFull: the store had no capacity in time, or the object is larger than the store.
            UnsupportedDtype: the store has no arrays of that dtype.

        Examples:
            >>> with hp.create((2, 3), "int64", name="counts/1") as buf:
            ...     buf[...] = 7
            >>> int(hp.get("counts/1").sum())
            42
        """
        return finish(self._create(IN_THREAD, shape, dtype, name, replicas, ttl, timeout))

    async def create_async(
        self: Client,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        name: Ref | str | None = None,
        replicas: int = 1,
        ttl: float | None = None,
        timeout: float | None = DEFAULT,
    ) -> Buffer:
        """`create`, for asyncio.

        Asyncio:
            `async with await hp.create_async(...) as buf:` seals at the end of the block.
        """
        return await self._create(IN_LOOP, shape, dtype, name, replicas, ttl, timeout)

    async def _create(
        self: Client,
        waits: Waits,
        shape: int | Sequence[int],
        dtype: object,
        name: Ref | str | None,
        replicas: int,
        ttl: float | None,
        timeout: float | None,
    ) -> Buffer:
        wanted, lives = check_replicas(replicas), check_ttl(ttl)
        what = check_shape(shape, dtype)
        text = None if name is None else check_ref(name)
        native, limit = self._open_within(self._limit(timeout))
        is_small = what.nbytes <= _native.INLINE_BYTES_MAX
        space = None if is_small else await waits.answer(native.start_create(what, text, lives, limit))
        return Buffer(self, what, text, space, wanted, lives)

    def reduce(
        self: Client,
        inputs: Iterable[Ref | str],
        op: str = "sum",
        *,
        count: int | None = None,
        name: Ref | str | None = None,
        ttl: float | None = None,
        timeout: float | None = DEFAULT,
    ) -> Ref:
        """Folds the first `count` inputs to arrive into one new object.

        Nodes that hold inputs fold them on the way to this node. The result streams to its readers while it grows. The
        reduce ends with this client: if it closes or its process ends before the result is complete, readers of the
        result get `ObjectLost`.

        Args:
            inputs: refs or names of arrays with the same dtype, unit and shape, each listed once. They need not exist
                yet, and can be results of other reduces.
            op: "sum", "min", "max", "prod" or "mean", or for bool "any" or "all", element by element. Integers wrap
                around on overflow. min and max return NaN or NaT if an element is one. mean takes floats and complex.
                Floats are added in order of arrival, so the last bits of a sum can differ between runs.
                docs/values.md lists the dtypes of each op.
            count: number of inputs to fold; None means all. Later inputs are ignored.
            name: name of the result, as in `put`. None creates an id. From now on no other client can put the name.
            ttl: seconds until the result is deleted, as in `put`, counted from when it is complete.
            timeout: seconds for the inputs to arrive and be folded. After that the reduce fails: `get` and `inputs`
                raise `Timeout`, which names the missing inputs, or `StoreFull` if only memory for the result is
                missing.

        Returns:
            The ref of the result, immediately. `get` waits for it, `ref.inputs()` returns the inputs that were folded,
            and `ref.lost()` those that are lost.

        Raises:
            InvalidArgument: the list is empty or has an input twice, `count` is below 1 or above the number of inputs,
                or `ttl` is not positive.
            NameTaken: an object with that name exists, or another reduce produces it.
            ObjectDeleted: an input was deleted before it was folded; an input of more than 2 MiB, before the last input
                arrived. `get` on the result raises this too.
            ShapeMismatch: two inputs, which the message names, differ in shape or dtype. `get` on the result raises
                this too.
            UnknownOp: the op is not one of these.
            UnsupportedDtype: an input is not an array, or the op does not support its dtype. `get` on the result raises
                this too.

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
        timeout: float | None = DEFAULT,
    ) -> Ref:
        """`reduce`, for asyncio.

        Asyncio:
            It returns once the reduce is accepted. To cancel the reduce, `delete` the result.
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
        native, limit = self._open_within(self._limit(timeout))
        return native.start_reduce(texts, check_op(op), number, text, check_ttl(ttl), limit)
