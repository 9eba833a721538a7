"""Arrow data to a stream and back: the same type, sharing the memory of the object."""

# ruff: noqa: ANN401 - values are anything

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from hoplite import values
from hoplite.errors import DecodeError, InvalidArgument
from stored import address, joined, mapped, pinned, store, there_and_back

# Also run with the oldest supported versions of torch and NumPy.
pytestmark = pytest.mark.frameworks

pa: Any = pytest.importorskip("pyarrow", reason="Arrow data needs pyarrow")

ARRAYS: dict[str, Any] = {
    "numbers": pa.array(np.arange(10_000.0)),
    "nulls": pa.array([1, None, 3]),
    "text": pa.array(["x", None, "grüße", ""]),
    "nested": pa.array([[1, 2], None, []]),
    "struct": pa.array([{"a": 1, "b": "x"}, None]),
    "dictionary": pa.array(["x", "y", "x"]).dictionary_encode(),
    "bool": pa.array([True, False, None]),
    "decimal": pa.array([1, 2], pa.decimal128(20, 2)),
    "timestamp": pa.array([1, 2], pa.timestamp("us", "UTC")),
    "null": pa.nulls(3),
    "empty": pa.array([], pa.int32()),
    "sliced": pa.array(range(100))[10:20],
    "sliced text": pa.array([str(number) for number in range(100)])[10:20],
    "sliced bool": pa.array([True, False, None] * 10)[3:11],
    "union": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])]),
}

TABLE = pa.table({"x": np.arange(10_000.0), "y": [str(number) for number in range(10_000)]})

OTHERS: dict[str, Any] = {
    "table": TABLE,
    "table in pieces": pa.concat_tables([TABLE[:10], TABLE[5:500]]),
    "sliced table": TABLE[77:777],
    "empty table": TABLE[:0],
    "table of nothing": pa.table({}),
    "twice the same name": pa.table([[1], [2]], names=["x", "x"]),
    "metadata": TABLE.replace_schema_metadata({"who": "me"}),
    "field metadata": pa.table([[1]], pa.schema([pa.field("x", pa.int8(), nullable=False, metadata={"unit": "m"})])),
    "batch": TABLE.to_batches()[0],
    "sliced batch": TABLE.to_batches()[0][5:50],
    "empty batch": TABLE.to_batches()[0][:0],
    "batch with metadata": TABLE.to_batches()[0].replace_schema_metadata({"who": "me"}),
    "chunked": pa.chunked_array([[1, 2], [3, None]]),
    "chunked empty": pa.chunked_array([], pa.int8()),
    "chunked dictionaries": pa.chunked_array([["x", "y"], ["z"]]).dictionary_encode(),
    "chunked own dictionaries": pa.chunked_array([pa.array([x]).dictionary_encode() for x in ("x", "y")]),
}


@pytest.mark.parametrize("value", [*ARRAYS.values(), *OTHERS.values()], ids=[*ARRAYS, *OTHERS])
@pytest.mark.parametrize("copy", [False, True])
def test_arrow_data_keeps_its_type(value: Any, copy: bool) -> None:
    encoded = values.encode(value, allow_pickle=False)
    assert (encoded.kind, encoded.shape, encoded.form) == ("bytes", (encoded.nbytes,), "arrow")
    got = values.decode(store(encoded), copy=copy, allow_pickle=False)
    assert type(got) is type(value)
    assert got.equals(value)
    got.validate(full=True)
    if hasattr(value, "schema"):
        assert got.schema.equals(value.schema, check_metadata=True)
        assert got.schema.metadata == value.schema.metadata


def test_large_buffers_are_encoded_without_a_copy() -> None:
    array = ARRAYS["numbers"]
    addresses = {address(part) for part in values.encode(array).parts}
    assert array.buffers()[1].address in addresses
    addresses = {address(part) for part in values.encode(TABLE).parts}
    assert {column.chunk(0).buffers()[-1].address for column in TABLE.columns} <= addresses


def test_parts_outlive_the_value() -> None:
    value = pa.array(np.arange(100_000))[50:]
    encoded = values.encode(value)
    expected = value.to_pylist()
    del value
    gc.collect()
    pa.default_memory_pool().release_unused()
    assert values.decode(store(encoded)).to_pylist() == expected


def test_data_shares_the_memory_of_the_object_and_pins_it() -> None:
    view = store(values.encode(TABLE))
    got = values.decode(view)
    start = address(view)
    for column in got.columns:
        for chunk in column.chunks:
            assert all(start <= buffer.address < start + view.nbytes for buffer in chunk.buffers() if buffer)
    column = got.column(0).to_numpy()
    del got, chunk
    gc.collect()
    assert pinned(view)
    del column
    assert not pinned(view)


def test_a_copy_does_not_pin() -> None:
    view = store(values.encode(TABLE))
    got = values.decode(view, copy=True)
    assert not pinned(view)
    assert got.equals(TABLE)


def test_any_reader_of_arrow_can_read_the_bytes() -> None:
    with pa.ipc.open_stream(joined(values.encode(TABLE))) as stream:
        assert stream.read_all().equals(TABLE)


def test_a_stream_of_another_writer_is_a_table() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as stream:
        stream.write(TABLE)
    assert values.decode(mapped(sink.getvalue().to_pybytes(), form="arrow")).equals(TABLE)


def test_an_arrow_buffer_is_bytes() -> None:
    assert there_and_back(pa.py_buffer(b"hello")) == b"hello"


def test_data_in_an_object_is_pickled_without_a_copy() -> None:
    view = store(values.encode({"table": TABLE}))
    got = values.decode(view)["table"]
    assert got.equals(TABLE)
    assert address(view) < got.column(0).chunk(0).buffers()[1].address < address(view) + view.nbytes


def test_arrow_data_can_be_read_into_a_bytes_out() -> None:
    encoded = values.encode(TABLE)
    out = bytearray(encoded.nbytes)
    opened = values.writable(out)
    assert (opened.kind, opened.shape) == (encoded.kind, (encoded.nbytes,))


def test_an_error_of_arrow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise pa.ArrowNotImplementedError("not that")

    monkeypatch.setattr(sys.modules["pyarrow"].ipc, "new_stream", refuse)
    with pytest.raises(InvalidArgument, match=r"pyarrow\.Table.*not that"):
        values.encode(TABLE)


def test_corrupt_streams_raise_decode_error() -> None:
    data = joined(values.encode(ARRAYS["numbers"]))
    for end in (0, 1, 4, 8, 100, 200, 300, len(data) // 2):
        with pytest.raises(DecodeError, match=f"{end} bytes are not an Arrow stream"):
            values.decode(mapped(data[:end], form="arrow"))
    with pytest.raises(DecodeError):
        values.decode(mapped(b"x" * 1000, form="arrow"))
