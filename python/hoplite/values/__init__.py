"""Any Python value to bytes with a dtype, a shape and a form, and back; copied only where that can't be helped.

| value | becomes | comes back as |
|---|---|---|
| bytes, bytearray, memoryview of bytes | bytes | read-only memoryview |
| NumPy array or scalar of `DTYPES`, memmap; array.array, ctypes array, memoryview of numbers; JAX and others by DLPack | its elements, little-endian, in C order | read-only NumPy array |
| PyTorch CPU tensor or Parameter of `DTYPES` | its elements | tensor, a copy |
| pyarrow Array, ChunkedArray, RecordBatch, Table | an Arrow stream | the same type, over shared memory |
| anything else: arrays of text, records, objects or longdouble, subclasses of ndarray, Python objects | a pickle; arrays inside it are kept apart | as pickle makes it; arrays inside read-only, tensors copied |

docs/values.md has it in full. NumPy, ml_dtypes, torch and pyarrow are imported by values that need them, and by nothing else. Knows no store, no
client and no name of an object.
"""  # noqa: E501 - a table

from __future__ import annotations

from typing import Any, Protocol

from hoplite.errors import DecodeError, UnsupportedDtype
from hoplite.values import arrow, buffers
from hoplite.values.allowed import Allowed, check_allowed
from hoplite.values.arrays import decode_array, empty, encode_array, lend_array
from hoplite.values.arrow import decode_arrow, encode_arrow
from hoplite.values.buffers import encode_buffer, encode_bytes
from hoplite.values.kinds import (
    ARROW,
    BYTES,
    DTYPES,
    DTYPES_IN_WORDS,
    FORMS,
    OPS,
    PICKLE,
    PLAIN,
    TORCH,
    Encoded,
    check_dtype,
    check_size,
    loaded,
)
from hoplite.values.objects import decode_object, encode_object
from hoplite.values.out import OutBuffer, writable
from hoplite.values.quick import decode_quickly, encode_quickly
from hoplite.values.tensors import decode_tensor, encode_tensor

__all__ = [
    "DTYPES",
    "FORMS",
    "OPS",
    "Allowed",
    "Encoded",
    "OutBuffer",
    "View",
    "check_allowed",
    "check_dtype",
    "decode",
    "empty",
    "encode",
    "writable",
]


class View(Protocol):
    """An object in shared memory, read-only by the buffer protocol, pinned while a buffer of it lives."""

    @property
    def kind(self) -> str:
        """One of `DTYPES`, or "bytes"."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an array its shape, of bytes `(nbytes,)`."""

    @property
    def form(self) -> str:
        """One of `FORMS`."""

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The bytes."""


def encode(value: Any, *, allow_pickle: Allowed = True) -> Encoded:  # noqa: ANN401 - anything
    """Takes a value apart into what the store keeps.

    Args:
        value: anything; the package's description says what becomes of it. A subclass of ndarray or Tensor, other than
            memmap and Parameter, is pickled, as is an array of text, records, objects or longdouble.
        allow_pickle: whether a value that takes a pickle may be put at all, or which classes and functions it may use.

    Raises:
        InvalidArgument: pickle, or Arrow, can't take the value; says why.
        UnsupportedDtype: the value takes a pickle that is not allowed, or is a masked array, a memoryview of an
            unsupported format, or an array on another device.
    """
    encoded = encode_quickly(value)
    if encoded is not None:
        return encoded
    encoded = _encode_elements(value)
    # Of the type, not the value: a class that lends its arrays is no array. NumPy's and PyTorch's had their chance.
    if encoded is None and hasattr(type(value), "__dlpack_device__") and not isinstance(value, _known()):
        value = lend_array(value)
        encoded = encode_array(value)
    if encoded is not None:
        return encoded
    if allow_pickle is False:
        dtype = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
        raise UnsupportedDtype(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}{dtype} without pickle: allow_pickle=True "
            f"would do it; without it, bytes, Arrow data and arrays of {DTYPES_IN_WORDS} are taken"
        )
    return encode_object(value, allow_pickle)


def decode(view: View, *, copy: bool = False, allow_pickle: Allowed = True) -> Any:  # noqa: ANN401 - as it was put
    """Makes a value of an object's bytes.

    Args:
        view: the object; what lies over its memory keeps it pinned.
        copy: make a private copy, and a writable one, but for bytes and Arrow data. Without it all but tensors, which
            can't be read-only, lie over the object's memory.
        allow_pickle: whether a pickled object may be read, since unpickling runs code that its putter has chosen; or
            which classes and functions it may use.

    Raises:
        DecodeError: the bytes are not what form, dtype and shape say, or the pickle can't be read here, as for want
            of a class, or may not be.
        UnsupportedDtype: it takes a package that is not installed.
    """
    if not copy:
        array = decode_quickly(view)
        if array is not None:
            return array
    data = memoryview(view).toreadonly()
    if view.form not in FORMS:
        raise DecodeError(f"the object is of form {view.form!r}, which this version of hoplite does not know")
    if view.form == PICKLE:
        if allow_pickle is False:
            raise DecodeError(
                "the object is pickled, and allow_pickle is False, as by default in a cluster that is plain or has no "
                "token; put arrays or bytes instead"
            )
        return decode_object(data, copy, allow_pickle)
    if view.form == ARROW:
        return decode_arrow(memoryview(bytes(data)) if copy else data)
    if view.kind == BYTES:
        return bytes(data) if copy else data
    check_size(view.kind, view.shape, data.nbytes)
    assert view.form in (PLAIN, TORCH)
    try:
        if view.form == TORCH:
            return decode_tensor(data, view.kind, view.shape)
        return decode_array(data, view.kind, view.shape, copy)
    except (ValueError, OverflowError, RuntimeError) as error:
        # Too many dimensions, or lengths beside a 0 that no array may have.
        raise DecodeError(f"the object's shape {view.shape} is none of an array here: {error}") from error


def _known() -> tuple[type, ...]:
    return loaded("numpy", "ndarray", "generic") + loaded("torch", "Tensor")


def _encode_elements(value: Any) -> Encoded | None:  # noqa: ANN401 - anything
    """Takes apart what needs no pickle; None for anything else."""
    if isinstance(value, bytes | bytearray):
        return encode_bytes(value)
    if isinstance(value, loaded("numpy", "ndarray", "generic")):
        return encode_array(value)
    if isinstance(value, loaded("torch", "Tensor")):
        return encode_tensor(value)
    if isinstance(value, loaded("pyarrow", *arrow.TYPES)):
        return encode_arrow(value)
    try:
        exported = memoryview(value)
    except (TypeError, BufferError):
        return None
    encoded = encode_buffer(exported)
    if encoded is None and isinstance(value, memoryview):
        raise buffers.refuse(value)
    return encoded
