"""Values to bytes and back: bytes, NumPy arrays, other buffers, targets of `out`, and imports."""

# ruff: noqa: ANN401 - values are anything

from __future__ import annotations

import array
import ctypes
import itertools
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hoplite import values
from hoplite.errors import DecodeError, InvalidArgument, UnsupportedDtype
from hoplite.values import DTYPES, FORMS, NARROW_DTYPES, quick
from stored import address, joined, mapped, pinned, store, there_and_back
from support import ARRAY_DTYPES, numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

# Also run with the oldest supported versions of torch and NumPy.
pytestmark = pytest.mark.frameworks

Array = np.ndarray[Any, Any]

SHAPES: list[tuple[int, ...]] = [(), (0,), (3, 0, 2), (1,), (7,), (5, 3, 2), (1,) * 12, (1025,)]

ORDERS: dict[str, Callable[[Array], Array]] = {
    "C": lambda value: value,
    "F": np.asfortranarray,
    "transposed": lambda value: value.T,
    "strided": lambda value: np.repeat(value, 2, axis=-1)[..., ::2] if value.ndim else value,
    "backwards": lambda value: value[::-1] if value.ndim else value,
    "broadcast": lambda value: np.broadcast_to(value, (2, *value.shape)),
}


def counting(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Returns whole numbers from 0 to 99; of narrow dtypes, all bit patterns in turn."""
    numbers = np.arange(np.prod(shape, dtype=int))
    if dtype in NARROW_DTYPES:
        return numbers.astype(np.uint8).view(numpy_dtype(dtype)).reshape(shape)
    return (numbers % 100).astype(numpy_dtype(dtype)).reshape(shape)


def same(got: Array, expected: Array) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    # Some bit patterns of narrow dtypes are NaN, and some are equal.
    assert got.tobytes() == expected.tobytes()


# Bytes


BYTES: dict[str, Any] = {
    "bytes": b"hello",
    "empty": b"",
    "bytearray": bytearray(b"hello"),
    "empty bytearray": bytearray(),
    "memoryview": memoryview(b"hello"),
    "empty memoryview": memoryview(b""),
    "strided": memoryview(b"h-e-l-l-o")[::2],
    "signed": memoryview(array.array("b", [-1, 2])),
    "characters": memoryview(b"hello").cast("c"),
    "ctypes characters": ctypes.create_string_buffer(b"hello"),
}


@pytest.mark.parametrize("value", BYTES.values(), ids=BYTES.keys())
@pytest.mark.parametrize("copy", [False, True])
def test_bytes_round_trip(value: Any, copy: bool) -> None:
    encoded = values.encode(value, allow_pickle=False)
    assert (encoded.kind, encoded.shape, encoded.form) == ("bytes", (memoryview(value).nbytes,), "plain")
    got = values.decode(store(encoded), copy=copy, allow_pickle=False)
    assert got == memoryview(value).tobytes()
    if copy:
        assert type(got) is bytes
    else:
        assert (type(got), got.readonly, got.format) == (memoryview, True, "B")


@pytest.mark.parametrize("value", [b"hello", bytearray(b"hello"), memoryview(b"hello")], ids=type)
def test_bytes_are_encoded_without_a_copy(value: Any) -> None:
    (part,) = values.encode(value).parts
    assert address(part) == address(value)


def test_bytes_pin_the_object_and_a_copy_does_not() -> None:
    view = mapped(b"hello")
    got = values.decode(view)
    assert pinned(view)
    del got
    got = values.decode(view, copy=True)
    assert not pinned(view)
    assert got == b"hello"


# NumPy


@pytest.fixture(params=["short", "long"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Plain arrays take a fast path once one has taken the slow path. "long" tests the slow path only."""
    if request.param == "short":
        quick.learn(np)
    else:
        forget_numpy(monkeypatch)
    return str(request.param)


def forget_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resets the fast path, and keeps it from learning."""
    monkeypatch.setattr(quick, "learn", lambda _: None)
    for known in ("_arrays", "_kinds", "_dtypes"):
        monkeypatch.setattr(quick, known, type(getattr(quick, known))())


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
@pytest.mark.usefixtures("way")
def test_every_shape_and_order_round_trips(dtype: str) -> None:
    for shape, (order, arrange) in itertools.product(SHAPES, ORDERS.items()):
        value = arrange(counting(shape, dtype))
        encoded = values.encode(value, allow_pickle=False)
        assert (encoded.kind, encoded.shape, encoded.form) == (dtype, value.shape, "plain"), (shape, order)
        assert encoded.nbytes == value.size * value.itemsize
        assert joined(encoded) == value.tobytes()
        for copy in (False, True):
            got = values.decode(store(encoded), copy=copy, allow_pickle=False)
            same(got, value)
            assert got.flags.writeable == copy
            assert got.flags.c_contiguous


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_contiguous_arrays_are_encoded_without_a_copy(dtype: str) -> None:
    for shape in ((), (7,), (5, 3, 2)):
        value = counting(shape, dtype)
        value.flags.writeable = False
        (part,) = values.encode(value).parts
        assert np.shares_memory(np.asarray(part), value.reshape(-1).view(np.uint8))


def test_common_arrays_take_the_fast_path() -> None:
    quick.learn(np)
    for dtype in set(DTYPES) - {"bfloat16", *NARROW_DTYPES, "datetime64", "timedelta64"}:
        value = counting((5, 3), dtype)
        encoded = quick.encode_quickly(value)
        assert encoded is not None
        same(quick.decode_quickly(store(encoded)), value)
    assert quick.encode_quickly(counting((5, 3)).T) is None
    assert quick.encode_quickly(np.ma.array([1.0])) is None


@pytest.mark.usefixtures("way")
def test_big_endian_arrays_become_little_endian() -> None:
    """The values are equal; `same` compares the dtypes too."""
    for dtype in {*DTYPES, "datetime64[25us]"} - {"bfloat16", *NARROW_DTYPES}:
        value = counting((5, 3), dtype)
        same(there_and_back(value.astype(value.dtype.newbyteorder(">"))), value)


def test_a_scalar_is_a_0d_array() -> None:
    for dtype in (*(each for each in DTYPES if each not in NARROW_DTYPES), "float8_e4m3fn", "int4"):
        value = counting((4,), dtype)
        same(there_and_back(value[3]), value[3:].reshape(()))


def test_a_memmap_is_an_array(tmp_path: Any) -> None:
    value = np.memmap(tmp_path / "x", np.float32, "w+", shape=(3, 4))
    value[:] = 5
    got = there_and_back(value)
    assert type(got) is np.ndarray
    same(got, np.full((3, 4), 5, np.float32))


def test_an_array_shares_the_memory_of_the_object_and_pins_it() -> None:
    view = store(values.encode(counting((1000,))))
    got = values.decode(view)
    assert got.ctypes.data == address(view)
    part = got[10:20].view(np.int32)
    del got
    assert pinned(view)
    del part
    assert not pinned(view)


def test_a_copy_is_writable_and_does_not_pin() -> None:
    view = store(values.encode(counting((1000,))))
    got = values.decode(view, copy=True)
    assert not pinned(view)
    got += 1
    same(got, counting((1000,)) + 1)


def test_a_decoded_array_can_be_encoded_again() -> None:
    same(there_and_back(there_and_back(counting((5, 3)))), counting((5, 3)))


PICKLED_ARRAYS: dict[str, Any] = {
    "text": np.array(["x", "yz"]),
    "bytes": np.array([b"x", b"yz"]),
    "longdouble": np.array([1, 2], np.longdouble),
    "record": np.array([(1.5, 2), (3, 4)], [("a", "f4"), ("b", ">i4")]),
    "big-endian text": np.array(["x", "yz"], ">U2"),
    "fortran": np.asfortranarray(np.eye(3, 5, dtype="S3")),
    "strided": np.eye(4, dtype="S3")[::2, 1:],
    "0-d": np.array("x"),
}


@pytest.mark.parametrize("value", PICKLED_ARRAYS.values(), ids=PICKLED_ARRAYS.keys())
def test_an_array_of_another_dtype_is_pickled_and_decoded_without_a_copy(value: Array) -> None:
    encoded = values.encode(value)
    assert (encoded.kind, encoded.shape, encoded.form) == ("bytes", (encoded.nbytes,), "pickle")
    view = store(encoded)
    got = values.decode(view)
    assert type(got) is np.ndarray
    assert got.dtype == value.dtype
    assert got.shape == value.shape
    assert got.tobytes() == value.tobytes()
    assert not got.flags.writeable
    assert got.flags.f_contiguous or not value.flags.f_contiguous
    assert (got.ctypes.data - address(view)) % 64 == 0
    assert 0 < got.ctypes.data - address(view) < encoded.nbytes
    assert pinned(view)
    copy = values.decode(view, copy=True)
    del got
    assert not pinned(view)
    assert copy.tobytes() == value.tobytes()
    assert copy.flags.writeable


def test_an_empty_array_of_another_dtype_round_trips() -> None:
    for shape in ((0,), (3, 0)):
        for dtype in ("?", "M8[s]", "c8", "U5", "V0"):
            got = there_and_back(np.empty(shape, dtype))
            assert (got.dtype, got.shape) == (np.dtype(dtype), shape)


def test_an_array_of_objects_is_pickled() -> None:
    value = np.array([None, "x", [1, 2]], object)
    assert there_and_back(value).tolist() == value.tolist()


def array_that_contains_itself() -> Array:
    value = np.array([None, None], object)
    value[0] = value
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.array([None, [1]], object),
        array_that_contains_itself,
        lambda: np.zeros(3, "V0"),
        lambda: np.ones(3).view(Meters),
        lambda: np.ones((2, 2)).view(np.matrix),
        lambda: np.zeros(2, [("a", "i4")]).view(np.recarray),
        lambda: np.array(["x"]),
    ],
)
def test_every_decoded_array_is_read_only_and_a_copy_is_writable(make: Callable[[], Array]) -> None:
    """Also if pickle creates the array; the value that was put stays writable."""
    value = make()
    for inside in (False, True):
        for copy in (False, True):
            got = there_and_back([value] if inside else value, copy=copy)
            got = got[0] if inside else got
            assert type(got) is type(value)
            assert got.flags.writeable == copy
    assert value.flags.writeable


class Named(np.ndarray[Any, Any]):
    """A subclass with additional state and its own setter."""

    label: str

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (np.ndarray.__new__, (Named, self.shape), (self.tolist(), self.label), None, None, set_named)


def set_named(array: Named, state: tuple[list[float], str]) -> None:
    array[...], array.label = state


def test_a_subclass_can_define_its_pickling() -> None:
    value = np.array([1.0, 2.0]).view(Named)
    value.label = "x"
    got = there_and_back(value)
    assert (type(got), got.tolist(), got.label, got.flags.writeable) == (Named, [1.0, 2.0], "x", False)


def test_dates_and_times_keep_their_unit() -> None:
    for unit in ("", "[Y]", "[M]", "[7D]", "[h]", "[25us]", "[ns]", "[2147483647as]"):
        for name in ("datetime64", "timedelta64"):
            value = np.array([1, "NaT"], f"{name}{unit}") if unit else np.array([1, -(2**63)]).view(name)
            encoded = values.encode(value, allow_pickle=False)
            assert encoded.kind == f"{name}{unit}" == value.dtype.name
            got = values.decode(store(encoded), allow_pickle=False)
            assert (got.dtype, got.view("i8").tolist()) == (value.dtype, value.view("i8").tolist())


@pytest.mark.parametrize("unit", ["[]", "[1ns]", "[02s]", "[2147483648s]", "[S]", "ns", "[ns] "])
def test_only_the_canonical_text_of_a_unit_is_decoded(unit: str) -> None:
    if unit in ("[1ns]", "[02s]"):
        assert values.check_dtype(f"datetime64{unit}") == np.dtype(f"datetime64{unit}").name, "as NumPy reads it"
    else:
        with pytest.raises(UnsupportedDtype, match="of any unit"):
            values.check_dtype(f"datetime64{unit}")
    with pytest.raises(DecodeError):
        values.decode(mapped(bytes(8), f"datetime64{unit}", (1,)))


def test_buffers_of_bool_and_complex_are_arrays() -> None:
    for value in (np.array([True, False]), np.array([1j, 2], "c8"), np.array([1j, 2], "c16")):
        encoded = values.encode(memoryview(value.data), allow_pickle=False)
        assert encoded.kind == value.dtype.name
        same(values.decode(store(encoded)), value)


def test_scalars_of_another_dtype_stay_scalars() -> None:
    for value in (np.longdouble(1), np.void(b"xy"), np.str_("x")):
        got = there_and_back(value)
        assert type(got) is type(value)
        assert got == value


class Meters(np.ndarray[Any, Any]):
    pass


def test_a_subclass_keeps_its_type() -> None:
    for value in (
        np.ones(3).view(Meters),
        np.ones((2, 2)).view(np.matrix),
        np.zeros(2, [("a", "i4")]).view(np.recarray),
    ):
        got = there_and_back(value)
        assert type(got) is type(value)
        assert got.tolist() == value.tolist()


@pytest.mark.parametrize("value", [*PICKLED_ARRAYS.values(), np.array([None])], ids=[*PICKLED_ARRAYS, "object"])
def test_without_pickle_an_array_of_another_dtype_is_rejected_by_name(value: Array) -> None:
    with pytest.raises(UnsupportedDtype, match="set allow_pickle=True") as caught:
        values.encode(value, allow_pickle=False)
    assert f"dtype {value.dtype}" in str(caught.value)


def test_a_masked_array_is_rejected() -> None:
    with pytest.raises(UnsupportedDtype, match=r"mask would be lost; try value\.filled"):
        values.encode(np.ma.masked_array([1.0, 2.0], [True, False]))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *[("float32", shape) for shape in ((), (3,), (2, 2), (-1,), (2, -1), (-1, -2), (2**62, 4))],
        ("float64", (2,)),
        ("float128", (1,)),
    ],
)
@pytest.mark.usefixtures("way")
def test_metadata_that_does_not_fit_the_bytes_raises_decode_error(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(DecodeError, match=kind):
        values.decode(mapped(b"12345678", kind, shape))


def test_an_unknown_form_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="'parquet'"):
        values.decode(mapped(b"12345678", form="parquet"))
    assert FORMS == ("plain", "torch", "arrow", "pickle")


# Other libraries' arrays, by DLPack


class Lent:
    """An array of another library over NumPy's memory."""

    def __init__(self, value: Array, device: tuple[int, int] = (1, 0)) -> None:
        self.value, self.device = value, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)


def test_a_dlpack_array_is_encoded_without_a_copy_and_decoded_as_numpy() -> None:
    value = counting((5, 3))
    encoded = values.encode(Lent(value), allow_pickle=False)
    assert (encoded.kind, encoded.shape, encoded.form) == ("float32", (5, 3), "plain")
    (part,) = encoded.parts
    assert address(part) == value.ctypes.data
    same(values.decode(store(encoded)), value)


def test_a_dlpack_array_of_another_dtype_is_decoded_as_numpy() -> None:
    got = there_and_back(Lent(np.array([1j])))
    same(got, np.array([1j]))


class LentOtherwise(Lent):
    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no letter for it")

    def __array__(self, *arguments: Any, **options: Any) -> Array:
        return self.value


def test_an_array_that_dlpack_can_not_export_is_converted_by_numpy() -> None:
    for dtype in ("bfloat16", "float8_e5m2", "int4"):
        value = counting((5, 3), dtype)
        same(there_and_back(LentOtherwise(value)), value)


def test_an_array_on_another_device_is_rejected_by_name() -> None:
    with pytest.raises(UnsupportedDtype, match=r"Lent on device CUDA 3.*numpy\.asarray"):
        values.encode(Lent(counting((3,)), (2, 3)))
    with pytest.raises(UnsupportedDtype, match="device type 99 0"):
        values.encode(Lent(counting((3,)), (99, 0)))


# Other buffers


FLOATS = ctypes.c_float * 3

BUFFERS: dict[str, tuple[Any, Array]] = {
    **{letter: (array.array(letter, [1, 2, 3]), np.array([1, 2, 3], letter)) for letter in "hHiIlLqQfd"},
    "ctypes": (
        (ctypes.c_float * 3 * 2)(FLOATS(1, 2, 3), FLOATS(4, 5, 6)),
        np.array([[1, 2, 3], [4, 5, 6]], np.float32),
    ),
    "ctypes scalar": (ctypes.c_int64(5), np.array(5, np.int64)),
    "ctypes bytes": ((ctypes.c_ubyte * 2 * 1)((ctypes.c_ubyte * 2)(1, 2)), np.array([[1, 2]], np.uint8)),
    "memoryview": (np.eye(3).data, np.eye(3)),
    "half": (np.eye(3, dtype=np.float16).data, np.eye(3, dtype=np.float16)),
    "strided": (np.eye(4)[::2].data, np.eye(4)[::2]),
    "fortran": (np.asfortranarray(np.eye(3, 4)).data, np.eye(3, 4)),
    "cast": (memoryview(bytes(24)).cast("d", (3, 1)), np.zeros((3, 1))),
    "empty": (array.array("f"), np.empty(0, np.float32)),
    "zero in shape": (np.empty((3, 0, 2)).data, np.empty((3, 0, 2))),
}


@pytest.mark.parametrize(("value", "expected"), BUFFERS.values(), ids=BUFFERS.keys())
def test_a_buffer_of_numbers_is_an_array(value: Any, expected: Array) -> None:
    encoded = values.encode(value, allow_pickle=False)
    assert (encoded.kind, encoded.shape, encoded.form) == (expected.dtype.name, expected.shape, "plain")
    same(values.decode(store(encoded)), expected)
    if memoryview(value).c_contiguous and expected.size:
        assert address(encoded.parts[0]) == address(value)


def test_a_memoryview_of_another_format_is_rejected_by_name() -> None:
    for value, form in ((np.array(["x"]), "'1w'"), (np.zeros(1, "g"), "'g'"), (np.array([1], ">i4"), "'>i'")):
        with pytest.raises(UnsupportedDtype, match=rf"memoryview of format {form}.*put numpy\.asarray"):
            values.encode(value.data)


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_int))


def test_a_buffer_that_is_no_array_is_pickled() -> None:
    got = there_and_back(Point(1.5, 2))
    assert (type(got), got.x, got.y) == (Point, 1.5, 2)


# create


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_an_empty_array_writes_into_the_buffer(dtype: str) -> None:
    for shape in SHAPES:
        value = counting(shape, dtype)
        buffer = bytearray(value.nbytes)
        got = values.empty(dtype, shape, memoryview(buffer))
        got[...] = value
        same(got, value)
        assert buffer == value.tobytes()


def test_empty_bytes_are_a_memoryview() -> None:
    buffer = bytearray(5)
    got = values.empty("bytes", (5,), buffer)
    assert (type(got), got.format, got.nbytes) == (memoryview, "B", 5)
    got[:] = b"hello"
    assert buffer == b"hello"
    assert values.empty("bytes", (0,), bytearray()) == b""


@pytest.mark.parametrize("name", ARRAY_DTYPES)
def test_a_dtype_is_accepted_in_every_spelling(name: str) -> None:
    dtype = numpy_dtype(name)
    assert [values.check_dtype(each) for each in (name, dtype, dtype.type)] == [name] * 3
    assert values.check_dtype("bytes") == "bytes"
    assert values.check_dtype(type("OfAnotherLibrary", (), {"dtype": dtype})) == name


@pytest.mark.parametrize("dtype", ["float128", "", None, 3, np.str_, np.dtype("U3"), []], ids=repr)
def test_an_unknown_dtype_is_rejected_with_the_supported_ones(dtype: object) -> None:
    with pytest.raises(UnsupportedDtype, match=r"use one of bytes, float16, bfloat16, .*uint64, bool") as caught:
        values.check_dtype(dtype)
    assert repr(dtype) in str(caught.value)


# get(out=...)


@pytest.mark.parametrize("dtype", ARRAY_DTYPES)
def test_an_array_can_be_an_out(dtype: str) -> None:
    for shape in SHAPES:
        value, out = counting(shape, dtype), np.zeros(shape, numpy_dtype(dtype))
        encoded = values.encode(value)
        opened = values.writable(out)
        assert (opened.kind, opened.shape) == (encoded.kind, encoded.shape)
        assert (opened.data.format, opened.data.ndim, opened.data.nbytes) == ("B", 1, encoded.nbytes)
        opened.data[:] = joined(encoded)
        same(out, value)


OUTS: dict[str, tuple[Any, str, tuple[int, ...]]] = {
    "bytearray": (bytearray(24), "bytes", (24,)),
    "memoryview": (memoryview(bytearray(24)), "bytes", (24,)),
    "array.array": (array.array("d", [0, 0, 0]), "float64", (3,)),
    "ctypes": ((ctypes.c_double * 3 * 1)(), "float64", (1, 3)),
    "empty": (bytearray(), "bytes", (0,)),
    "empty array": (array.array("d"), "float64", (0,)),
}


@pytest.mark.parametrize(("out", "kind", "shape"), OUTS.values(), ids=OUTS.keys())
def test_a_buffer_can_be_an_out(out: Any, kind: str, shape: tuple[int, ...]) -> None:
    opened = values.writable(out)
    assert (opened.kind, opened.shape) == (kind, shape)
    assert (opened.data.format, opened.data.ndim) == ("B", 1)
    opened.data[:] = bytes([7]) * opened.data.nbytes
    assert bytes(out) == bytes([7]) * opened.data.nbytes


def read_only_array() -> Array:
    value = np.zeros(3)
    value.flags.writeable = False
    return value


NO_OUTS: dict[str, tuple[Any, type[Exception], str]] = {
    "read-only array": (read_only_array(), InvalidArgument, "read-only"),
    "strided array": (np.zeros(6)[::2], InvalidArgument, "numpy.ascontiguousarray"),
    "fortran array": (np.zeros((2, 3), order="F"), InvalidArgument, "not C-contiguous"),
    "masked array": (np.ma.masked_array([1.0]), InvalidArgument, "out.data"),
    "text array": (np.zeros(3, "U3"), UnsupportedDtype, "<U3"),
    "big-endian array": (np.zeros(3, ">f4"), UnsupportedDtype, "little-endian"),
    "bytes": (b"hello", InvalidArgument, "read-only"),
    "strided memoryview": (memoryview(bytearray(6))[::2], InvalidArgument, "not C-contiguous"),
    "text memoryview": (np.zeros(3, "U3").data, UnsupportedDtype, "format '3w'"),
    "list": ([1, 2], InvalidArgument, "out is a builtins.list"),
    "None": (None, InvalidArgument, "NoneType"),
}


@pytest.mark.parametrize(("out", "error", "text"), NO_OUTS.values(), ids=NO_OUTS.keys())
def test_an_invalid_out_is_rejected(out: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        values.writable(out)
    assert text in str(caught.value)


# Imports


LIBRARIES = ("numpy", "ml_dtypes", "torch", "pyarrow")

PLAIN_PYTHON = """
import array, sys
sys.path.insert(0, {tests!r})
from hoplite import values
from stored import there_and_back
for value in (b"x", bytearray(b"x"), memoryview(b"x"), "text", 1, None, [1, {{"a": (2.5, b"x")}}]):
    for copy in (False, True):
        assert there_and_back(value, copy=copy) == value
values.encode(array.array("d", [1, 2]))
values.writable(bytearray(3))
values.check_dtype("bfloat16")
print([name for name in {libraries!r} if name in sys.modules])
"""


def run(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_plain_python_values_import_no_library() -> None:
    tests = str(__file__).rpartition("/")[0]
    assert run(PLAIN_PYTHON.format(tests=tests, libraries=LIBRARIES)) == "[]"


@pytest.mark.parametrize(
    ("kind", "form", "missing"),
    [
        ("float32", "plain", "numpy"),
        ("bfloat16", "plain", "ml_dtypes"),
        ("float8_e4m3fn", "plain", "ml_dtypes"),
        ("float32", "torch", "torch"),
        ("bytes", "arrow", "pyarrow"),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    kind: str, form: str, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_numpy(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)
    each = {"bfloat16": 2, "float32": 4}.get(kind, 1)
    view = mapped(bytes(8), kind, (8 // each,), form)
    with pytest.raises(UnsupportedDtype, match=rf"get needs {missing}.*pip install .*'{missing.replace('_', '-')}>="):
        values.decode(view)


def test_a_dtype_that_this_version_of_ml_dtypes_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", SimpleNamespace(__version__="0.1"))
    need = r"array of float8_e3m4: get needs a newer ml_dtypes, because version 0\.1 has no float8_e3m4.*install -U"
    with pytest.raises(UnsupportedDtype, match=need):
        values.decode(mapped(bytes(8), "float8_e3m4", (8,)))
