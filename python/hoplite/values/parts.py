"""Lists of buffers to put, without copies, and private copies of the buffers of an object.

Does not know the contents of the bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Alignment of arrays: a cache line, and the width of vector instructions.
ALIGNMENT_BYTES = 64

# A smaller buffer is copied, which costs less than a separate part.
SMALL_BYTES = 4096


class Parts:
    """Collects buffers. It has the interface of a file for `pickle.Pickler` and `pyarrow.PythonFile`.

    Large buffers are kept by reference; consecutive small ones are joined into one.
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
            # A copy: the writer may change the buffer before it is joined.
            self._small.append(bytes(view))
        else:
            self._join()
            # A view, not the data: a bytearray can't change its size while a memoryview of it exists.
            self._parts.append(view)
        self.nbytes += view.nbytes
        return view.nbytes

    def align(self) -> None:
        """Appends zeros up to the next multiple of `ALIGNMENT_BYTES`."""
        self.write(bytes(aligned(self.nbytes) - self.nbytes))

    def take(self) -> tuple[Buffer, ...]:
        """Returns all buffers in order."""
        self._join()
        return tuple(self._parts)

    def tell(self) -> int:
        """Returns the number of bytes written."""
        return self.nbytes

    def flush(self) -> None:
        """Does nothing. Part of the file interface."""

    def close(self) -> None:
        """Does nothing. Part of the file interface."""

    def _join(self) -> None:
        if self._small:
            self._parts.append(b"".join(self._small))
            self._small = []


class Private(bytearray):
    """A copy of an object's bytes that belongs to the decoded value."""


def aligned(offset: int) -> int:
    """Rounds up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def unlock(buffer: Buffer) -> Buffer:
    """Returns the private copy that a buffer refers to, if any; else the buffer.

    Pickle makes buffers read-only that were read-only at the put. Private copies must be writable.
    """
    beneath = memoryview(buffer).obj
    return beneath if isinstance(beneath, Private) else buffer
