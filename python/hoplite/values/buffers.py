"""Bytes, and whatever else exports the buffer protocol: array.array, ctypes arrays, memoryviews of numbers.

One dimension of bytes or characters (formats B, b, c) is bytes; a buffer of other numbers is an array of them, so that
it can be reduced. Needs no NumPy on the way in.
"""

from __future__ import annotations

import sys
from pickle import PickleBuffer

from hoplite.errors import UnsupportedDtype
from hoplite.values.kinds import BYTES, DTYPES, DTYPES_IN_WORDS, PLAIN, Encoded

# Format letters of the struct module; an integer's width is the buffer's item size, since C's long has two.
_FAMILIES = dict.fromkeys("bhilqn", "int") | dict.fromkeys("BHILQN", "uint") | dict.fromkeys("efd", "float")

# Those with a name of their own; PEP 3118 writes complex numbers with a Z, Python 3.14 with one capital letter.
_NAMES = {"?": "bool"} | dict.fromkeys(("Zf", "F"), "complex64") | dict.fromkeys(("Zd", "D"), "complex128")


def encode_bytes(value: bytes | bytearray) -> Encoded:
    """Takes bytes apart."""
    # A bytearray can't change its size while a memoryview looks at it.
    return Encoded(BYTES, (len(value),), PLAIN, len(value), (memoryview(value),))


def encode_buffer(view: memoryview) -> Encoded | None:
    """Takes a buffer apart, without a copy if it is in C order; None if its format says no dtype."""
    kind = format_kind(view)
    if kind is None:
        return None
    flat = PickleBuffer(view).raw() if view.c_contiguous else memoryview(view.tobytes())
    shape = (flat.nbytes,) if kind == BYTES else tuple(view.shape or ())
    return Encoded(kind, shape, PLAIN, flat.nbytes, (flat,))


def format_kind(view: memoryview) -> str | None:
    """What a buffer's elements are: "bytes", one of `DTYPES`, or None."""
    swapped = ">!" if sys.byteorder == "little" else "<"
    if view.format[:1] in swapped:
        return None
    letter = view.format.lstrip("@=<>!")
    if view.ndim == 1 and letter in ("B", "b", "c"):
        return BYTES
    kind = _NAMES.get(letter) or f"{_FAMILIES.get(letter)}{8 * view.itemsize}"
    return kind if kind in DTYPES else None


def refuse(view: memoryview) -> UnsupportedDtype:
    """The error for a memoryview whose format says no dtype."""
    return UnsupportedDtype(
        f"can't put a memoryview of format {view.format!r}: supported are those of bytes, {DTYPES_IN_WORDS}; "
        "try numpy.asarray(value)"
    )
