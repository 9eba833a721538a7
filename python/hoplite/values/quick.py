"""Fast path for arrays of NumPy's own dtypes, the most common values.

After a process has slept, the CPU caches are cold and each line of code counts: checks for other types would take
longer than the store. All other values take the general path.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hoplite.values.kinds import DTYPES, ML_DTYPES, PACKED, PLAIN, Encoded

if TYPE_CHECKING:
    from hoplite.values import View

# Dtypes for which NumPy exports no buffer.
_LONG = ML_DTYPES | {PACKED, "datetime64", "timedelta64"}

# Filled when the general path first handles a NumPy array, so that later values need no lookup of NumPy.
_arrays: list[type] = []
_kinds: dict[Any, str] = {}
_dtypes: dict[str, Any] = {}
_frombuffer: Any = None


def learn(numpy: Any) -> None:  # noqa: ANN401 - a module
    """Enables the fast path once NumPy is imported. Elements are little-endian; other hosts use the general path."""
    global _frombuffer
    if _arrays or sys.byteorder != "little":
        return
    _frombuffer = numpy.frombuffer
    # The buffer protocol has no formats for the others.
    _dtypes.update({kind: numpy.dtype(kind) for kind in DTYPES if kind not in _LONG})
    _kinds.update({dtype: kind for kind, dtype in _dtypes.items()})
    _arrays.append(numpy.ndarray)


def encode_quickly(value: Any) -> Encoded | None:  # noqa: ANN401 - anything
    """Encodes an array that can be put without conversion; returns None for other values."""
    if type(value) not in _arrays:
        return None
    kind = _kinds.get(value.dtype)
    if kind is None or not value.flags.c_contiguous:
        return None
    return Encoded(kind, value.shape, PLAIN, value.nbytes, (value,))


def decode_quickly(view: View) -> Any:  # noqa: ANN401 - no import here
    """Returns a read-only array over an object's bytes; None for other objects and for a wrong size."""
    dtype = _dtypes.get(view.kind)
    if dtype is None or view.form != PLAIN:
        return None
    try:
        array, shape = _frombuffer(view, dtype), view.shape
        if array.shape != shape:
            array = array.reshape(shape)
        # `reshape` accepts -1 for the rest.
        return array if array.shape == shape else None
    except (ValueError, OverflowError):
        # Empty, which `frombuffer` rejects, or a shape that is not valid.
        return None
