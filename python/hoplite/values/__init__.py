"""Conversion of any Python value to bytes with a dtype, a shape and a form, and back. Copies only where necessary.

| value | stored as | returned as |
|---|---|---|
| bytes, bytearray, memoryview of bytes | bytes | read-only memoryview |
| NumPy array or scalar of `DTYPES`, memmap; array.array, ctypes array, memoryview of numbers; JAX and others by DLPack | its elements, little-endian, in C order | read-only NumPy array |
| PyTorch CPU tensor or Parameter of `DTYPES` | its elements | tensor, a copy |
| pyarrow Array, ChunkedArray, RecordBatch, Table | an Arrow stream | the same type, over shared memory |
| anything else: arrays of text, records, objects or longdouble, subclasses of ndarray, Python objects | a pickle, with the arrays inside it stored separately | the result of unpickling; arrays inside are read-only, tensors are copies |

docs/values.md has the complete table. NumPy, ml_dtypes, torch and pyarrow are imported only when a value needs them. Does not know stores,
clients or names of objects.
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
    NARROW_DTYPES,
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
from hoplite.values.out import OutBuffer, check_apart, writable
from hoplite.values.quick import decode_quickly, encode_quickly
from hoplite.values.tensors import decode_tensor, encode_tensor

__all__ = [
    "DTYPES",
    "FORMS",
    "NARROW_DTYPES",
    "OPS",
    "Allowed",
    "Encoded",
    "OutBuffer",
    "View",
    "check_allowed",
    "check_apart",
    "check_dtype",
    "decode",
    "empty",
    "encode",
    "writable",
]


class View(Protocol):
    """An object in shared memory, read-only through the buffer protocol. It is pinned while a buffer of it exists."""

    @property
    def kind(self) -> str:
        """One of `DTYPES`, or "bytes"."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an array; `(nbytes,)` for bytes."""

    @property
    def form(self) -> str:
        """One of `FORMS`."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    def __buffer__(self, flags: int, /) -> memoryview:
        """The bytes."""


def encode(value: Any, *, allow_pickle: Allowed = True) -> Encoded:  # noqa: ANN401 - anything
    """Encodes a value for the store.

    Args:
        value: any value; the table in the module's docstring shows its encoding. Subclasses of ndarray and Tensor,
            other than memmap and Parameter, are pickled, and so are arrays of text, records, objects or longdouble.
        allow_pickle: whether a value that needs pickle may be put, or which classes and functions the pickle may use.

    Raises:
        InvalidArgument: pickle or Arrow can't encode the value.
        UnsupportedDtype: the value needs a pickle that is not allowed, or it is a masked array, a memoryview of an
            unsupported format, or an array on another device.
    """
    encoded = encode_quickly(value)
    if encoded is not None:
        return encoded
    encoded = _encode_elements(value)
    # The type must have DLPack: a class object with that attribute is not an array. NumPy and PyTorch are handled
    # above.
    if encoded is None and hasattr(type(value), "__dlpack_device__") and not isinstance(value, _known()):
        value = lend_array(value)
        encoded = encode_array(value)
    if encoded is not None:
        return encoded
    if allow_pickle is False:
        dtype = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
        raise UnsupportedDtype(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}{dtype} without pickle: set "
            f"allow_pickle=True, or put bytes, Arrow data or an array of {DTYPES_IN_WORDS}"
        )
    return encode_object(value, allow_pickle)


def decode(view: View, *, copy: bool = False, allow_pickle: Allowed = True) -> Any:  # noqa: ANN401 - as it was put
    """Decodes the value of an object.

    Args:
        view: the object. Values over its memory keep it pinned.
        copy: return a private copy, which is writable except for bytes and Arrow data. Otherwise all values but
            tensors, which can't be read-only, use the object's memory.
        allow_pickle: whether a pickled object may be read, or which classes and functions the pickle may use. A pickle
            runs code of the program that put it.

    Raises:
        DecodeError: the bytes do not match the form, dtype and shape; or the pickle can't be read here, for example
            because a class is missing, or is not allowed.
        UnsupportedDtype: the value needs a package that is not installed.
    """
    if not copy:
        array = decode_quickly(view)
        if array is not None:
            return array
    data = memoryview(view).toreadonly()
    if view.form not in FORMS:
        raise DecodeError(f"the object has the unknown form {view.form!r}: use the same version of hoplite everywhere")
    if view.form == PICKLE:
        if allow_pickle is False:
            raise DecodeError(
                "the object is a pickle, and allow_pickle is False, the default in a cluster without authentication or "
                "encryption: put arrays or bytes instead"
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
        # Too many dimensions, or, next to an axis of length 0, one that is too long.
        raise DecodeError(f"the object's shape {view.shape} is not valid here: {error}") from error


def _known() -> tuple[type, ...]:
    return loaded("numpy", "ndarray", "generic") + loaded("torch", "Tensor")


def _encode_elements(value: Any) -> Encoded | None:  # noqa: ANN401 - anything
    """Encodes values that need no pickle; returns None for others."""
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
