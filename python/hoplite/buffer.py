"""Objects created in place: memory in the store that is filled, then sealed."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

from hoplite import _native, values
from hoplite._arguments import left
from hoplite._shared import DEFAULT
from hoplite._waits import IN_LOOP, IN_THREAD, finish
from hoplite.errors import InvalidArgument, ObjectLost
from hoplite.ref import Ref

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from hoplite._client import Client
    from hoplite._waits import Waits
    from hoplite.values import Encoded


class Buffer:
    """Memory for one object, from `Client.create`: fill it, then `seal` it. Readers receive it only after that.

    `buf[...] = values` fills it; `buf.array` is the memory as a NumPy array. Initially the bytes are undefined. A
    `with` statement seals the buffer at the end of the block, or discards it if the block raises. A buffer that is
    garbage-collected before `seal` creates no object.

    Examples:
        >>> buf = hp.create(3, "float32")
        >>> buf[:] = [1, 2, 3]
        >>> hp.get(buf.seal())
        array([1., 2., 3.], dtype=float32)

    Args:
        client: client that creates the object.
        what: dtype, shape and size.
        name: name of the object, or a reserved ref; None creates an id.
        space: memory in the store; None for a small object, which travels inside messages.
        replicas: number of nodes that keep a copy after the seal.
        ttl: seconds after which a small object is deleted. For a large object, `space` has this limit.

    Raises:
        InvalidArgument: the name is not valid.
    """

    def __init__(
        self,
        client: Client,
        what: Encoded,
        name: str | None,
        space: _native.Space | None,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> None:
        if space is None and name is not None:
            # Otherwise the name is checked only at the seal.
            _native.check_name(name)
        self._client = client
        self._what = what
        self._name = name
        self._space = space
        self._replicas = replicas
        self._ttl = ttl
        # Set before the object exists if the property `ref` was read.
        self._ref: Ref | None = None
        # Whether that ref was reserved for this buffer alone.
        self._reserved = False
        # Memory of a small object, which travels inside messages and is put at once.
        self._small = bytearray(what.nbytes) if space is None else None
        self._open = True
        # A forked child inherits this object, and its client may be attached again.
        self._pid = os.getpid()

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis; for bytes, their number."""
        return self._what.shape

    @property
    def dtype(self) -> str:
        """Name of the element type, or "bytes"."""
        return self._what.kind

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._what.nbytes

    @property
    def ref(self) -> Ref:
        """The ref of the future object. Processes that receive it can wait for the object before `seal`.

        Raises:
            InvalidArgument: the buffer was discarded.
            ObjectLost: the buffer belongs to the process from which this one was forked.
        """
        if self._ref is None:
            self._check_open()
            text = self._name if self._space is None else self._space.ref
            if text is None:
                text = self._name = self._client._open().start_reserve(None, None).result()
                self._reserved = True
            self._ref = Ref(text, self._client)
        return self._ref

    @property
    def array(self) -> Any:  # noqa: ANN401 - NumPy is optional
        """The memory as a writable NumPy array, or as a memoryview for bytes. Each access returns a new view.

        Drop all views before `seal`: they could change the object.

        Raises:
            InvalidArgument: the buffer was sealed or discarded.
        """
        self._check_open()
        memory = self._space if self._small is None else self._small
        assert memory is not None
        return values.empty(self._what.kind, self._what.shape, memory)

    def seal(self, *, timeout: float | None = DEFAULT) -> Ref:
        """Completes the object. From now on it exists and never changes.

        If the node of this host does not reply in time, there is no object, and the buffer is closed: create another
        to retry. A paused node seals the object when it continues, and deletes it immediately, while this process
        lives.

        Args:
            timeout: seconds to wait for the node of this host, for the name of a small object (`create` already claimed
                that of a large one), and for the replicas.

        Returns:
            The object's ref.

        Raises:
            Timeout: the name or the replicas were not confirmed in time, or the node did not reply. If only replicas
                are missing, the object exists.
            InvalidArgument: the buffer was sealed or discarded before, or views of it exist: `del` them first.
            NameTaken: another client has put the name of a small object meanwhile.
            ObjectDeleted: the object was deleted before its replicas were complete; or the name was put on both sides
                of a network partition, and the other object stays. Without replicas, deleting the object while it is
                filled does not make `seal` fail.
        """
        return finish(self._sealed(IN_THREAD, self._client._limit(timeout)))

    async def seal_async(self, *, timeout: float | None = DEFAULT) -> Ref:
        """`seal`, for asyncio."""
        return await self._sealed(IN_LOOP, self._client._limit(timeout))

    async def _sealed(self, waits: Waits, limit: float | None) -> Ref:
        begun = time.monotonic()
        was_open = self._open
        try:
            self._ref = Ref(await waits.answer(self._seal(limit)), self._client)
        except BaseException:
            # The buffer can't be sealed again: end the calls that wait for its ref.
            if was_open and not self._open and self._reserved:
                self._take_back()
            raise
        self._ref._replicas = 1
        if self._replicas > 1:
            native, rest = self._client._open_within(left(limit, begun))
            keeping = native.start_replicate(str(self._ref), self._replicas, rest)
            self._ref._replicas = await waits.answer(keeping)
        return self._ref

    def discard(self) -> None:
        """Frees the memory without creating an object, once no view of it exists. A second call does nothing."""
        if self._open and self._space is not None and self._is_mine():
            self._space.discard()
            # Existing views keep the memory alive; the last one frees it.
            self._space = None
        if self._open:
            self._take_back()
        self._ref = None
        self._open = False

    def _seal(self, limit: float | None) -> _native.Pending[str]:
        self._check_open()
        if self._space is not None:
            pending = self._space.seal(limit)
        else:
            small = self._check_unviewed()
            native, limit = self._client._open_within(limit)
            pending = native.start_put_small(self._what, [small], self._name, self._ttl, limit)
        self._open = False
        return pending

    def _take_back(self) -> None:
        """Ends calls that wait for a small object that will not exist. For a large one the node does this."""
        if self._small is None or self._name is None or not self._is_mine():
            return
        # Another client may still fill a slot.
        if self._reserved or (self._name.startswith("@") and not _native.is_slot(self._name)):
            self._client._discard(self._name)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidArgument(
                "the buffer is already sealed or discarded, and objects are immutable: create another buffer"
            )
        if not self._is_mine():
            # Only the process that created the buffer can seal it; writes of a forked child are not part of the object.
            raise ObjectLost("the buffer belongs to the process that created it: create another in this process")

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    def _check_unviewed(self) -> bytearray:
        small = self._small
        assert small is not None
        try:
            # Raises BufferError while a view exists.
            small.append(0)
        except BufferError:
            raise InvalidArgument(
                "writable views of the buffer exist, and could change the object after the seal: drop them first "
                "(del array), or fill it with buf[...] = values"
            ) from None
        del small[-1]
        return small

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: ANN401 - NumPy's protocol
        import numpy as np

        array = self.array
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __setitem__(self, index: Any, value: Any) -> None:  # noqa: ANN401 - as of an array
        self.array[index] = value

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401 - as of an array
        return self.array[index]

    def __len__(self) -> int:
        if not self._what.shape:
            raise TypeError("a buffer without axes has no length")
        return self._what.shape[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
        elif self._open:
            self.seal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()
        elif self._open:
            await self.seal_async()

    def __del__(self) -> None:
        if getattr(self, "_open", False) and self._is_mine():
            self._take_back()
            warnings.warn(
                f"{self!r} was dropped before seal, so its object does not exist: call seal or discard",
                ResourceWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        name = f" {self._name}" if self._name else ""
        state = "open" if self._open else "closed"
        return f"<hoplite.Buffer{name} {self._what.kind}{list(self._what.shape)} {state}>"
