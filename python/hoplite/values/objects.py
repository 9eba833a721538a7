"""Any other Python object, by pickle protocol 5, with the buffers of arrays inside it kept outside the pickle.

    magic and version, 8 bytes | bytes of the pickle, 8 | number of buffers, 8 | bytes of each buffer, 8 each
    the pickle
    each buffer, from the next multiple of 64 bytes on

Numbers are little-endian. The buffers are handed to pickle where they lie, so that arrays come back without a copy.
"""

from __future__ import annotations

import copyreg
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any

from hoplite.errors import HopliteError, InvalidArgument, Undecodable
from hoplite.values import arrays, tensors
from hoplite.values.kinds import BYTES, PICKLE, Encoded
from hoplite.values.parts import Parts, Private, aligned

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAGIC = b"hoppkl\r\x01"
_HEADER = struct.Struct("<8sQQ")


class _Pickler(pickle.Pickler):
    """Asks of each object whether it is a subclass of ndarray, which no table of types can name."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what pickle takes
        return arrays.reduce_subclass(value)


def encode_object(value: object) -> Encoded:
    """Pickles a value.

    Raises:
        InvalidArgument: it can't be pickled; says of what type it is, why, and what to do.
    """
    buffers: list[memoryview] = []
    stream = Parts()
    # The question for each object takes time, so it is asked only where there can be an array.
    kind = _Pickler if "numpy" in sys.modules else pickle.Pickler
    pickler = kind(stream, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    pickler.dispatch_table = {**copyreg.dispatch_table, **arrays.reducers(), **tensors.reducers()}
    try:
        pickler.dump(value)
    except (HopliteError, MemoryError):
        raise
    except Exception as error:  # it comes from code of the value's own
        raise InvalidArgument(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}: it can't be pickled "
            f"({type(error).__name__}: {error}); put the data that it is made of, or give its class __reduce__"
        ) from error

    parts = Parts()
    parts.write(_HEADER.pack(_MAGIC, stream.nbytes, len(buffers)))
    parts.write(struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers)))
    for part in stream.take():
        parts.write(part)
    for buffer in buffers:
        parts.align()
        parts.write(buffer)
    return Encoded(BYTES, (parts.nbytes,), PICKLE, parts.nbytes, parts.take())


def decode_object(data: memoryview, copy: bool | None) -> Any:  # noqa: ANN401 - as it was put
    """Unpickles a value over read-only bytes; over copies of them that are its own, and writable, if `copy` is true.

    Raises:
        Undecodable: the bytes are not laid out so, or the unpickling failed, as for a class that can't be imported.
    """
    stream, slices = _take_apart(data)
    buffers: list[Buffer] = [Private(each) for each in slices] if copy else [*slices]
    try:
        return pickle.loads(stream, buffers=buffers)
    except HopliteError:
        raise
    except (ImportError, AttributeError) as error:
        raise Undecodable(
            f"the object can't be unpickled ({type(error).__name__}: {error}): modules and classes that it is made of "
            "must be importable here, under the names they had where it was put"
            + ("; put classes into a module rather than the main script" if "__main__" in str(error) else "")
        ) from error
    except Exception as error:  # it comes from code of the value's own, or from bytes that are no pickle
        raise Undecodable(f"the object can't be unpickled ({type(error).__name__}: {error})") from error


def _take_apart(data: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Finds the pickle and the buffers; what the header says is checked before anything is made by it."""
    nbytes = data.nbytes
    if nbytes < _HEADER.size:
        raise Undecodable(f"the object has {nbytes} bytes, which is too short for a pickled object")
    magic, stream_bytes, count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise Undecodable(f"the object begins with {magic!r}, which is no pickled object of this version of hoplite")
    if count > (nbytes - _HEADER.size) // 8:
        raise Undecodable(f"the object's header tells of {count} buffers, which {nbytes} bytes have no room for")
    start = _HEADER.size + 8 * count
    lengths = data[_HEADER.size : start].cast("Q")
    end = start + stream_bytes
    for length in lengths:
        end = aligned(end) + length
    if end != nbytes:
        raise Undecodable(f"the object has {nbytes} bytes, its header tells of {end}")
    # What pickle ignores: bytes after the stop. They would be the zeros before the first buffer.
    if stream_bytes == 0 or data[start + stream_bytes - 1] != pickle.STOP[0]:
        raise Undecodable(f"the object's header tells of a pickle of {stream_bytes} bytes, which does not end there")

    end = start + stream_bytes
    slices = []
    for length in lengths:
        begin = aligned(end)
        end = begin + length
        slices.append(data[begin:end])
    return data[start : start + stream_bytes], slices
