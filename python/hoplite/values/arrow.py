"""Apache Arrow arrays and tables, encoded as Arrow IPC streams. Any Arrow reader can read the object's bytes.

A key in the schema's metadata, which users do not see, states the type of the value. An array or chunked array is
stored as the only column of a table.
"""

from __future__ import annotations

import sys
from typing import Any

from hoplite.errors import DecodeError, InvalidArgument
from hoplite.values.kinds import ARROW, BYTES, Encoded, require
from hoplite.values.parts import Parts

# Types of pyarrow that are encoded as Arrow streams.
TYPES = ("Table", "RecordBatch", "ChunkedArray", "Array")

_KEY = b"hoplite.type"


def encode_arrow(value: Any) -> Encoded:  # noqa: ANN401 - no import here
    """Encodes a value of one of `TYPES` as a stream, without copying its large buffers.

    Raises:
        InvalidArgument: Arrow can't write the value.
    """
    pyarrow = sys.modules["pyarrow"]
    name = next(name for name in TYPES if isinstance(value, getattr(pyarrow, name)))
    batch = value
    if name == "ChunkedArray":
        batch = pyarrow.table([value], names=[""])
    elif name == "Array":
        batch = pyarrow.record_batch([value], names=[""])
    schema = batch.schema.with_metadata({**(batch.schema.metadata or {}), _KEY: name.encode()})
    parts = Parts()
    try:
        with pyarrow.ipc.new_stream(pyarrow.PythonFile(parts, mode="w"), schema) as stream:
            stream.write(batch)
    except pyarrow.ArrowException as error:
        raise InvalidArgument(f"can't put a pyarrow.{name}: Arrow can't write it as a stream ({error})") from error
    return Encoded(BYTES, (parts.nbytes,), ARROW, parts.nbytes, parts.take())


def decode_arrow(data: memoryview) -> Any:  # noqa: ANN401 - no import here
    """Decodes the value of a stream, over the same memory.

    Raises:
        DecodeError: the bytes are not an Arrow stream.
        UnsupportedDtype: pyarrow is not installed.
    """
    pyarrow = require("pyarrow", "the object is Arrow data: get")
    try:
        with pyarrow.ipc.open_stream(pyarrow.py_buffer(data)) as stream:
            metadata = dict(stream.schema.metadata or {})
            name = metadata.pop(_KEY, b"Table").decode(errors="replace")
            batch = stream.read_next_batch() if name in ("Array", "RecordBatch") else stream.read_all()
        if name in ("Array", "ChunkedArray"):
            return batch.column(0)
        return batch.replace_schema_metadata(metadata or None)
    except (pyarrow.ArrowException, OSError, ValueError, IndexError, StopIteration) as error:
        raise DecodeError(f"the object's {data.nbytes} bytes are not an Arrow stream: {error}") from error
