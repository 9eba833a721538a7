"""The verbs: what a process does with objects through the node of its host."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, overload

from hoplite import _native, forks, values
from hoplite._arguments import (
    check_after,
    check_copies,
    check_count,
    check_inputs,
    check_keep,
    check_list,
    check_op,
    check_outs,
    check_ref,
    check_refs,
    check_shape,
    check_timeout,
    left,
)
from hoplite._into import fill
from hoplite._listing import ATTEMPTS, questions
from hoplite._loop import is_in_loop
from hoplite._several import Several
from hoplite._twins import Twins
from hoplite.buffer import Buffer
from hoplite.errors import ForkedClient, GetTimeout, HopliteError, InvalidArgument, NameTaken, NodeDown
from hoplite.location import Location, Watch
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from hoplite.node import Node


# How long a client that may reconnect waits for the next node, also where nobody may wait, and between two looks.
RECONNECT_S = 10.0
IN_LOOP_S = 0.02
RECONNECT_POLL_S = 0.05

# What the native client says of a wait that its close ended.
CLOSED = "this client is closed; make another by hoplite.init() or node.client()"

# One object, not several. Made once: a union would be for each get.
_ONE = (Ref, str)


class Client(Twins):
    """A process's attachment to the node of its host, by `hoplite.init()`, `hoplite.connect()` or `node.client()`.

    All methods may be called from several threads at once and release the GIL while they wait. Every `timeout` is in
    seconds: 0 asks without waiting, None waits as long as the awaited thing can still come to exist. A `get`
    without a timeout tells the log "hoplite" now and then what it waits for. Ctrl-C ends any of them. Each verb has a
    twin for asyncio with the suffix `_async`, which takes the same arguments; cancelling it takes back what it asked
    for.

    Any method raises `NodeDown` once the client is closed, or the node has closed or died; one that waits does so at
    once. In a child made by fork a client attaches anew when it is first used, and raises `ForkedClient` if the
    parent's node has no socket. If the node is frozen, a call with a timeout ends at that time with `GetTimeout`, or
    after 5 s with `NodeDown` if that is later.

    Args:
        native: the attachment itself.
        node: the node, where it is embedded in this process.
        path: the Unix socket of the node, for a child to attach to.
        allow_pickle: whether values that take a pickle may be put and got; see `put`.
        reconnect: whether to attach to the next node that serves the path when this one is gone; see `hoplite.init`.
    """

    def __init__(
        self,
        native: _native.Client,
        node: Node | None = None,
        *,
        path: str | None = None,
        allow_pickle: bool = True,
        reconnect: bool = False,
    ) -> None:
        self._native = native
        self._node = node
        self._path = path
        self._allow_pickle = allow_pickle
        self._reconnect = reconnect
        self._reconnecting = threading.Lock()
        self._closed = False
        # Set in a child made by fork until it has attached anew.
        self._forked = False
        forks.register(self)

    @property
    def node(self) -> Node | None:
        """The node, if it is embedded in this process; else None."""
        return self._node

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def promise(self) -> Ref:
        """Returns the ref of an object that does not exist yet, so that others can wait for it, or reduce it, already.

        Keep the promise by `put`, `create` or `reduce` with `name=` the ref; only this client can. Whoever waits is
        told by this host, while a name is known to whichever hosts its hash says: small objects arrive sooner.

        If this client closes, or its process ends, before it has made the object, whoever waits gets `ObjectLost`;
        `delete` takes the promise back.

        Examples:
            >>> ref = hp.promise()
            >>> hp.put(b"as I said", name=ref) == ref
            True
            >>> bytes(hp.get(ref))
            b'as I said'
        """
        return Ref(self._open().start_promise().result(), self)

    def put(
        self,
        value: object,
        *,
        name: Ref | str | None = None,
        keep: int | None = None,
        copies: int = 1,
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
            exist_ok: return the ref of the living object if the name is taken, whatever its bytes and however many
                copies of it there are.
            timeout: seconds to wait for room in the store, and for the copies.

        Returns:
            The object's ref, when its bytes are in the store, and so many nodes hold them.

        Raises:
            GetTimeout: the copies were not made in time, and the object is there all the same; or its memory was not
                made, or its name not confirmed, and there is no object.
            InvalidArgument: the name is empty or too long, or a ref that this client did not promise or has put
                already; `keep` or `copies` is below 1, or the name has no number; or pickle can't take the value.
            NameTaken: an object of that name is alive.
            ObjectDeleted: it was deleted before `copies` nodes held it; or the promised ref was deleted before this
                put; or the network was cut, somebody put the name on the other side, and that object stays.
            StoreFull: there was no room in time, or the object is larger than the store.
            UnsupportedDtype: the value takes a pickle, and this client has `allow_pickle=False`; or it is on another
                device.

        Examples:
            >>> ref = hp.put(b"weights of step 17", name="policy/17", keep=2)
            >>> bytes(hp.get("policy/17"))
            b'weights of step 17'
            >>> hp.put(b"others", name="policy/17", exist_ok=True)
            Ref('policy/17')
        """
        text = None if name is None else check_ref(name)
        kept = check_keep(keep, text)
        wanted = check_copies(copies)
        limit = check_timeout(timeout)
        native = self._open()
        begun = time.monotonic()
        what = values.encode(value, allow_pickle=self._allow_pickle)
        try:
            ref = Ref(native.put(what, what.parts, text, limit), self)
        except NameTaken:
            if exist_ok and text is not None:
                return Ref(text, self)
            raise
        if wanted > 1:
            native.start_keep(str(ref), wanted, left(limit, begun)).result()
        if kept is not None and text is not None:
            # If time is over the object is there all the same; the next put prunes what is left.
            with contextlib.suppress(GetTimeout):
                native.start_prune(text, kept, left(limit, begun)).result()
        return ref

    def create(
        self,
        shape: int | Sequence[int],
        dtype: object = "float32",
        *,
        name: Ref | str | None = None,
        copies: int = 1,
        timeout: float | None = None,
    ) -> Buffer:
        """Makes space for an array in the store, to be filled in place and sealed: no copy at all.

        Args:
            shape: length of each axis, or of the only one.
            dtype: "float32", "datetime64[ns]", numpy.float32, torch.float32, ml_dtypes.bfloat16 and the like; or
                "bytes", whose shape is their number.
            name: what to call the object, as for `put`; None mints an id. Either way `buf.ref` is known at once.
            copies: how many nodes are to hold the object, as for `put`; `seal` waits for them.
            timeout: seconds to wait for room in the store.

        Returns:
            The space: `buf[...] = values`, then `ref = buf.seal()`; or `with hp.create(...) as buf:`.

        Raises:
            InvalidArgument: the shape has a negative axis, the name is empty or too long, or `copies` is below 1.
            NameTaken: an object of that name is alive; for an object of up to 32 KiB `seal` finds out.
            StoreFull: there was no room in time, or the object is larger than the store.
            UnsupportedDtype: arrays of that dtype can't be held.

        Examples:
            >>> with hp.create((2, 3), "int64", name="counts/1") as buf:
            ...     buf[...] = 7
            >>> int(hp.get("counts/1").sum())
            42
        """
        wanted = check_copies(copies)
        what, text, pending = self._start_create(shape, dtype, name, timeout)
        return Buffer(self, what, text, None if pending is None else pending.result(), wanted)

    def _start_create(
        self, shape: int | Sequence[int], dtype: object, name: Ref | str | None, timeout: float | None
    ) -> tuple[values.Encoded, str | None, _native.Pending[_native.Space] | None]:
        """Asks for the space of an array; of one so small that it needs none, it asks nothing."""
        what = check_shape(shape, dtype)
        text = None if name is None else check_ref(name)
        limit = check_timeout(timeout)
        native = self._open()
        is_small = what.nbytes <= _native.INLINE_BYTES_MAX
        return what, text, None if is_small else native.start_create(what, text, limit)

    @overload
    def get(
        self, ref: Ref | str, *, out: Any = None, copy: bool | None = None, timeout: float | None = None
    ) -> Any: ...
    @overload
    def get(
        self,
        ref: Iterable[Ref | str],
        *,
        out: Sequence[Any] | None = None,
        copy: bool | None = None,
        timeout: float | None = None,
    ) -> list[Any]: ...

    def get(
        self,
        ref: Ref | str | Iterable[Ref | str],
        *,
        out: Any = None,
        copy: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Waits until an object is complete on this host and returns it without a copy.

        Args:
            ref: what `put`, `reduce` or `latest` returned, here or elsewhere, or a name; it need not exist yet, but a
                name that was deleted counts as deleted until it is put again. Of several, a list, all are got at once.
            out: an array, CPU tensor or writable buffer of the same dtype and shape, C-contiguous, to copy the object
                into while it arrives; of several, a list of them. After an error its contents are undefined.
            copy: None copies only tensors, for torch has no read-only ones and a write into shared memory kills the
                process; False copies nothing; True makes private, writable copies.
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
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.
            ShapeMismatch: `out` has another dtype or shape.
            StoreFull: this node had no room for a copy in time, or will never have it for all of a list, which are here
                together at the end; with `out` they need not be. Two lists at a time that fit only one after the other
                wait for each other: give them a timeout.
            Undecodable: a pickled object can't be read here, for want of its class for instance, or this client has
                `allow_pickle=False`.
            UnsupportedDtype: the value needs a package that is not installed (numpy, ml_dtypes, torch, pyarrow).

        Examples:
            >>> refs = [hp.put({"step": step}) for step in range(3)]
            >>> hp.get(refs, timeout=10)
            [{'step': 0}, {'step': 1}, {'step': 2}]
            >>> hp.get("not/yet", timeout=0)
            Traceback (most recent call last):
            hoplite.errors.GetTimeout: object not/yet did not come within 0.000 s: nobody has put it
        """
        limit = check_timeout(timeout)
        if not isinstance(ref, _ONE):
            return self._get_several(check_list("refs to get", ref), out, copy, limit)
        text = check_ref(ref)
        if out is None:
            return self._decode(self._open().get(text, limit), copy)
        return fill(self._open(), [text], [out], limit)[0]

    def _get_several(self, texts: list[str], out: Any, copy: bool | None, limit: float | None) -> list[Any]:
        outs = check_outs(out, len(texts))
        native = self._open()
        if outs is not None:
            return fill(native, texts, outs, limit)
        return self._decode_all(Several(native, texts, limit).results(), copy)

    def _decode_all(self, views: list[_native.View], copy: bool | None) -> list[Any]:
        try:
            return [self._decode(view, copy) for view in views]
        finally:
            # What an error's frames keep must not pin memory.
            views.clear()

    def _decode(self, view: _native.View, copy: bool | None) -> Any:
        return values.decode(view, copy=copy, allow_pickle=self._allow_pickle)

    def wait(
        self, refs: Iterable[Ref | str], count: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[Ref], list[Ref]]:
        """Waits until some of several objects have come.

        An object has come when all of its bytes are somewhere in the cluster, or when it is certain that it can't come
        (deleted, lost): in both cases `get` waits for nobody but the network.

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
        texts, number = self._check_wait(refs, count)
        ready = self._open().start_wait(texts, number, check_timeout(timeout)).result() if number else []
        return self._split(texts, ready)

    def _check_wait(self, refs: Iterable[Ref | str], count: int | None) -> tuple[list[str], int]:
        texts = check_list("refs to wait for", refs)
        if len(set(texts)) < len(texts):
            raise InvalidArgument("a ref is among the refs to wait for twice; name each once")
        number = check_count(count, len(texts), least=0)
        return texts, len(texts) if number is None else number

    def _split(self, texts: list[str], ready: list[int]) -> tuple[list[Ref], list[Ref]]:
        came = set(ready)
        rest = [Ref(text, self) for place, text in enumerate(texts) if place not in came]
        return [Ref(texts[place], self) for place in ready], rest

    def reduce(
        self,
        inputs: Iterable[Ref | str],
        op: str = "sum",
        *,
        count: int | None = None,
        name: Ref | str | None = None,
        timeout: float | None = None,
    ) -> Ref:
        """Folds the first `count` inputs to arrive into one new object.

        Nodes that hold inputs fold them on the way to this one. The result streams to whoever gets it while it grows.

        Args:
            inputs: refs or names of arrays of one dtype (and unit) and shape, each once; not yet created is fine, and
                results of other reduces are too.
            op: "sum", "min", "max", "prod" or "mean", or of bool "any" or "all", element by element. Integers wrap
                around on overflow; min and max are NaN or NaT where an element is; mean is for floats and complex.
                Floats are added in order of arrival, so the last bits of a sum can differ from run to run.
                docs/values.md says which op goes with which dtype.
            count: how many inputs to fold; None means all of them. Spares that arrive later are left alone.
            name: what to call the result, as for `put`; None mints an id. Nobody else can put the name from now on.
            timeout: seconds until the inputs must have arrived and the result be folded. After that the reduce is
                given up, and `get` and `inputs` raise `GetTimeout`, which names the inputs that are missing; or
                `StoreFull`, if only room for the result is missing.

        Returns:
            A ref at once; `get` on it waits, `ref.inputs()` tells what was folded in, `ref.lost()` what can't be.

        Raises:
            InvalidArgument: no inputs, one of them twice, or a count below 1 or above their number.
            NameTaken: an object of that name is alive, or is to be the result of another reduce.
            ObjectDeleted: an input was deleted; also raised by `get` on the result.
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
        return Ref(self._start_reduce(inputs, op, count, name, timeout).result(), self)

    def _start_reduce(
        self, inputs: Iterable[Ref | str], op: str, count: int | None, name: Ref | str | None, timeout: float | None
    ) -> _native.Pending[str]:
        texts = check_inputs(inputs)
        number = check_count(count, len(texts))
        text = None if name is None else check_ref(name)
        return self._open().start_reduce(texts, check_op(op), number, text, check_timeout(timeout))

    def inputs(self, ref: Ref | str, *, timeout: float | None = None) -> list[Ref]:
        """Tells which inputs a reduce of this node folded; see `Ref.inputs`."""
        texts = self._open().start_inputs(check_ref(ref), check_timeout(timeout)).result()
        return [Ref(text, self) for text in texts]

    def lost(self, ref: Ref | str, *, timeout: float | None = None) -> list[Ref]:
        """Tells which inputs of a reduce of this node can't come any more; see `Ref.lost`."""
        texts = self._open().start_lost(check_ref(ref), check_timeout(timeout)).result()
        return [Ref(text, self) for text in texts]

    def delete(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None) -> None:
        """Deletes all copies of objects everywhere.

        Values that `get` returned stay valid; their memory is free once they are garbage. Whoever waits for a deleted
        object is told. A name is free at once.

        Args:
            refs: one ref or name, or several; none is fine.
            timeout: seconds to wait until the owners of the objects know.

        Examples:
            >>> ref = hp.put(b"x", name="scratch/1")
            >>> hp.delete(["scratch/1"])
            >>> ref = hp.put(b"y", name="scratch/1")
        """
        texts = check_refs(refs)
        limit = check_timeout(timeout)
        self._open().start_delete(texts, limit).result()

    def latest(self, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """Finds the newest object under a prefix; waits for one that is newer than a number.

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
        return Ref(self._start_latest(prefix, after, timeout).result(), self)

    def _start_latest(self, prefix: str, after: int | None, timeout: float | None) -> _native.Pending[str]:
        text = check_ref(prefix)
        if not text.endswith("/"):
            raise InvalidArgument(f'the prefix {text!r} does not end in "/"; write {text + "/"!r}')
        number = check_after(after)
        return self._open().start_latest(text, number, check_timeout(timeout))

    @overload
    def locations(
        self, ref: Ref | str, *, watch: Literal[False] = False, timeout: float | None = None
    ) -> list[Location]: ...
    @overload
    def locations(
        self, ref: Ref | str, *, watch: Literal[True], timeout: float | None = None
    ) -> Iterator[Location]: ...

    def locations(
        self, ref: Ref | str, *, watch: bool = False, timeout: float | None = None
    ) -> list[Location] | Iterator[Location]:
        """Tells which nodes hold an object, complete or in part.

        Args:
            ref: the object; it need not exist.
            watch: yield locations as they come instead: each when its node begins to hold a copy, and again when that
                is complete.
            timeout: seconds to wait for the answer of the object's owner; with `watch`, for the next location.

        Returns:
            The locations now, none of an object that nobody has put; or with `watch` an iterator that ends with
            the object: by `ObjectDeleted` or `ObjectLost`.

        Raises:
            GetTimeout: nothing new came in time.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.

        Examples:
            >>> ref = hp.put(b"x" * 100_000)
            >>> [location.complete for location in hp.locations(ref)]
            [True]

        Source: the synchronous and asynchronous location queries of Hoplite (SIGCOMM 2021), section 3.2.
        """
        text, limit = check_ref(ref), check_timeout(timeout)
        native = self._open()
        if not watch:
            return [Location(*row) for row in native.start_locations(text, None, limit).result()]
        return self._watch_locations(text, limit)

    def _watch_locations(self, text: str, limit: float | None) -> Iterator[Location]:
        watch = Watch()
        while True:
            yield from watch.news(self._open().start_locations(text, watch.known, limit).result())

    def status(self) -> dict[str, Any]:
        """Tells how the node is.

        Returns:
            "id", "address" and "rack" (None if none was told) of the node; "members" (a list of such triples, this node
            among them, each with "suspected": None, or "seconds" since it was last known to answer and "by", the node
            that found so; "blocks_corrupt", how many blocks it has sent to this node that differ from their checksums:
            they are fetched again, and after three of them the member sends only what nobody else has; and "via": None,
            or by way of which other member it is reached, if it can't be reached directly); "lost" (former members that
            are called again, with "seconds" and "reason"); "objects" (number of local copies); "store" ("used" and
            "capacity", bytes); "counters" since the node's start, which docs/counters.md explains.
        """
        status: dict[str, Any] = json.loads(self._open().start_status().result())
        return status

    def stats(self) -> dict[str, int]:
        """Tells the numbers of `status` alone, for a log or a graph.

        Returns:
            "members", "objects", "waiting" (questions without an answer), "reduces" (under way), "store_used",
            "store_capacity" and "store_mapped" (bytes), and every counter since the node's start; docs/counters.md
            explains each.
        """
        return self._numbers(self.status())

    @staticmethod
    def _numbers(status: dict[str, Any]) -> dict[str, int]:
        store = status["store"]
        return {
            "members": len(status["members"]),
            **{name: status[name] for name in ("objects", "waiting", "reduces")},
            **{f"store_{name}": store[name] for name in ("used", "capacity", "mapped")},
            **status["counters"],
        }

    def objects(
        self, prefix: str = "", *, everywhere: bool = False, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Lists the copies that this node holds, or the objects of the whole cluster.

        Args:
            prefix: only refs that begin so, such as "policy/"; all do with nothing.
            everywhere: ask every node for the living objects it is the owner of, instead of this one for its copies.
            timeout: seconds to wait for the other nodes.

        Returns:
            Of each "ref", "bytes", "dtype" and "shape" (None of what is no array), "what" (both in words) and "form".
            Of a copy of this node also "state", "pinned", "readers" and "instance"; of an object of the cluster
            "copies" and "partial", how many nodes have all of it and a part of it, in the order of the refs.

        Raises:
            GetTimeout: a node did not answer in time.

        Examples:
            >>> ref = hp.put(b"weights", name="listed/1")
            >>> [(each["ref"], each["copies"]) for each in hp.objects("listed/", everywhere=True, timeout=10)]
            [('listed/1', 1)]
        """
        limit = check_timeout(timeout)
        if not everywhere:
            objects: list[dict[str, Any]] = json.loads(self._open().start_objects().result())
            return [each for each in objects if each["ref"].startswith(prefix)]
        begun = time.monotonic()
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(NodeDown):
                return self._list(prefix, limit, begun)
        return self._list(prefix, limit, begun)

    def _list(self, prefix: str, limit: float | None, begun: float) -> list[dict[str, Any]]:
        listing = questions(member["id"] for member in self.status()["members"])
        try:
            question = next(listing)
            while True:
                page = self._open().start_list(question[0], prefix, question[1], left(limit, begun)).result()
                question = listing.send(page)
        except StopIteration as end:
            found: list[dict[str, Any]] = end.value
            return found

    def close(self) -> None:
        """Detaches from the node. Objects stay, and so do values that `get` returned. Closing twice is fine.

        Calls of this client that wait in other threads, or in an event loop, raise `NodeDown` at once.
        """
        if not self._closed:
            self._closed = True
            if not self._forked:
                self._native.close()

    def _open(self) -> _native.Client:
        if self._closed:
            raise NodeDown(CLOSED)
        if self._forked:
            self._attach_anew()
        if self._reconnect and self._native.is_node_gone():
            self._reattach()
        return self._native

    def _reattach(self) -> None:
        """Attaches to the node that takes the place of one that is gone, once it is there."""
        assert self._path is not None
        patience = IN_LOOP_S if is_in_loop() else RECONNECT_S
        until = time.monotonic() + patience
        why = "another thread still looks for it"
        # Whoever comes meanwhile finds it attached.
        if self._reconnecting.acquire(timeout=patience):
            try:
                while self._native.is_node_gone() and not self._closed:
                    try:
                        native = _native.connect(self._path, max(0.0, until - time.monotonic()))
                    except HopliteError as error:
                        why = str(error)
                        if time.monotonic() >= until:
                            break
                        time.sleep(min(patience, RECONNECT_POLL_S))
                    else:
                        self._native = native
            finally:
                self._reconnecting.release()
        if self._closed:
            self._native.close()
            raise NodeDown(CLOSED)
        if self._native.is_node_gone():
            raise NodeDown(f"the node of {self._path} is gone, and no other is there after {patience:g} s: {why}")

    def _attach_anew(self) -> None:
        """In a child made by fork: nothing of the parent's attachment can be used, but its node can."""
        if self._path is None:
            raise ForkedClient(
                "the node is embedded in the parent of this process and has no socket to attach to; start it with one, "
                "or run hoplite.init(embedded=True) here"
            )
        try:
            native = _native.connect(self._path, 10.0)
        except HopliteError as error:
            raise ForkedClient(
                f"this process was forked and can't attach to the node of its parent ({error}): call hoplite.init() "
                "here to find another node or to start one, or run hoplite node before the fork"
            ) from None
        self._native = native
        self._node = None
        # A thread of the parent may have held it.
        self._reconnecting = threading.Lock()
        self._forked = False

    def _discard(self, text: str) -> None:
        """Deletes what nobody will learn of: its task was cancelled as it came to be."""
        try:
            self._open().start_delete([text], 10.0)
        except HopliteError:
            # The node is gone, and with it the object.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "a client can't be sent to another process: send refs, and call hoplite.init() or hoplite.connect() there"
        )

    def __repr__(self) -> str:
        where = f"node {self._node.id}" if self._node is not None else "attached"
        return f"<hoplite.Client {'closed' if self._closed else where}>"
