"""NumPy arrays, and arrays of other libraries that NumPy can read through DLPack.

Arrays of `DTYPES` are stored as their elements, which a reduce can fold. Others (text, records, objects, subclasses)
are pickled by `reduce_array`, which keeps the elements outside the pickle, so that `get` does not copy them. In both
cases `get` returns a read-only array unless the caller requested a private copy.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

from hoplite.errors import UnsupportedDtype
from hoplite.values import quick
from hoplite.values.kinds import BYTES, ML_DTYPES, PACKED, PLAIN, Encoded, item_bytes, loaded, require
from hoplite.values.parts import Private, unlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

# DLPack devices whose memory the CPU can read: host memory, and host memory pinned for CUDA or ROCm. See DLDeviceType
# in dlpack.h.
_HOST_DEVICES = (1, 3, 11)
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}

# Kinds of dtype with plain elements: numbers, times, text. `dtype.isbuiltin` of a dtype that a package has added.
_SPELLED = "biufcmMUS"
_OF_A_USER = 2
_SPELLING = re.compile(rf"[<>|][{_SPELLED}]\d+(\[\d*[a-zA-Z]+\])?")


def encode_array(value: Any) -> Encoded | None:  # noqa: ANN401 - no import here
    """Encodes an array or a scalar; returns None if it needs a pickle.

    Dtypes outside `DTYPES` need one, and subclasses of ndarray other than memmap, which may have more state.

    Raises:
        UnsupportedDtype: the array is masked.
    """
    numpy = sys.modules["numpy"]
    # Accessing numpy.ma imports it. A child that another thread forks during the import would wait for its lock
    # forever.
    if isinstance(value, loaded("numpy.ma", "MaskedArray")):
        raise UnsupportedDtype("can't put a masked array, because the mask would be lost; try value.filled(0)")
    exact = isinstance(value, numpy.generic) or type(value) in (numpy.ndarray, numpy.memmap)
    kind = _name(value.dtype)
    if not exact or item_bytes(kind) is None:
        return None
    quick.learn(numpy)
    array = numpy.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
    # As bytes, because the buffer protocol has no format for bfloat16 or float8; flat, because a 0-d array has no byte
    # view.
    flat = array.reshape(-1).view(numpy.uint8)
    return Encoded(kind, tuple(value.shape), PLAIN, flat.nbytes, (flat,))


def lend_array(value: Any) -> Any:  # noqa: ANN401 - no import here
    """Returns a NumPy array over the memory of an array of another library (JAX, CuPy, ...).

    Raises:
        UnsupportedDtype: the array is on another device, or NumPy can't read it.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    device, number = (int(each) for each in value.__dlpack_device__())
    if device not in _HOST_DEVICES:
        raise UnsupportedDtype(
            f"can't put a {name} on device {_DEVICES.get(device, f'type {device}')} {number}: "
            "objects are in host memory; copy it there first, for example with numpy.asarray(value) or value.get()"
        )
    numpy = require("numpy", f"putting a {name}")
    try:
        return numpy.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # NumPy's DLPack does not support bfloat16 and float8, and in old versions no read-only arrays. __array__ may
        # support both.
        if hasattr(value, "__array__"):
            return numpy.asarray(value)
        raise UnsupportedDtype(
            f"can't put a {name}: NumPy can't read it ({error}); convert it to a NumPy array first"
        ) from error


def decode_array(data: memoryview, kind: str, shape: tuple[int, ...], copy: bool) -> Any:  # noqa: ANN401
    """Decodes an array from read-only bytes: a read-only view, or a writable copy if `copy` is true."""
    array = over(data, numpy_dtype(kind, f"the object is an array of {kind}: get"), shape)
    return array.copy() if copy else array


def over(data: Buffer, dtype: Any, shape: tuple[int, ...], order: str = "C") -> Any:  # noqa: ANN401 - no import here
    """Returns an array over a buffer of exactly its bytes, writable if the buffer is. It keeps the buffer exported."""
    numpy = require("numpy", "an array")
    view = memoryview(data)
    if view.nbytes == 0:
        # frombuffer refuses an empty buffer.
        array = numpy.empty(shape, dtype, order)
        array.flags.writeable = not view.readonly
        return array
    return numpy.frombuffer(data, numpy.uint8).view(dtype).reshape(shape, order=order)


def numpy_dtype(kind: str, need: str) -> Any:  # noqa: ANN401 - no import here
    """Returns NumPy's dtype for one of `DTYPES`: of the same name, or uint8 for `PACKED`.

    Raises:
        UnsupportedDtype: it needs a package that is not installed, or a newer version of it.
    """
    numpy = require("numpy", need)
    quick.learn(numpy)
    if kind in ML_DTYPES:
        package = require("ml_dtypes", need)
        if not hasattr(package, kind):
            raise UnsupportedDtype(
                f"{need} needs a newer ml_dtypes, because version {package.__version__} has no {kind}: run pip install "
                "-U ml_dtypes"
            )
        return numpy.dtype(getattr(package, kind))
    return numpy.dtype("uint8" if kind == PACKED else kind)


def empty(kind: str, shape: tuple[int, ...], buffer: Buffer) -> Any:  # noqa: ANN401 - no import here
    """Returns a writable value over memory, for `create`.

    Args:
        kind: "bytes" or one of `DTYPES`.
        shape: shape of the array; ignored for bytes.
        buffer: writable buffer of exactly the size of the value.

    Returns:
        A NumPy array over the buffer with its current contents; for bytes, a flat memoryview.
    """
    if kind == BYTES:
        return memoryview(buffer).cast("B")
    return over(buffer, numpy_dtype(kind, f"an array of {kind}"), shape)


def reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """Returns the pickle reducers of arrays by type; `reduce_other` handles the other types."""
    return dict.fromkeys(loaded("numpy", "ndarray", "memmap"), reduce_array)


def reduce_array(array: Any) -> tuple[Any, ...]:  # noqa: ANN401 - no import here
    """Reduces an array for pickle, with its elements out of band.

    NumPy's own reducer does not do this for datetimes, bfloat16 and arrays that are not contiguous, and the function
    that it names is missing in some NumPy versions.
    """
    dtype = array.dtype
    if dtype.hasobject or dtype.itemsize == 0:
        return _locked(array.__reduce_ex__(5))
    numpy = sys.modules["numpy"]
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = numpy.asarray(array.T if order == "F" else array, order="C").reshape(-1).view(numpy.uint8)
    return restore_array, (PickleBuffer(flat), _spelled(dtype), array.shape, order)


def restore_array(buffer: Buffer, dtype: Any, shape: tuple[int, ...], order: str) -> Any:  # noqa: ANN401
    """Restores an array. Stored objects refer to this function by name: do not change its name or arguments.

    Raises:
        ValueError: the bytes do not match the dtype and shape.
    """
    data, dtype = unlock(buffer), _read(dtype)
    if math.prod(shape) * dtype.itemsize != memoryview(data).nbytes:
        raise ValueError(f"{memoryview(data).nbytes} bytes are not an array of {dtype} with shape {shape}")
    return over(data, dtype, shape, order)


def restore_scalar(data: Buffer, dtype: str) -> Any:  # noqa: ANN401 - no import here
    """Restores a scalar. Stored objects refer to this function by name, as to `restore_array`."""
    return restore_array(data, dtype, (), "C")[()]


def reduce_other(value: object) -> Any:  # noqa: ANN401 - or NotImplemented
    """Reduces a scalar, or a subclass of ndarray with its own reducer; NotImplemented leaves others to pickle."""
    if isinstance(value, loaded("numpy", "generic")):
        return _reduce_scalar(value)
    arrays = loaded("numpy", "ndarray")
    if not isinstance(value, arrays) or type(value) in (*arrays, *loaded("numpy", "memmap")):
        return NotImplemented
    # A str is the name of a global.
    reduced = value.__reduce_ex__(5)
    return _locked(reduced) if isinstance(reduced, tuple) else reduced


def _reduce_scalar(scalar: Any) -> Any:  # noqa: ANN401 - or NotImplemented
    """Reduces a scalar with its dtype as text. NumPy would pickle the dtype, which a list may not allow."""
    dtype = scalar.dtype
    spelled = _spelled(dtype) if type(scalar) is dtype.type and dtype.itemsize else None
    return (restore_scalar, (scalar.tobytes(), spelled)) if isinstance(spelled, str) else NotImplemented


def _locked(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Extends the reduction of an array so that restoring it makes it read-only.

    The empty buffer is a marker: if it is restored as a private copy, the array is one too and stays writable.
    """
    make, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
    return make, arguments, (state, setter, PickleBuffer(bytearray())), items, pairs, restore_locked


def restore_locked(array: Any, state: tuple[Any, Any, Buffer]) -> None:  # noqa: ANN401 - no import here
    """Sets the state of an array and makes it read-only. Stored objects refer to this function by name."""
    inner, setter, mark = state
    if setter is not None:
        setter(array, inner)
    elif hasattr(array, "__setstate__"):
        if inner is not None:
            array.__setstate__(inner)
    elif inner:
        # A type other than ndarray, with the default state.
        array.__dict__.update(inner)
    if not isinstance(unlock(mark), Private) and isinstance(array, loaded("numpy", "ndarray")):
        sys.modules["numpy"].ndarray.setflags(array, write=False)


def _spelled(dtype: Any) -> Any:  # noqa: ANN401 - no import here
    """Returns a dtype as text, so that the pickle needs no NumPy function; or the dtype if text can't express it."""
    if dtype.kind in _SPELLED and dtype.isbuiltin != _OF_A_USER and dtype.metadata is None:
        return dtype.str
    return _name(dtype) if dtype.isbuiltin == _OF_A_USER and _name(dtype) in ML_DTYPES else dtype


def _read(dtype: Any) -> Any:  # noqa: ANN401 - no import here
    if not isinstance(dtype, str):
        return dtype
    if dtype in ML_DTYPES:
        return numpy_dtype(dtype, f"an array of {dtype}")
    if not _SPELLING.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is not a dtype of plain elements")
    return require("numpy", "an array").dtype(dtype)


@functools.lru_cache(maxsize=64)
def _name(dtype: Any) -> str:  # noqa: ANN401 - no import here
    """Returns the name of a dtype. Cached: NumPy takes 5 us to build it."""
    return str(dtype.name)
