"""The short way for arrays of NumPy's own dtypes, which are most of what programs put and get.

A program that slept before its call finds the caches of the processor cold; then each line of code counts, and asking
what else a value might be takes longer than the store does. What this does not know goes the long way.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hoplite.values.kinds import DTYPES, PLAIN, Encoded

if TYPE_CHECKING:
    from hoplite.values import View

# Of which NumPy exports no buffer.
_LONG = ("bfloat16", "datetime64", "timedelta64")

# Filled when the long way first meets NumPy, so that no later value has to look for it.
_arrays: list[type] = []
_kinds: dict[Any, str] = {}
_dtypes: dict[str, Any] = {}
_frombuffer: Any = None


def learn(numpy: Any) -> None:  # noqa: ANN401 - a module
    """Makes NumPy known here. Elements are little-endian, so that elsewhere all go the long way."""
    global _frombuffer
    if _arrays or sys.byteorder != "little":
        return
    _frombuffer = numpy.frombuffer
    # The buffer protocol has no letters for the others.
    _dtypes.update({kind: numpy.dtype(kind) for kind in DTYPES if kind not in _LONG})
    _kinds.update({dtype: kind for kind, dtype in _dtypes.items()})
    _arrays.append(numpy.ndarray)


def encode_quickly(value: Any) -> Encoded | None:  # noqa: ANN401 - anything
    """Takes apart an array that can be put as it lies in memory; None for anything else."""
    if type(value) not in _arrays:
        return None
    kind = _kinds.get(value.dtype)
    if kind is None or not value.flags.c_contiguous:
        return None
    return Encoded(kind, value.shape, PLAIN, value.nbytes, (value,))


def decode_quickly(view: View) -> Any:  # noqa: ANN401 - no import here
    """A read-only array over an object's bytes; None for what is no such array, or not as large as it says."""
    dtype = _dtypes.get(view.kind)
    if dtype is None or view.form != PLAIN:
        return None
    try:
        array, shape = _frombuffer(view, dtype), view.shape
        if array.shape != shape:
            array = array.reshape(shape)
        # NumPy takes -1 for what is left.
        return array if array.shape == shape else None
    except (ValueError, OverflowError):
        # Empty, or of a shape that no array has, which NumPy does not take here either.
        return None
