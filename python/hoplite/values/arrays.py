"""NumPy arrays, and arrays of other libraries that lend themselves to NumPy by DLPack.

An array of `DTYPES` is its elements, which a reduce can fold. Others (text, records, objects, subclasses) are pickled,
by `reduce_array`, which keeps the elements outside the pickle, where they need no copy to be read. Either way what
`get` returns is read-only, unless it was asked for a private copy.
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
from hoplite.values.kinds import BYTES, PLAIN, Encoded, item_bytes, loaded, require
from hoplite.values.parts import Private, unlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

# Devices of DLPack whose memory the processor can read: plain, and pinned for CUDA or ROCm. dlpack.h, DLDeviceType.
_HOST_DEVICES = (1, 3, 11)
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}

# The kinds of dtype that are plain elements: numbers, times, text. What NumPy calls one that a package has added.
_SPELLED = "biufcmMUS"
_OF_A_USER = 2
_SPELLING = re.compile(rf"[<>|][{_SPELLED}]\d+(\[\d*[a-zA-Z]+\])?")


def encode_array(value: Any) -> Encoded | None:  # noqa: ANN401 - no import here
    """Takes an array or a scalar apart; None if only a pickle keeps all of it.

    That is so of dtypes outside `DTYPES`, and of subclasses of ndarray, which may hold more than elements; a memmap
    holds no more.

    Raises:
        UnsupportedDtype: the array is masked.
    """
    numpy = sys.modules["numpy"]
    # To name numpy.ma would import it, and a child that another thread forks in that moment would wait for it for ever.
    if isinstance(value, loaded("numpy.ma", "MaskedArray")):
        raise UnsupportedDtype("can't put a masked array, the mask would be lost; try value.filled(0)")
    exact = isinstance(value, numpy.generic) or type(value) in (numpy.ndarray, numpy.memmap)
    kind = _name(value.dtype)
    if not exact or item_bytes(kind) is None:
        return None
    quick.learn(numpy)
    array = numpy.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
    # As plain bytes, since the buffer protocol has no letter for bfloat16; flat, since a 0-d array has no byte view.
    flat = array.reshape(-1).view(numpy.uint8)
    return Encoded(kind, tuple(value.shape), PLAIN, flat.nbytes, (flat,))


def lend_array(value: Any) -> Any:  # noqa: ANN401 - no import here
    """A NumPy array over the memory of an array of another library (JAX, CuPy, ...).

    Raises:
        UnsupportedDtype: the array is on another device, or does not lend itself to NumPy.
    """
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    device, number = (int(each) for each in value.__dlpack_device__())
    if device not in _HOST_DEVICES:
        raise UnsupportedDtype(
            f"can't put a {name} on device {_DEVICES.get(device, f'type {device}')} {number}: "
            "objects are made in host memory; copy it there first, as by numpy.asarray(value) or value.get()"
        )
    numpy = require("numpy", f"putting a {name}")
    try:
        return numpy.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # NumPy's DLPack has no bfloat16, and old ones nothing read-only; __array__ may have both.
        if hasattr(value, "__array__"):
            return numpy.asarray(value)
        raise UnsupportedDtype(
            f"can't put a {name}: NumPy can't read it ({error}); try to make a NumPy array of it first"
        ) from error


def decode_array(data: memoryview, kind: str, shape: tuple[int, ...], copy: bool) -> Any:  # noqa: ANN401
    """Makes an array of read-only bytes: read-only over them, or a writable copy if `copy` is true."""
    array = over(data, numpy_dtype(kind, f"the object is an array of {kind}: get"), shape)
    return array.copy() if copy else array


def over(data: Buffer, dtype: Any, shape: tuple[int, ...], order: str = "C") -> Any:  # noqa: ANN401 - no import here
    """An array over a buffer of exactly its bytes, writable if the buffer is; it holds an export of the buffer."""
    numpy = require("numpy", "an array")
    view = memoryview(data)
    if view.nbytes == 0:
        # frombuffer refuses an empty buffer.
        array = numpy.empty(shape, dtype, order)
        array.flags.writeable = not view.readonly
        return array
    return numpy.frombuffer(data, numpy.uint8).view(dtype).reshape(shape, order=order)


def numpy_dtype(kind: str, need: str) -> Any:  # noqa: ANN401 - no import here
    """NumPy's own dtype for one of `DTYPES`.

    Raises:
        UnsupportedDtype: that takes a package that is not installed.
    """
    numpy = require("numpy", need)
    quick.learn(numpy)
    if kind == "bfloat16":
        return numpy.dtype(require("ml_dtypes", need).bfloat16)
    return numpy.dtype(kind)


def empty(kind: str, shape: tuple[int, ...], buffer: Buffer) -> Any:  # noqa: ANN401 - no import here
    """Makes a value to be filled of memory, for `create`.

    Args:
        kind: "bytes" or one of `DTYPES`.
        shape: of the array; for bytes not looked at.
        buffer: writable, of exactly as many bytes.

    Returns:
        A writable NumPy array over the buffer, whatever it holds; for bytes, a flat memoryview of it.
    """
    if kind == BYTES:
        return memoryview(buffer).cast("B")
    return over(buffer, numpy_dtype(kind, f"an array of {kind}"), shape)


def reducers() -> dict[type, Callable[[Any], tuple[Any, ...]]]:
    """How pickle is to take arrays apart, by type; `reduce_other` is for the rest."""
    return dict.fromkeys(loaded("numpy", "ndarray", "memmap"), reduce_array)


def reduce_array(array: Any) -> tuple[Any, ...]:  # noqa: ANN401 - no import here
    """Takes an array apart for pickle, elements out of band.

    NumPy does so itself, but not for datetimes, bfloat16 and what is not contiguous, and the function that it names is
    not in every version of it.
    """
    dtype = array.dtype
    if dtype.hasobject or dtype.itemsize == 0:
        return _locked(array.__reduce_ex__(5))
    numpy = sys.modules["numpy"]
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = numpy.asarray(array.T if order == "F" else array, order="C").reshape(-1).view(numpy.uint8)
    return restore_array, (PickleBuffer(flat), _spelled(dtype), array.shape, order)


def restore_array(buffer: Buffer, dtype: Any, shape: tuple[int, ...], order: str) -> Any:  # noqa: ANN401
    """Puts an array together again. Objects in stores name this function: it keeps its name and arguments.

    Raises:
        ValueError: these bytes are no array of that dtype and shape.
    """
    data, dtype = unlock(buffer), _read(dtype)
    if math.prod(shape) * dtype.itemsize != memoryview(data).nbytes:
        raise ValueError(f"{memoryview(data).nbytes} bytes are no array of {dtype} with shape {shape}")
    return over(data, dtype, shape, order)


def restore_scalar(data: Buffer, dtype: str) -> Any:  # noqa: ANN401 - no import here
    """Puts a scalar together again. Objects in stores name this function, as `restore_array`."""
    return restore_array(data, dtype, (), "C")[()]


def reduce_other(value: object) -> Any:  # noqa: ANN401 - or NotImplemented
    """Takes apart a scalar, and a subclass of ndarray as it does itself; NotImplemented leaves others to pickle."""
    if isinstance(value, loaded("numpy", "generic")):
        return _reduce_scalar(value)
    arrays = loaded("numpy", "ndarray")
    if not isinstance(value, arrays) or type(value) in (*arrays, *loaded("numpy", "memmap")):
        return NotImplemented
    # Which may be the name of a global.
    reduced = value.__reduce_ex__(5)
    return _locked(reduced) if isinstance(reduced, tuple) else reduced


def _reduce_scalar(scalar: Any) -> Any:  # noqa: ANN401 - or NotImplemented
    """Takes a scalar apart with its dtype as text: NumPy itself would write the dtype, which a list need not allow."""
    dtype = scalar.dtype
    spelled = _spelled(dtype) if type(scalar) is dtype.type and dtype.itemsize else None
    return (restore_scalar, (scalar.tobytes(), spelled)) if isinstance(spelled, str) else NotImplemented


def _locked(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """What an array says of how it is made, with the lock on top.

    The empty buffer goes the way of all buffers: whether it comes back as a private copy says whether the array is one.
    """
    make, arguments, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
    return make, arguments, (state, setter, PickleBuffer(bytearray())), items, pairs, restore_locked


def restore_locked(array: Any, state: tuple[Any, Any, Buffer]) -> None:  # noqa: ANN401 - no import here
    """Gives an array its state, and makes it read-only. Objects in stores name this function, as `restore_array`."""
    inner, setter, mark = state
    if setter is not None:
        setter(array, inner)
    elif hasattr(array, "__setstate__"):
        if inner is not None:
            array.__setstate__(inner)
    elif inner:
        # Of another type than it is made of.
        array.__dict__.update(inner)
    if not isinstance(unlock(mark), Private) and isinstance(array, loaded("numpy", "ndarray")):
        sys.modules["numpy"].ndarray.setflags(array, write=False)


def _spelled(dtype: Any) -> Any:  # noqa: ANN401 - no import here
    """A dtype as a text, by which a pickle needs nothing of NumPy; the dtype itself where no text says all of it."""
    if dtype.kind in _SPELLED and dtype.isbuiltin != _OF_A_USER and dtype.metadata is None:
        return dtype.str
    return "bfloat16" if dtype.kind == "V" and _name(dtype) == "bfloat16" else dtype


def _read(dtype: Any) -> Any:  # noqa: ANN401 - no import here
    if not isinstance(dtype, str):
        return dtype
    if dtype == "bfloat16":
        return numpy_dtype(dtype, "an array of bfloat16")
    if not _SPELLING.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is no dtype of plain elements")
    return require("numpy", "an array").dtype(dtype)


@functools.lru_cache(maxsize=64)
def _name(dtype: Any) -> str:  # noqa: ANN401 - no import here
    """The name of a dtype, which NumPy takes 5 us to put together."""
    return str(dtype.name)
