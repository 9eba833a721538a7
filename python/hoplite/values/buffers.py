"""Bytes, and other values with the buffer protocol: array.array, ctypes arrays, memoryviews of numbers.

A one-dimensional buffer of bytes or characters (formats B, b, c) is stored as bytes. A buffer of other numbers is
stored as an array, so that a reduce can fold it. Encoding does not need NumPy.
"""

from __future__ import annotations

import sys
from pickle import PickleBuffer

from hoplite.errors import UnsupportedDtype
from hoplite.values.kinds import BYTES, DTYPES, DTYPES_IN_WORDS, PLAIN, Encoded

# Format letters of the struct module. The item size gives the width, because C's long has two.
_FAMILIES = dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint") | dict.fromkeys("efd", "float")

# Formats with a fixed dtype. PEP 3118 writes complex numbers with a Z, Python 3.14 with one capital letter.
_NAMES = {"?": "bool"} | dict.fromkeys(("Zf", "F"), "complex64") | dict.fromkeys(("Zd", "D"), "complex128")


def encode_bytes(value: bytes | bytearray) -> Encoded:
    """Encodes bytes."""
    # A bytearray can't change its size while a memoryview of it exists.
    return Encoded(BYTES, (len(value),), PLAIN, len(value), (memoryview(value),))


def encode_buffer(view: memoryview) -> Encoded | None:
    """Encodes a buffer, without a copy if it is in C order; returns None if its format has no dtype."""
    kind = format_kind(view)
    if kind is None:
        return None
    flat = PickleBuffer(view).raw() if view.c_contiguous else memoryview(view.tobytes())
    shape = (flat.nbytes,) if kind == BYTES else tuple(view.shape or ())
    return Encoded(kind, shape, PLAIN, flat.nbytes, (flat,))


def format_kind(view: memoryview) -> str | None:
    """Returns the type of a buffer's elements: "bytes", one of `DTYPES`, or None."""
    swapped = ">!" if sys.byteorder == "little" else "<"
    if view.format[:1] in swapped:
        return None
    letter = view.format.lstrip("@=<>!")
    if view.ndim == 1 and letter in ("B", "b", "c"):
        return BYTES
    kind = _NAMES.get(letter) or f"{_FAMILIES.get(letter)}{8 * view.itemsize}"
    return kind if kind in DTYPES else None


def refuse(view: memoryview) -> UnsupportedDtype:
    """Returns the error for a memoryview whose format has no dtype."""
    return UnsupportedDtype(
        f"can't put a memoryview of format {view.format!r}: put numpy.asarray(value), or a memoryview of bytes, "
        f"{DTYPES_IN_WORDS}"
    )
