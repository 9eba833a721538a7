"""The words of this package: what a value is once it is taken apart, the dtypes, and the libraries that may be there.

Knows no library by heart: `loaded` asks whether one is imported already, `require` imports one that a value needs.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.errors import Undecodable, UnsupportedDtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What the store calls bytes without further meaning.
BYTES = "bytes"

# How the reader is to present an object. The store keeps it with dtype and shape.
FORMS = ("plain", "torch", "arrow", "pickle")
PLAIN, TORCH, ARROW, PICKLE = FORMS

# Bytes of one element of each dtype that an array's elements may have: those that a reduce can fold.
ITEM_BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
}
DTYPES = tuple(ITEM_BYTES)


class Encoded(NamedTuple):
    """A value taken apart into what the store keeps.

    Attributes:
        kind: "bytes", or one of `DTYPES`.
        shape: of an array its shape, of bytes `(nbytes,)`.
        form: one of `FORMS`.
        nbytes: the sum of the parts.
        parts: C-contiguous buffers of any format. Laid one after the other they are the object's bytes, little-endian
            and in C order. They keep the memory alive that they are over, which is the value's own where it could be.
    """

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int
    parts: tuple[Buffer, ...]


def loaded(module: str, *names: str) -> tuple[type, ...]:
    """Finds types of a library, for isinstance: none where nobody imported it, so that no value can be of them."""
    found = sys.modules.get(module)
    if found is None:
        return ()
    # A folder of that name, if it is imported by mistake, has none of them.
    return tuple([getattr(found, name) for name in names if hasattr(found, name)])


def require(package: str, need: str) -> Any:  # noqa: ANN401 - a module that type checks can't count on
    """Imports a library that the value at hand needs.

    Raises:
        UnsupportedDtype: it is not installed; says what needs it and how to get it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedDtype(
            f"{need} needs {package}, which can't be imported ({error}); try pip install {package}"
        ) from error


def check_size(kind: str, shape: tuple[int, ...], nbytes: int) -> None:
    """Checks that an object's metadata agrees with itself.

    Raises:
        Undecodable: the dtype is unknown here, or the array would not take exactly those bytes.
    """
    if kind not in ITEM_BYTES:
        raise Undecodable(f"the object is of kind {kind!r}, which this version of hoplite does not know")
    if min(shape, default=0) < 0 or math.prod(shape) * ITEM_BYTES[kind] != nbytes:
        raise Undecodable(f"the object has {nbytes} bytes, which is no array of {kind} with shape {shape}")


def check_dtype(dtype: object) -> str:
    """Reads a dtype however it is written.

    Args:
        dtype: a name in `DTYPES` or "bytes"; or numpy.float32, numpy.dtype("float32"), ml_dtypes.bfloat16,
            torch.float32 and the like.

    Returns:
        Its name.

    Raises:
        UnsupportedDtype: it is none of `DTYPES`.
    """
    name = _name(dtype)
    if name not in ITEM_BYTES and name != BYTES:
        raise UnsupportedDtype(f"unknown dtype {dtype!r}: supported are {', '.join(DTYPES)} and {BYTES}")
    return name


def _name(dtype: object) -> str:
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, loaded("torch", "dtype")):
        return str(dtype).removeprefix("torch.")
    if isinstance(dtype, type) and issubclass(dtype, loaded("numpy", "generic")):
        return str(sys.modules["numpy"].dtype(dtype).name)
    # jax.numpy.float32 is a class with a dtype.
    found: Any = getattr(dtype, "dtype", None) if isinstance(dtype, type) else dtype
    return str(found.name) if isinstance(found, loaded("numpy", "dtype")) else ""  # type: ignore[attr-defined]
