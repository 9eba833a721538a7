"""The verbs: what a process does with objects through the node of its host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hoplite import array
from hoplite._arguments import (
    check_after,
    check_count,
    check_inputs,
    check_op,
    check_ref,
    check_refs,
    check_timeout,
)
from hoplite.errors import InvalidArgument, NodeDown
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from hoplite import _native
    from hoplite.node import Node


class Client:
    """A process's attachment to the node of its host, by `hoplite.init()`, `hoplite.connect()` or `node.client()`.

    All methods may be called from several threads at once and release the GIL while they wait. Every `timeout` is in
    seconds: 0 asks without waiting, None waits as long as the awaited thing can still come to exist. Ctrl-C ends any of
    them.

    Any method raises `NodeDown` once the node has closed or died, and `ForkedClient` in a child made by fork if the
    node is embedded in the parent.

    Args:
        native: the attachment itself.
        node: the node, where it is embedded in this process.
    """

    def __init__(self, native: _native.Client, node: Node | None = None) -> None:
        self._native = native
        self._node = node
        self._closed = False

    @property
    def node(self) -> Node | None:
        """The node, if it is embedded in this process; else None."""
        return self._node

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def put(self, value: object, *, name: str | None = None, timeout: float | None = None) -> Ref:
        """Copies a value into the store as a new immutable object.

        Others can stream the object while it is being copied. It stays, in at least one copy, until `delete`.

        Args:
            value: a NumPy array or scalar of float16, bfloat16 (package ml_dtypes), float32, float64, int8 to int64 or
                uint8 to uint64, any shape, 0-d and empty ones too; or bytes, bytearray or memoryview.
            name: what to call the object, such as "policy/17"; None mints an id.
            timeout: seconds to wait for room in the store.

        Returns:
            The object's ref, when its bytes are in the store.

        Raises:
            InvalidArgument: the name is empty or too long, or the timeout is negative or NaN.
            NameTaken: an object of that name is alive.
            StoreFull: there was no room in time, or the object is larger than the store.
            UnsupportedDtype: the value is of another type.
        """
        text = None if name is None else check_ref(name)
        limit = check_timeout(timeout)
        data, kind, shape = array.to_buffer(value)
        return Ref(self._open().put(data, kind, shape, text, limit), self)

    def get(self, ref: Ref | str, *, timeout: float | None = None) -> Any:  # noqa: ANN401 - as it was put
        """Waits until an object is complete on this host and returns it without a copy.

        Args:
            ref: what `put`, `reduce` or `latest` returned, here or elsewhere, or a name; it need not exist yet, but a
                name that was deleted counts as deleted until it is put again.
            timeout: seconds to wait for the whole object.

        Returns:
            An array as a read-only NumPy array, bytes as a read-only memoryview (`bytes(value)` copies it), both over
            the store's own memory: they stay valid after `delete` and after `close`, and hold the memory until they
            are garbage.

        Raises:
            GetTimeout: the object is not here in time; with 0, it was not here already.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.
            StoreFull: this node has no room for a copy.
            UnsupportedDtype: the array needs a package that is not installed (numpy, ml_dtypes).
        """
        return array.from_view(self._open().get(check_ref(ref), check_timeout(timeout)))

    def reduce(
        self,
        inputs: Iterable[Ref | str],
        op: str = "sum",
        *,
        count: int | None = None,
        timeout: float | None = None,
    ) -> Ref:
        """Folds the first `count` inputs to arrive into one new object.

        Nodes that hold inputs fold them on the way to this one. The result streams to whoever gets it while it grows.

        Args:
            inputs: refs or names of arrays of one dtype and shape, each once; not yet created is fine, and results of
                other reduces are too.
            op: "sum", "min", "max", "prod" or "mean", element by element. Integers wrap around on overflow; min and max
                of floats are NaN where an element is; mean is for floats. Floats are added in order of arrival, so
                the last bits of a sum can differ from run to run.
            count: how many inputs to fold; None means all of them. Spares that arrive later are left alone.
            timeout: seconds to wait for the reduce to be accepted, not for its result.

        Returns:
            A ref at once; `get` on it waits, `ref.inputs()` tells what was folded in.

        Raises:
            InvalidArgument: no inputs, one of them twice, or a count below 1 or above their number.
            ObjectDeleted: an input was deleted; also raised by `get` on the result.
            ShapeMismatch: two inputs differ in shape or dtype; names both; also raised by `get` on the result.
            UnknownOp: the op is none of these.
            UnsupportedDtype: the inputs are bytes, or integers for mean; also raised by `get` on the result.

        Source: Hoplite (SIGCOMM 2021), section 3.4.
        """
        texts = check_inputs(inputs)
        number = check_count(count, len(texts))
        limit = check_timeout(timeout)
        return Ref(self._open().reduce(texts, check_op(op), number, limit), self)

    def inputs(self, ref: Ref | str, *, timeout: float | None = None) -> list[Ref]:
        """Tells which inputs a reduce of this node folded; see `Ref.inputs`."""
        texts = self._open().inputs(check_ref(ref), check_timeout(timeout))
        return [Ref(text, self) for text in texts]

    def delete(self, refs: Ref | str | Iterable[Ref | str], *, timeout: float | None = None) -> None:
        """Deletes all copies of objects everywhere.

        Values that `get` returned stay valid; their memory is free once they are garbage. Whoever waits for a deleted
        object is told. A name is free at once.

        Args:
            refs: one ref or name, or several; none is fine.
            timeout: seconds to wait until the owners of the objects know.
        """
        texts = check_refs(refs)
        limit = check_timeout(timeout)
        self._open().delete(texts, limit)

    def latest(self, prefix: str, *, after: int = -1, timeout: float | None = None) -> Ref:
        """Finds the newest object under a prefix; waits for one that is newer than a number.

        Args:
            prefix: the text before the number, with the slash: "policy/" for "policy/17".
            after: only a higher number than this will do; -1 takes any.
            timeout: seconds to wait for such a name; 0 asks without waiting.

        Returns:
            The ref with the highest number that is alive; `ref.number` is that number.

        Raises:
            GetTimeout: no such name came in time.
            InvalidArgument: the prefix does not end in "/", or `after` is below -1.
        """
        text = check_ref(prefix)
        if not text.endswith("/"):
            raise InvalidArgument(f'the prefix {text!r} does not end in "/"')
        number = check_after(after)
        return Ref(self._open().latest(text, number, check_timeout(timeout)), self)

    def status(self) -> dict[str, Any]:
        """Tells how the node is.

        Returns:
            "id" and "address" of the node; "members" (a list of such pairs, this node among them); "objects" (number of
            local copies); "store" ("used" and "capacity", bytes); "counters" since the node's start: "bytes_direct"
            (sent from objects that this node's clients put), "bytes_relayed" (sent on from copies that came over the
            network, or from results that grow), "bytes_folded_remote" and "bytes_folded_local" (folded away from, and
            at, the node that called the reduce), "fetches", "serves" and others.
        """
        status: dict[str, Any] = json.loads(self._open().status())
        return status

    def objects(self) -> list[dict[str, Any]]:
        """Lists the copies that this node holds: "ref", "bytes", "state", "pinned" and others of each."""
        objects: list[dict[str, Any]] = json.loads(self._open().objects())
        return objects

    def close(self) -> None:
        """Detaches from the node. Objects stay, and so do values that `get` returned. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._native.close()

    def _open(self) -> _native.Client:
        if self._closed:
            raise NodeDown("this client is closed; make another by hoplite.init() or node.client()")
        return self._native

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = f"node {self._node.id}" if self._node is not None else "attached"
        return f"<hoplite.Client {'closed' if self._closed else where}>"
