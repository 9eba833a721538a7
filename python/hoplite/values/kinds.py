"""The words of this package: what a value is once it is taken apart, the dtypes, and the libraries that may be there.

Knows no library by heart: `loaded` asks whether one is imported already, `require` imports one that a value needs.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import _native
from hoplite.errors import DecodeError, UnsupportedDtype

if TYPE_CHECKING:
    from typing_extensions import Buffer

# What the store calls bytes without further meaning.
BYTES = "bytes"

# How the reader is to present an object. The store keeps it with dtype and shape.
FORMS = _native.FORMS
PLAIN, TORCH, ARROW, PICKLE = FORMS

# What an array's elements may be. The last two take a unit too, as "datetime64[25us]"; without one they are NumPy's
# generic dates and times.
DTYPES = _native.DTYPES

# As messages list them.
DTYPES_IN_WORDS = f"{', '.join(DTYPES[:-2])}, and datetime64 and timedelta64 of any unit"

# What a reduce can do with elements; docs/values.md says which of them with which dtype.
OPS = _native.OPS

# Bytes of one element of an array of a dtype, with its unit if it has one; None if arrays of it can't be held.
item_bytes = functools.lru_cache(maxsize=256)(_native.item_bytes)


class Encoded(NamedTuple):
    """A value taken apart into what the store keeps.

    Attributes:
        kind: "bytes", or one of `DTYPES`, with its unit if it has one.
        shape: of an array its shape, of bytes `(nbytes,)`.
        form: one of `FORMS`.
        nbytes: the sum of the parts.
        parts: C-contiguous buffers of any format. Laid one after the other they are the object's bytes, little-endian
            and in C order. They keep the memory alive that they are over, which is the value's own where it could be.
        digest: SHA-256 of the bytes, if those who receive them are to check it.
    """

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int
    parts: tuple[Buffer, ...]
    digest: bytes | None = None


def loaded(module: str, *names: str) -> tuple[type, ...]:
    """Finds types of a library, for isinstance: none where it is not imported, so that no value can be of them."""
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
        DecodeError: the dtype is unknown here, or the array would not take exactly those bytes.
    """
    each = item_bytes(kind)
    if each is None:
        raise DecodeError(f"the object is of kind {kind!r}, which this version of hoplite does not know")
    if min(shape, default=0) < 0 or math.prod(shape) * each != nbytes:
        raise DecodeError(f"the object has {nbytes} bytes, which is no array of {kind} with shape {shape}")


def check_dtype(dtype: object) -> str:
    """Reads a dtype however it is written.

    Args:
        dtype: a name in `DTYPES` or "bytes"; numpy.float32, ml_dtypes.bfloat16, torch.float32 and the like; or anything
            else that `numpy.dtype` takes ("f4", float, "datetime64[25us]"), but None.

    Returns:
        Its name.

    Raises:
        UnsupportedDtype: it is none of `DTYPES`, or in another byte order than this host's.
    """
    name = _name(dtype)
    if name == BYTES or (item_bytes(name) is not None and isinstance(dtype, str)):
        return name
    found = _numpy_dtype(dtype)
    if item_bytes(name) is None and found is not None:
        name = str(found.name)
    if item_bytes(name) is None:
        raise UnsupportedDtype(f"unknown dtype {dtype!r}: supported are {BYTES}, {DTYPES_IN_WORDS}")
    if found is not None and not found.isnative:
        raise UnsupportedDtype(f"dtype {dtype!r} is not in this host's byte order, in which objects are: use {name!r}")
    return name


def _numpy_dtype(dtype: object) -> Any:  # noqa: ANN401 - no import here
    """What `numpy.dtype` makes of it; None if nothing, or without NumPy."""
    if dtype is None or isinstance(dtype, loaded("torch", "dtype")):
        return None
    try:
        return importlib.import_module("numpy").dtype(dtype)
    except (ImportError, TypeError, ValueError, SyntaxError):
        return None


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
