"""The caller's values into which `get(out=...)` copies an object."""

from __future__ import annotations

import ctypes
import itertools
from typing import TYPE_CHECKING, NamedTuple

from hoplite.errors import InvalidArgument, UnsupportedDtype
from hoplite.values.buffers import format_kind
from hoplite.values.kinds import BYTES, DTYPES_IN_WORDS, item_bytes, loaded
from hoplite.values.tensors import writable_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutBuffer(NamedTuple):
    """Memory into which an object is copied.

    Attributes:
        data: flat, writable view of format "B" over the caller's memory, which it keeps alive.
        kind: one of `DTYPES`, or "bytes", which accepts any object of that size that is not pickled.
        shape: shape of an array; `(nbytes,)` for bytes.
    """

    data: memoryview
    kind: str
    shape: tuple[int, ...]


def writable(out: object) -> OutBuffer:
    """Returns the memory of a value of the caller.

    Args:
        out: a C-contiguous NumPy array or CPU tensor of `DTYPES`, or a writable buffer such as a bytearray.

    Raises:
        InvalidArgument: `out` is read-only, not contiguous, or has no memory to copy into.
        UnsupportedDtype: its dtype is not in `DTYPES`, or it is on another device.
    """
    if isinstance(out, loaded("torch", "Tensor")):
        memory, dtype, shape = writable_tensor(out)
        return OutBuffer(_flat(memoryview(memory)), dtype, shape)
    if isinstance(out, loaded("numpy", "ndarray")):
        return _writable_array(out)
    try:
        view = memoryview(out)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(
            f"out is a {type(out).__module__}.{type(out).__qualname__}: "
            "pass a NumPy array, a CPU tensor or a writable buffer such as a bytearray"
        ) from None
    kind = format_kind(view)
    if kind is None:
        raise UnsupportedDtype(f"out is a buffer of format {view.format!r}: pass a buffer of bytes, {DTYPES_IN_WORDS}")
    data = _flat(view)
    return OutBuffer(data, kind, (data.nbytes,) if kind == BYTES else tuple(view.shape or ()))


def check_apart(outs: Sequence[OutBuffer], refs: Sequence[str]) -> None:
    """Checks that the memory of several values is apart. Otherwise the last object to arrive would win.

    Args:
        outs: the memory.
        refs: what is copied into each, for the error.

    Raises:
        InvalidArgument: two of them have a byte in common.
    """
    if len(outs) < 2:
        return
    spans = sorted(
        (ctypes.addressof(ctypes.c_char.from_buffer(out.data)), out.data.nbytes, place)
        for place, out in enumerate(outs)
        if out.data.nbytes
    )
    for (first, nbytes, one), (second, _, other) in itertools.pairwise(spans):
        if first + nbytes > second:
            one, other = sorted((one, other))
            raise InvalidArgument(
                f"out[{one}] for {refs[one]} and out[{other}] for {refs[other]} share memory: pass memory of its own "
                "for each object"
            )


def _writable_array(out: object) -> OutBuffer:
    import numpy as np

    assert isinstance(out, np.ndarray)
    if isinstance(out, loaded("numpy.ma", "MaskedArray")):
        raise InvalidArgument("out is a masked array: pass out.data")
    if item_bytes(out.dtype.name) is None or out.dtype.newbyteorder("<") != out.dtype:
        raise UnsupportedDtype(f"out is an array of {out.dtype}: pass a little-endian array of {DTYPES_IN_WORDS}")
    if not out.flags.c_contiguous:
        raise InvalidArgument("out is an array that is not C-contiguous; try numpy.ascontiguousarray(out)")
    # The buffer protocol has no format for bfloat16 and float8.
    return OutBuffer(_flat(out.reshape(-1).view(np.uint8).data), out.dtype.name, out.shape)


def _flat(view: memoryview) -> memoryview:
    if view.readonly:
        raise InvalidArgument("out is read-only: pass a writable value")
    if not view.c_contiguous:
        raise InvalidArgument("out is not C-contiguous: pass a contiguous buffer")
    # A view with a zero in its shape can't be cast.
    return view.cast("B") if view.nbytes else memoryview(bytearray())
