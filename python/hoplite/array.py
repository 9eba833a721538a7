"""Values to bytes and back: NumPy arrays of any shape, and plain bytes, never copied where that can be helped.

Imports NumPy only for values that need it: an array that is put proves that NumPy is there already.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from hoplite.errors import UnsupportedDtype

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer

    from hoplite._native import View

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)

# What the store calls bytes without further meaning.
BYTES = "bytes"


def to_buffer(value: object) -> tuple[Buffer, str, tuple[int, ...]]:
    """Takes a value apart into what the store keeps.

    Args:
        value: a NumPy array or scalar of a dtype in `DTYPES`, any shape; or bytes, bytearray or memoryview. What is
            contiguous and little-endian is not copied.

    Returns:
        A contiguous buffer, "bytes" or the dtype's name, and the shape; of bytes the shape is their number.

    Raises:
        UnsupportedDtype: the value is of another type; the message says which.
    """
    if isinstance(value, bytes | bytearray):
        return value, BYTES, (len(value),)
    if isinstance(value, memoryview):
        flat = value.cast("B") if value.c_contiguous and value.nbytes else value.tobytes()
        return flat, BYTES, (value.nbytes,)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return _array_to_buffer(numpy, value)
    raise UnsupportedDtype(
        f"can't put a {type(value).__module__}.{type(value).__qualname__}: only NumPy arrays and bytes are objects; "
        "try numpy.asarray(value)"
    )


def _array_to_buffer(numpy: Any, value: Any) -> tuple[Buffer, str, tuple[int, ...]]:  # noqa: ANN401 - no import here
    if isinstance(value, numpy.ma.MaskedArray):
        raise UnsupportedDtype("can't put a masked array, the mask would be lost; try value.filled(0)")
    dtype = value.dtype
    if dtype.name not in DTYPES:
        raise UnsupportedDtype(f"can't put an array of dtype {dtype}: supported are {', '.join(DTYPES)}")
    array = numpy.asarray(value, dtype=dtype.newbyteorder("<"), order="C")
    # As plain bytes, since the buffer protocol has no letter for bfloat16; flat, since a 0-d array has no byte view.
    return array.reshape(-1).view(numpy.uint8), dtype.name, tuple(value.shape)


def from_view(view: View) -> np.ndarray[Any, Any] | memoryview:
    """Makes a value of a view, which stays pinned in the store as long as the value lives.

    Returns:
        A read-only array over the same memory, or a read-only memoryview for bytes.

    Raises:
        UnsupportedDtype: the array needs a package that is not installed.
    """
    if view.kind == BYTES:
        return memoryview(view).toreadonly()
    try:
        import numpy as np
    except ImportError:
        raise UnsupportedDtype(
            f"the object is an array of {view.kind}: get needs NumPy for it, try pip install numpy"
        ) from None

    dtype = _dtype(view.kind)
    if view.nbytes == 0:
        # frombuffer refuses an empty buffer.
        array = np.empty(view.shape, dtype)
        array.flags.writeable = False
        return array
    return np.frombuffer(memoryview(view), np.uint8).view(dtype).reshape(view.shape)


def _dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedDtype(
            "the object is an array of bfloat16, which NumPy lacks: get needs ml_dtypes for it; "
            "try pip install ml_dtypes"
        ) from None
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype
