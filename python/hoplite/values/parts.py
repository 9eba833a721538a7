"""Buffers on their way in, strung together without a copy, and private copies on their way out.

Knows nothing of what the bytes mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Reading an array wants it aligned to a cache line, and to what vector instructions load at once.
ALIGNMENT_BYTES = 64

# Below this a copy costs less than a part of its own does.
SMALL_BYTES = 4096


class Parts:
    """Collects buffers; a file to what writes into it (`pickle.Pickler`, `pyarrow.PythonFile`).

    A large buffer is kept as it is, by reference; runs of small ones are joined into one.
    """

    closed = False  # read by pyarrow.PythonFile

    def __init__(self) -> None:
        self.nbytes = 0
        self._parts: list[Buffer] = []
        self._small: list[bytes] = []

    def write(self, data: Buffer) -> int:
        """Appends a C-contiguous buffer; returns its bytes."""
        view = memoryview(data)
        if view.nbytes < SMALL_BYTES:
            # Joined later, when the writer may have changed it.
            self._small.append(bytes(view))
        else:
            self._join()
            # Not the data itself: a bytearray can't change its size while a memoryview looks at it.
            self._parts.append(view)
        self.nbytes += view.nbytes
        return view.nbytes

    def align(self) -> None:
        """Appends zeros up to the next multiple of `ALIGNMENT_BYTES`."""
        self.write(bytes(aligned(self.nbytes) - self.nbytes))

    def take(self) -> tuple[Buffer, ...]:
        """All that was written, in order."""
        self._join()
        return tuple(self._parts)

    def tell(self) -> int:
        """Bytes written so far."""
        return self.nbytes

    def flush(self) -> None:
        """Nothing: a file has this."""

    def close(self) -> None:
        """Nothing: a file has this."""

    def _join(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []


class Private(bytearray):
    """A copy of an object's bytes that belongs to the value made of it."""


def aligned(offset: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def unlock(buffer: Buffer) -> Buffer:
    """The writable copy beneath a buffer, if it is over one; else the buffer.

    Pickle locks what was read-only when it was put, but what the copy is for is to be written.
    """
    beneath = memoryview(buffer).obj
    return beneath if isinstance(beneath, Private) else buffer
