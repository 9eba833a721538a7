"""Common definitions of this package: encoded values, dtypes, and access to optional libraries.

No library is imported here: `loaded` returns the types of a library that is already imported, `require` imports one
that a value needs.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import _native
from hoplite.errors import DecodeError, UnsupportedDtype
from hoplite.extras import install

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The dtype of objects without elements.
BYTES = "bytes"

# How a reader decodes an object. The store keeps the form with dtype and shape.
FORMS = _native.FORMS
PLAIN, TORCH, ARROW, PICKLE = FORMS

# Dtypes of arrays. The last two can have a unit, as in "datetime64[25us]"; without one they are NumPy's generic dates
# and times.
DTYPES = _native.DTYPES

# Those of at most eight bits that no reduce can fold, such as float8_e4m3fn and int4. An element occupies one byte.
NARROW_DTYPES = _native.NARROW_DTYPES

# Two float4 in one byte: a dtype of torch. NumPy has no such dtype; its arrays of them are uint8.
PACKED = "float4_e2m1fn_x2"

# Dtypes that NumPy has only with the package ml_dtypes.
ML_DTYPES = frozenset({"bfloat16", *NARROW_DTYPES} - {PACKED})

# The dtypes of arrays, for messages.
DTYPES_IN_WORDS = (
    f"{', '.join(kind for kind in DTYPES[:-2] if kind not in NARROW_DTYPES)}, a narrow dtype such as float8_e4m3fn, "
    "and datetime64 and timedelta64 of any unit"
)

# Operations of a reduce; docs/values.md lists the dtypes of each.
OPS = _native.OPS

# Size of one element of a dtype, with its unit if it has one; None if the store has no arrays of that dtype.
item_bytes = functools.lru_cache(maxsize=256)(_native.item_bytes)


# Extras of hoplite-collectives that install a library, where the names differ.
_EXTRAS = {"ml_dtypes": "bfloat16", "pyarrow": "arrow"}


class Encoded(NamedTuple):
    """A value encoded for the store.

    Attributes:
        kind: "bytes", or one of `DTYPES`, with its unit if it has one.
        shape: shape of an array; `(nbytes,)` for bytes.
        form: one of `FORMS`.
        nbytes: size in bytes, the sum of the parts.
        parts: C-contiguous buffers of any format. Their concatenation is the object's bytes, little-endian and in C
            order. They keep their memory alive, which is the value's own where possible.
        digest: SHA-256 of the bytes if receivers verify it, else None.
    """

    kind: str
    shape: tuple[int, ...]
    form: str
    nbytes: int
    parts: tuple[Buffer, ...]
    digest: bytes | None = None


def loaded(module: str, *names: str) -> tuple[type, ...]:
    """Finds types of a library, for isinstance. Returns none if it is not imported: no value can have such a type."""
    found = sys.modules.get(module)
    if found is None:
        return ()
    # A directory of that name that was imported by mistake has none of them.
    return tuple([getattr(found, name) for name in names if hasattr(found, name)])


def require(package: str, need: str) -> Any:  # noqa: ANN401 - a module that type checks can't count on
    """Imports a library that a value needs.

    Raises:
        UnsupportedDtype: the library is not installed. The message states what needs it, and the extra to install.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise UnsupportedDtype(
            f"{need} needs {package}, which can't be imported ({error}): try {install(_EXTRAS.get(package, package))}"
        ) from error


def check_size(kind: str, shape: tuple[int, ...], nbytes: int) -> None:
    """Checks that the metadata of an object is consistent.

    Raises:
        DecodeError: the dtype is unknown, or an array of this shape does not have this size.
    """
    each = item_bytes(kind)
    if each is None:
        raise DecodeError(f"the object has the unknown dtype {kind!r}: use the same version of hoplite everywhere")
    if min(shape, default=0) < 0 or math.prod(shape) * each != nbytes:
        raise DecodeError(f"the object has {nbytes} bytes, which is not an array of {kind} with shape {shape}")


def check_dtype(dtype: object) -> str:
    """Converts any notation of a dtype to its name.

    Args:
        dtype: a name in `DTYPES` or "bytes"; numpy.float32, ml_dtypes.bfloat16, torch.float8_e4m3fn and the like;
            or any other argument of `numpy.dtype` ("f4", float, "datetime64[25us]"), except None.

    Returns:
        The name of the dtype.

    Raises:
        UnsupportedDtype: the dtype is not in `DTYPES`, or its byte order differs from this host's.
    """
    name = _name(dtype)
    if name == BYTES or (item_bytes(name) is not None and isinstance(dtype, str)):
        return name
    found = _numpy_dtype(dtype)
    if item_bytes(name) is None and found is not None:
        name = str(found.name)
    if item_bytes(name) is None:
        raise UnsupportedDtype(f"unknown dtype {dtype!r}: use one of {BYTES}, {DTYPES_IN_WORDS}")
    if found is not None and not found.isnative:
        raise UnsupportedDtype(f"the byte order of dtype {dtype!r} differs from this host's: use {name!r}")
    return name


def _numpy_dtype(dtype: object) -> Any:  # noqa: ANN401 - no import here
    """Returns `numpy.dtype(dtype)`; None if it is not valid or NumPy is missing."""
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
