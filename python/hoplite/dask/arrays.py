"""Serialization of arrays that are Hoplite objects: Dask transfers the ref to processes that announced support.

A process announces support for refs in the handshake of each connection that it opens. All other receivers get the
bytes by Dask's own serialization: for example the scheduler on behalf of a client without a node, and spill files.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
from distributed.protocol.numpy import deserialize_numpy_ndarray, serialize_numpy_ndarray
from distributed.protocol.serialize import register_serialization

from hoplite.dask import process
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The key of an object's future is this prefix and the ref.
PREFIX = "hoplite_array-"

# Key in handshakes and headers. In a handshake: the id of the installation whose refs a process can resolve. In a
# header: that id and the ref.
CAPABILITY = "hoplite"

# Timeout of a worker's event loop for an object that is not on its host yet. Dask sends the bytes afterwards.
FETCH_TIMEOUT_S = 30.0

# By the id of an array: a weak reference to it, the id of the installation, and the ref of its object.
_known: dict[int, tuple[weakref.ref[Any], str, str]] = {}


class Unread(ConnectionError):
    """A ref can't be resolved here now. It is an OSError, so that Dask requests the data again, then as bytes."""


def remember(array: Any, installation: str, text: str) -> None:  # noqa: ANN401 - an array
    """Registers an array as the view of a whole object, as returned by `get`."""
    key = id(array)
    _known[key] = weakref.ref(array, lambda _: _known.pop(key, None)), installation, text


def forget(installation: str, texts: set[str]) -> None:
    """Unregisters the views of objects that are about to be deleted, so that Dask transfers their bytes."""
    for key, (_, of, text) in list(_known.items()):
        if of == installation and text in texts:
            _known.pop(key, None)


def text_of(value: object, installation: str) -> str | None:
    """Returns the ref of the object behind a registered view; None for other values."""
    found = _known.get(id(value))
    if found is None or found[0]() is not value or found[1] != installation:
        return None
    return found[2]


def serialize(array: Any, context: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:  # noqa: ANN401
    """Serializes an array for Dask, as a ref if the recipient can resolve it."""
    found = _known.get(id(array))
    if found is not None and found[0]() is array:
        _, installation, text = found
        if ((context or {}).get("recipient") or {}).get(CAPABILITY) == installation:
            return {CAPABILITY: [installation, text]}, []
    written: tuple[dict[str, Any], list[Any]] = serialize_numpy_ndarray(array, context=context)
    return written


def deserialize(header: Mapping[str, Any], frames: Sequence[Any]) -> Any:  # noqa: ANN401 - an array
    """Deserializes an array for Dask.

    Raises:
        Unread: the array is a ref that can't be resolved. For a while, other processes send bytes to this one.
    """
    if CAPABILITY not in header:
        return deserialize_numpy_ndarray(header, frames)
    installation, text = header[CAPABILITY]
    try:
        return view(process.member_of(installation).client, installation, text, FETCH_TIMEOUT_S)
    except HopliteError as error:
        process.step_back(installation)
        raise Unread(
            f"this process can't get {text} from a Hoplite node, so Dask transfers its bytes: {error}"
        ) from None


def view(client: Any, installation: str, text: str, timeout: float | None) -> Any:  # noqa: ANN401 - an array
    """Returns the array of an object, read-only and in shared memory, and registers it for transfers as a ref.

    Raises:
        HopliteError: see `Client.get`.
    """
    array = client.get(text, timeout=timeout)
    remember(array, installation, text)
    return array


register_serialization(np.ndarray, serialize, deserialize)
