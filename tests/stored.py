"""Objects as a store passes them to `decode`, without a store: read-only pages, where a write kills the process."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from hoplite import values

if TYPE_CHECKING:
    from hoplite.values import Encoded


class MappedView(mmap.mmap):
    """A mapped object. `close` fails while a buffer of it exists."""

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int


class EmptyView(bytes):
    """An object without bytes, which can't be mapped."""

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int


def store(encoded: Encoded) -> Any:  # noqa: ANN401 - mmap is a Buffer to no type check before Python 3.12
    """Concatenates an encoded value's parts, as a put does, and maps them read-only."""
    data = joined(encoded)
    assert len(data) == encoded.nbytes
    return mapped(data, encoded.kind, encoded.shape, encoded.form)


def joined(encoded: Encoded) -> bytes:
    """Returns an encoded value's bytes."""
    return b"".join(memoryview(part).tobytes() for part in encoded.parts)


def mapped(data: bytes, kind: str = "bytes", shape: tuple[int, ...] | None = None, form: str = "plain") -> Any:  # noqa: ANN401
    """Maps any bytes as an object."""
    view: MappedView | EmptyView
    if data:
        descriptor = os.memfd_create("test")
        try:
            assert os.write(descriptor, data) == len(data)
            view = MappedView(descriptor, len(data), access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
    else:
        view = EmptyView()
    view.kind, view.form, view.nbytes = kind, form, len(data)
    view.shape = (len(data),) if shape is None else shape
    return view


def pinned(view: MappedView) -> bool:
    """Returns whether a buffer of the object exists. If not, this unmaps the object."""
    try:
        view.close()
    except BufferError:
        return True
    return False


def there_and_back(value: object, *, copy: bool = False) -> Any:  # noqa: ANN401 - the decoded value
    """Encodes and decodes a value, as a put and a get do."""
    return values.decode(store(values.encode(value)), copy=copy)


def address(buffer: Any) -> int:  # noqa: ANN401 - any buffer
    """Returns the address of a buffer."""
    import numpy as np

    return int(np.frombuffer(buffer, np.uint8).ctypes.data)
