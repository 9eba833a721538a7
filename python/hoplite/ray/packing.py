"""Pickling of values as Ray does it, including ObjectRefs, actors and classes of the main script.

Arrays and tensors inside a value are not pickled: Hoplite stores them out of band, as everywhere. ObjectRefs and actor
handles are passed to Ray, which counts them. The module does not access Hoplite objects.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle

from hoplite import DecodeError, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

# Types that contain no ObjectRef and no class.
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, memoryview)

REF, LEAF = "ref", "leaf"


class _Unpacking(threading.local):
    """The ObjectRefs and actors inside the value that this thread unpickles."""

    inner: tuple[Any, ...] = ()


_unpacking = _Unpacking()


class Packed:
    """A pickled value.

    Args:
        stream: the pickle.
        leaves: the arrays and tensors inside the value.
    """

    __slots__ = ("_leaves", "_stream")

    def __init__(self, stream: bytes, leaves: list[Any]) -> None:
        self._stream, self._leaves = stream, leaves

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return unpacked, (self._stream, self._leaves)


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc] # Ray is not there when types are checked
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self.inner: list[Any] = []
        self.leaves: list[Any] = []
        self._places: dict[int, tuple[str, int]] = {}

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        if isinstance(value, (ray.ObjectRef, ray.actor.ActorHandle)):
            kind, kept = REF, self.inner
        elif lends(value):
            kind, kept = LEAF, self.leaves
        else:
            return None
        if id(value) not in self._places:
            self._places[id(value)] = kind, len(kept)
            kept.append(value)
        return self._places[id(value)]


class _Unpacker(pickle.Unpickler):
    leaves: list[Any]

    def persistent_load(self, place: tuple[str, int]) -> Any:
        kind, number = place
        if kind == LEAF:
            return self.leaves[number]
        if number >= len(_unpacking.inner):
            raise DecodeError(
                "the value contains ObjectRefs or actors, which Ray keeps alive only through the ObjectRef that "
                "hoplite.ray.put returned: get it by that ObjectRef, not by its name"
            )
        return _unpacking.inner[number]


def packed(value: Any) -> tuple[Any, tuple[Any, ...]]:
    """Splits a value into the value that Hoplite puts, and the ObjectRefs and actors that Ray counts.

    Raises:
        InvalidArgument: the value can't be pickled.
    """
    if type(value) in PLAIN or lends(value):
        return value, ()
    stream = io.BytesIO()
    packer = _Packer(stream)
    try:
        packer.dump(value)
    except Exception as error:  # raised by code of the value's class
        raise InvalidArgument(
            f"can't put a {type(value).__module__}.{type(value).__qualname__}: it can't be pickled "
            f"({type(error).__name__}: {error}). Put its data instead, or define __reduce__ in its class"
        ) from error
    return Packed(stream.getvalue(), packer.leaves), tuple(packer.inner)


def unpacked(stream: bytes, leaves: list[Any]) -> Any:
    """Returns the value to which a `Packed` is unpickled."""
    unpacker = _Unpacker(io.BytesIO(stream))
    unpacker.leaves = leaves
    return unpacker.load()


def with_inner(inner: tuple[Any, ...], call: Callable[[], Any]) -> Any:
    """Calls a function that unpickles a value in this thread.

    Args:
        inner: the ObjectRefs and actors inside the value, as returned by `packed`.
        call: returns the value.
    """
    before, _unpacking.inner = _unpacking.inner, inner
    try:
        return call()
    finally:
        _unpacking.inner = before


def lends(value: Any) -> bool:
    """Whether Hoplite stores a value without a pickle: an array, tensor or Arrow data without Python objects."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if package == "numpy":
        return hasattr(kind, "__array_interface__") and not value.dtype.hasobject
    if package == "pyarrow":
        return hasattr(kind, "__arrow_c_array__") or hasattr(kind, "__arrow_c_stream__")
    # A subclass of ndarray is pickled, because its class may have to be pickled too.
    is_array = any(base.__module__ == "numpy" for base in kind.__mro__)
    return hasattr(kind, "__dlpack_device__") and not is_array
