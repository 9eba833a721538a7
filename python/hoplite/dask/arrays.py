"""How Dask moves an array that is an object of Hoplite: as its ref, to processes that have said that they read refs.

Others, such as the scheduler on behalf of a client without a node, and files of spilled data, get the bytes by Dask's
own serialisation. A process says that it reads refs in the handshake of each connection that it opens.
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

# The key of a future of an object: this and the text of its ref.
PREFIX = "hoplite_array-"

# In a handshake, the id of the installation whose refs a process reads; in a header, that and the ref.
CAPABILITY = "hoplite"

# The event loop of a worker waits for an object that is not on its host yet. After this time Dask sends the bytes.
FETCH_TIMEOUT_S = 30.0

# By the id of an array: a weak reference to it, the id of the installation, and the ref of the object that it views.
_known: dict[int, tuple[weakref.ref[Any], str, str]] = {}


class Unread(ConnectionError):
    """A ref can't be read here now. An OSError, so that Dask asks for the data again, and then gets its bytes."""


def remember(array: Any, installation: str, text: str) -> None:  # noqa: ANN401 - an array
    """Takes it that an array is a view of the whole of an object, as `get` returned it."""
    key = id(array)
    _known[key] = weakref.ref(array, lambda _: _known.pop(key, None)), installation, text


def forget(installation: str, texts: set[str]) -> None:
    """Takes views of these objects, which end, for arrays as any others: Dask moves their bytes."""
    for key, (_, of, text) in list(_known.items()):
        if of == installation and text in texts:
            _known.pop(key, None)


def text_of(value: object, installation: str) -> str | None:
    """The ref of the object that a value is a view of; None if it is no such view."""
    found = _known.get(id(value))
    if found is None or found[0]() is not value or found[1] != installation:
        return None
    return found[2]


def serialize(array: Any, context: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Any]]:  # noqa: ANN401
    """Writes an array for another process, as Dask calls it."""
    found = _known.get(id(array))
    if found is not None and found[0]() is array:
        _, installation, text = found
        if ((context or {}).get("recipient") or {}).get(CAPABILITY) == installation:
            return {CAPABILITY: [installation, text]}, []
    written: tuple[dict[str, Any], list[Any]] = serialize_numpy_ndarray(array, context=context)
    return written


def deserialize(header: Mapping[str, Any], frames: Sequence[Any]) -> Any:  # noqa: ANN401 - an array
    """Reads an array, as Dask calls it.

    Raises:
        Unread: it came as a ref that can't be read; until further notice others send bytes to this process.
    """
    if CAPABILITY not in header:
        return deserialize_numpy_ndarray(header, frames)
    installation, text = header[CAPABILITY]
    try:
        return view(process.member_of(installation).client, installation, text, FETCH_TIMEOUT_S)
    except HopliteError as error:
        process.step_back(installation)
        raise Unread(f"{text} can't be read here, so that its bytes are asked for: {error}") from None


def view(client: Any, installation: str, text: str, timeout: float | None) -> Any:  # noqa: ANN401 - an array
    """The array of an object, read-only and in shared memory, which Dask moves as a ref from now on.

    Raises:
        HopliteError: whatever `get` raises.
    """
    array = client.get(text, timeout=timeout)
    remember(array, installation, text)
    return array


register_serialization(np.ndarray, serialize, deserialize)
