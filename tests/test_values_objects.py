"""Any other object, pickled: arrays inside it without a copy, errors with the reason, and harmless malformed bytes."""

# ruff: noqa: ANN401 - values are anything

from __future__ import annotations

import collections
import random
import re
import struct
import sys
import threading
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hoplite import values
from hoplite.errors import DecodeError, InvalidArgument, UnsupportedDtype
from stored import address, joined, mapped, pinned, store, there_and_back

if TYPE_CHECKING:
    from collections.abc import Iterator

# Also run with the oldest supported versions of torch and NumPy.
pytestmark = pytest.mark.frameworks


@dataclass
class Batch:
    rows: Any
    label: str


OBJECTS: dict[str, Any] = {
    "None": None,
    "bool": True,
    "int": -(2**100),
    "float": 1.5,
    "complex": 1j,
    "text": "grüße",
    "empty text": "",
    "list": [1, [2.0, "x"], ()],
    "dict": {"a": 1, (1, 2): {"b": b"x"}},
    "set": frozenset({1, 2}),
    "large bytes": {"a": bytes(range(256)) * 1000, "b": bytearray(100_000), "c": "x" * 100_000},
    "dataclass": Batch([1, 2], "x"),
    "path": Path("x/y"),
    "ordered": collections.OrderedDict(b=1, a=2),
    "pattern": re.compile("x+"),
    "function": sorted,
    "class": Batch,
    "exception type": KeyError,
    "range": range(3, 10, 2),
}


@pytest.mark.parametrize("value", OBJECTS.values(), ids=OBJECTS.keys())
@pytest.mark.parametrize("copy", [False, True])
def test_objects_round_trip(value: Any, copy: bool) -> None:
    encoded = values.encode(value)
    assert (encoded.kind, encoded.shape, encoded.form) == ("bytes", (encoded.nbytes,), "pickle")
    got = values.decode(store(encoded), copy=copy)
    assert type(got) is type(value)
    assert got == value


def test_arrays_inside_share_the_memory_of_the_object_and_pin_it() -> None:
    weights, bias = np.arange(10_000.0).reshape(100, 100), np.arange(7, dtype=np.int16)
    view = store(values.encode({"layer": Batch([weights, bias], "x")}))
    got = values.decode(view)["layer"]
    assert got.label == "x"
    for array, expected in zip(got.rows, (weights, bias), strict=True):
        assert array.dtype == expected.dtype
        assert np.array_equal(array, expected)
        assert not array.flags.writeable
        offset = array.ctypes.data - address(view)
        assert 0 < offset < view.nbytes
        assert offset % 64 == 0
    part = got.rows[1][2:3]
    del got, array
    assert pinned(view)
    del part
    assert not pinned(view)


def test_large_arrays_and_bytes_inside_are_encoded_without_a_copy() -> None:
    array, text, changing = np.zeros(10_000), bytes(100_000), bytearray(100_000)
    encoded = values.encode([array, text, changing])
    addresses = {address(part) for part in encoded.parts}
    assert {array.ctypes.data, address(text), address(changing)} <= addresses


def test_every_memory_layout_of_an_array_inside_round_trips() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 and float8 are in ml_dtypes")
    added = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    base = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    arrays = [
        *(base.astype(dtype) for dtype in ("?", "i1", ">i4", "f2", "c8", "M8[s]", "U3", *added)),
        *(base, base.T, base[::2], base[:, ::-1], np.asfortranarray(base), base[:, :0], base[0, 0, 0], base[1:2]),
        np.broadcast_to(base, (2, 3, 4, 5)),
        np.zeros(5, [("a", "f4"), ("b", "S3")]),
    ]
    for copy in (False, True):
        for got, expected in zip(there_and_back(arrays, copy=copy), arrays, strict=True):
            assert type(got) is type(expected)
            assert got.dtype == expected.dtype
            assert got.shape == expected.shape
            assert got.tobytes() == expected.tobytes()
            if isinstance(got, np.ndarray) and got.size:
                assert got.flags.writeable == bool(copy)


def test_an_array_that_an_object_contains_twice_is_stored_once() -> None:
    array = np.zeros(10_000)
    encoded = values.encode([array, array])
    assert encoded.nbytes < 2 * array.nbytes
    first, second = values.decode(store(encoded))
    assert first is second


def test_a_copy_is_writable_and_does_not_pin() -> None:
    """Even of an array that was read-only when it was put, as all arrays from a store are."""
    fixed = np.arange(1000.0)
    fixed.flags.writeable = False
    view = store(values.encode({"a": np.arange(1000.0), "b": fixed, "c": np.empty(0)}))
    got = values.decode(view, copy=True)
    assert not pinned(view)
    for array in got.values():
        array += 1
    assert np.array_equal(got["a"], np.arange(1000.0) + 1)
    assert np.array_equal(got["b"], np.arange(1000.0) + 1)


def test_a_masked_array_inside_an_object_round_trips() -> None:
    got = there_and_back([np.ma.masked_array([1.0, 2.0], [True, False])])[0]
    assert got.tolist() == [None, 2.0]


def test_many_small_arrays_become_few_parts() -> None:
    arrays = [np.full(3, number) for number in range(1000)]
    encoded = values.encode(arrays)
    assert len(encoded.parts) < 10
    assert all(np.array_equal(*pair) for pair in zip(values.decode(store(encoded)), arrays, strict=True))


def test_random_nested_values_round_trip() -> None:
    rng = random.Random(1)

    def nest(depth: int) -> Any:
        if depth == 0 or rng.random() < 0.2:
            size = rng.choice([0, 1, 3, 500, 5000])
            return rng.choice([np.arange(size), "x" * size, bytes(size), size, None, np.ones((size, 2), bool)])
        children = [nest(depth - 1) for _ in range(rng.randrange(4))]
        return rng.choice([children, tuple(children), dict(enumerate(children)), Batch(children, "x")])

    def equal(got: Any, expected: Any) -> bool:
        if isinstance(expected, np.ndarray):
            return got.dtype == expected.dtype and np.array_equal(got, expected)
        if isinstance(expected, Batch):
            return equal(got.rows, expected.rows)
        if isinstance(expected, dict):
            return equal(list(got.values()), list(expected.values()))
        if isinstance(expected, list | tuple):
            return len(got) == len(expected) and all(map(equal, got, expected))
        return bool(got == expected)

    for _ in range(200):
        value = nest(4)
        if not isinstance(value, np.ndarray | bytes):
            got = there_and_back(value, copy=rng.choice([False, True]))
            assert type(got) is type(value)
            assert equal(got, value)


# Objects that can't be pickled or unpickled.


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("I stay")


def iter_once() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (threading.Lock(), "_thread.lock: it can't be pickled (TypeError: cannot pickle"),
        (lambda: None, "builtins.function: it can't be pickled ("),
        ([Stubborn()], "builtins.list: it can't be pickled (RuntimeError: I stay)"),
        (sys, "builtins.module: it can't be pickled (TypeError: cannot pickle 'module'"),
        (iter_once(), "builtins.generator: it can't be pickled ("),
    ],
    ids=["lock", "lambda", "nested", "module", "generator"],
)
def test_an_object_that_can_not_be_pickled_is_named_with_the_reason_and_fix(value: object, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        values.encode(value)
    assert text in str(caught.value)
    assert "put the data that it is made of" in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "value", [None, 1, 1.5, "text", [1, 2], {"a": 1}, object()], ids=lambda value: type(value).__name__
)
def test_without_pickle_an_object_is_rejected_by_type(value: object) -> None:
    with pytest.raises(UnsupportedDtype, match="without pickle: set allow_pickle=True") as caught:
        values.encode(value, allow_pickle=False)
    assert type(value).__qualname__ in str(caught.value)


def test_without_pickle_a_pickled_object_is_not_decoded() -> None:
    with pytest.raises(DecodeError, match="allow_pickle is False"):
        values.decode(store(values.encode(None)), allow_pickle=False)


def object_of_missing_module(monkeypatch: pytest.MonkeyPatch) -> tuple[types.ModuleType, Any]:
    """Returns an object of a class in a module that only the putter has."""
    module = types.ModuleType("only_there")
    exec("class Thing:\n    pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_there", module)
    return module, store(values.encode([module.Thing()]))


def test_a_missing_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _, view = object_of_missing_module(monkeypatch)
    monkeypatch.delitem(sys.modules, "only_there")
    with pytest.raises(DecodeError, match=r"No module named 'only_there'.*must be importable here") as caught:
        values.decode(view)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module, view = object_of_missing_module(monkeypatch)
    del module.Thing
    with pytest.raises(DecodeError, match=r"'Thing' on <module 'only_there'.*must be importable here"):
        values.decode(view)


class Explosive:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_an_error_of_the_unpickled_code_is_reported() -> None:
    with pytest.raises(DecodeError, match=r"ValueError: invalid literal.*no number") as caught:
        there_and_back([Explosive()])
    assert isinstance(caught.value.__cause__, ValueError)


# Corrupt bytes.


def assert_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        values.decode(mapped(data, form="pickle"))


def test_a_truncated_object_raises_decode_error() -> None:
    data = joined(values.encode([np.arange(20), "x", np.arange(3.0)]))
    for end in range(len(data)):
        assert_decode_error(data[:end])
    assert_decode_error(data + b"\0")


def test_an_inconsistent_header_raises_decode_error() -> None:
    data = joined(values.encode([np.arange(20)]))
    magic = data[:8]
    stream_bytes, count, length = struct.unpack_from("<QQQ", data, 8)
    assert (count, length) == (1, 160)
    assert_decode_error(b"\0" * 8 + data[8:])
    for number in (0, 1, 63, 64, 65, 2**32, 2**63, 2**64 - 1):
        for words in ((number, count, length), (stream_bytes, number, length), (stream_bytes, count, number)):
            if words != (stream_bytes, count, length):
                assert_decode_error(magic + struct.pack("<QQQ", *words) + data[32:])


def test_any_flipped_bit_of_the_layout_is_detected() -> None:
    data = bytearray(joined(values.encode([np.arange(20)])))
    for place in range(32):
        for bit in range(8):
            data[place] ^= 1 << bit
            assert_decode_error(bytes(data))
            data[place] ^= 1 << bit


def test_an_array_that_does_not_fit_its_shape_raises_decode_error() -> None:
    """The pickle has 20 numbers, the layout has 19."""
    data = joined(values.encode([np.arange(20)]))
    assert_decode_error(data[:24] + struct.pack("<Q", 152) + data[32:-8])
