"""An object that is made in place: space in the store to be filled, then sealed."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING, Any

from hoplite import _native, values
from hoplite._arguments import check_timeout, left
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
    """Space for one object, from `client.create`: fill it, then `seal` it. No reader sees it before that.

    `buf[...] = values` fills it, `buf.array` is the space as a NumPy array for everything else. The bytes are not zero
    at first. As a context manager it seals at the end of the block, and gives the space back if the block raises.
    Dropped unsealed it leaves no object.

    Examples:
        >>> buf = hp.create(3, "float32")
        >>> buf[:] = [1, 2, 3]
        >>> hp.get(buf.seal())
        array([1., 2., 3.], dtype=float32)

    Args:
        client: whose object it will be.
        what: dtype, shape and size.
        name: what to call the object; a name, or a ref that was promised.
        space: memory in the store; None for an object so small that it needs none.
        replicas: number of nodes that keep a copy when it is sealed.
        ttl: seconds after which a small object is deleted; of a large one the space knows it.

    Raises:
        InvalidArgument: the name is none.
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
            # No other part checks it before the seal.
            _native.check_name(name)
        self._client = client
        self._what = what
        self._name = name
        self._space = space
        self._replicas = replicas
        self._ttl = ttl
        # Known before the object exists, once `ref` was read.
        self._ref: Ref | None = None
        # Whether that was promised for this buffer alone.
        self._promised = False
        # What is small travels in messages and is put as a whole.
        self._small = bytearray(what.nbytes) if space is None else None
        self._open = True
        # A child made by fork has this object too, and perhaps a client of its own by then.
        self._pid = os.getpid()

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis; of bytes, their number."""
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
        """The ref that the object will have; others that are told of it can wait for the seal already.

        Raises:
            InvalidArgument: the buffer was given up.
            ObjectLost: it belongs to the process that this one was forked from.
        """
        if self._ref is None:
            self._check_open()
            text = self._name if self._space is None else self._space.ref
            if text is None:
                text = self._name = self._client._open().start_promise().result()
                self._promised = True
            self._ref = Ref(text, self._client)
        return self._ref

    @property
    def array(self) -> Any:  # noqa: ANN401 - NumPy is optional
        """The space as a writable NumPy array, or as a memoryview for bytes: a new view each time.

        All views must be gone before `seal`, for they could change the object.

        Raises:
            InvalidArgument: the buffer was sealed or given up.
        """
        self._check_open()
        memory = self._space if self._small is None else self._small
        assert memory is not None
        return values.empty(self._what.kind, self._what.shape, memory)

    def seal(self, *, timeout: float | None = None) -> Ref:
        """Says that all is filled: from now on the object exists and never changes.

        Args:
            timeout: seconds to wait for a small object's name (a large one has its name since `create`), and for the
                copies that `create` was asked for.

        Returns:
            The object's ref.

        Raises:
            Timeout: it took longer; once the name was there, so is the object.
            InvalidArgument: sealed or given up before, or views of it are alive: `del` them first.
            NameTaken: another client has put the name of a small object meanwhile.
            ObjectDeleted: it was deleted before there were the copies that `create` was asked for; or the network was
                cut, the name was put on the other side too, and that object stays. Otherwise what is deleted while
                it is filled has been put all the same.
        """
        return finish(self._sealed(IN_THREAD, check_timeout(timeout)))

    async def seal_async(self, *, timeout: float | None = None) -> Ref:
        """`seal`, for asyncio."""
        return await self._sealed(IN_LOOP, check_timeout(timeout))

    async def _sealed(self, waits: Waits, limit: float | None) -> Ref:
        begun = time.monotonic()
        was_open = self._open
        try:
            self._ref = Ref(await waits.answer(self._seal(limit)), self._client)
        except BaseException:
            # After that the buffer can't be sealed again, so those who wait for its ref are told.
            if was_open and not self._open and self._promised:
                self._take_back()
            raise
        self._ref._replicas = 1
        if self._replicas > 1:
            native = self._client._open()
            keeping = native.start_keep(str(self._ref), self._replicas, left(limit, begun))
            self._ref._replicas = await waits.answer(keeping)
        return self._ref

    def discard(self) -> None:
        """Gives the space back, now or with the last view of it; there is no object. Twice is fine."""
        if self._open and self._space is not None and self._is_mine():
            self._space.discard()
            # Views hold it; with the last of them it goes.
            self._space = None
        if self._open:
            self._take_back()
        self._ref = None
        self._open = False

    def _seal(self, limit: float | None) -> _native.Pending[str]:
        self._check_open()
        if self._space is not None:
            pending = self._space.seal()
        else:
            small = self._check_unviewed()
            pending = self._client._open().start_put(self._what, [small], self._name, self._ttl, limit)
        self._open = False
        return pending

    def _take_back(self) -> None:
        """Tells those who wait for a small object that there will be none; of a large one the node does."""
        if self._small is None or self._name is None or not self._is_mine():
            return
        if self._promised or self._name.startswith("@"):
            self._client._discard(self._name)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidArgument(
                "the buffer was sealed or given up before: an object never changes; create another buffer"
            )
        if not self._is_mine():
            # The space is written by the process that asked for it; what the child of a fork writes is not sealed.
            raise ObjectLost("a buffer belongs to the process that created it; create another in this one")

    def _is_mine(self) -> bool:
        return os.getpid() == self._pid

    def _check_unviewed(self) -> bytearray:
        small = self._small
        assert small is not None
        try:
            # Refused as long as a view of it is alive.
            small.append(0)
        except BufferError:
            raise InvalidArgument(
                "writable views of the buffer are alive, and could change the object after this: drop them first "
                "(del array), or fill it by buf[...] = values"
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
            raise TypeError("a buffer without an axis has no length")
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
            warnings.warn(f"{self!r} was dropped unsealed: there is no object", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        name = f" {self._name}" if self._name else ""
        state = "open" if self._open else "closed"
        return f"<hoplite.Buffer{name} {self._what.kind}{list(self._what.shape)} {state}>"
