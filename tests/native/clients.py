"""Clients of the native peer, with the verbs, defaults and exceptions of `hoplite.Client`.

A test can therefore take either client for either side. Does not know how commands travel.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import hoplite
from support import numpy_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from native.peer import Peer
    from support import Array


class Value(NamedTuple):
    """An object as the native library returns it."""

    dtype: str
    shape: tuple[int, ...]
    form: str
    data: bytes


class NativeClient:
    """A client of the peer. Its verbs are those of `hoplite.Client`; arguments that are None are not passed on."""

    def __init__(self, peer: Peer, slot: int) -> None:
        self.peer = peer
        self.slot = slot

    def call(self, verb: str, **fields: object) -> dict[str, Any]:
        """Runs a command with this client."""
        return self.peer.call(verb, client=self.slot, **fields)

    def put(self, value: object, **options: object) -> str:
        """Puts an array or bytes."""
        dtype, shape, data = encoded(value)
        ref: str = self.call("put", data=self.peer.file(data), dtype=dtype, shape=shape, **options)["ref"]
        return ref

    def create(self, shape: Sequence[int] | int, dtype: object = "float32", **options: object) -> NativeBuffer:
        """Allocates an array in the store."""
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name  # type: ignore[call-overload]
        axes = (shape,) if isinstance(shape, int) else tuple(shape)
        return NativeBuffer(self, self.call("create", dtype=name, shape=axes, **options))

    def look(self, ref: object, **options: object) -> Value:
        """Gets an object as the native library describes it."""
        path = self.peer.file()
        reply = self.call("get", ref=str(ref), to=path, **options)
        data = path.read_bytes()
        assert reply["nbytes"] == len(data)
        # Parts begin anywhere.
        assert reply["misaligned"] == 0 or options.keys() & {"start", "stop"}
        return Value(reply["dtype"], tuple(reply["shape"]), reply["form"], data)

    def get(self, ref: object, *, part: slice | None = None, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Gets an object as an array or as bytes."""
        bounds = {} if part is None else {"start": part.start, "stop": part.stop}
        value = self.look(ref, timeout=timeout, **bounds)
        return decoded(value.dtype, value.shape, value.data)

    def hold(self, ref: object, *, timeout: float | None = None) -> int:
        """Gets an object and keeps its view in the peer. Returns the view."""
        view: int = self.call("get", ref=str(ref), timeout=timeout)["view"]
        return view

    def get_into(self, ref: object, like: Array | int, *, timeout: float | None = None) -> Any:  # noqa: ANN401
        """Gets an object into memory of the peer: that of an array with this dtype and shape, or of `like` bytes."""
        path = self.peer.file()
        if isinstance(like, int):
            reply = self.call("get_into", ref=str(ref), nbytes=like, to=path, timeout=timeout)
            return path.read_bytes()[: reply["copied"]]
        dtype, shape, _ = encoded(like)
        reply = self.call(
            "get_into", ref=str(ref), nbytes=like.nbytes, dtype=dtype, shape=shape, to=path, timeout=timeout
        )
        assert reply["copied"] == like.nbytes
        return decoded(dtype or "bytes", shape or (), path.read_bytes())

    def wait(
        self, refs: Iterable[object], count: int | None = None, *, timeout: float | None = None
    ) -> tuple[list[str], list[str]]:
        """Waits until some of several objects are ready."""
        texts = [str(ref) for ref in refs]
        ready = self.call("wait", refs=texts or None, count=count, timeout=timeout)["ready"]
        return [texts[at] for at in ready], [text for at, text in enumerate(texts) if at not in ready]

    def reduce(self, inputs: Iterable[object], op: str = "sum", **options: object) -> str:
        """Folds the first `count` inputs to arrive into one new object."""
        ref: str = self.call("reduce", refs=[str(ref) for ref in inputs] or None, op=op, **options)["ref"]
        return ref

    def inputs(self, ref: object, *, timeout: float | None = None) -> list[str]:
        """The inputs of a reduce that this node called."""
        refs: list[str] = self.call("inputs", ref=str(ref), timeout=timeout)["refs"]
        return refs

    def lost(self, ref: object, *, timeout: float | None = None) -> list[str]:
        """The inputs that a reduce has lost."""
        refs: list[str] = self.call("lost", ref=str(ref), timeout=timeout)["refs"]
        return refs

    def delete(self, refs: object, *, timeout: float | None = None) -> None:
        """Deletes objects."""
        texts = [str(ref) for ref in refs] if isinstance(refs, list) else [str(refs)]
        self.call("delete", refs=texts or None, timeout=timeout)

    def latest(self, prefix: str, *, after: int | None = None, timeout: float | None = None) -> str:
        """The newest object under a prefix."""
        ref: str = self.call("latest", prefix=prefix, after=after, timeout=timeout)["ref"]
        return ref

    def reserve(self, *, name: str | None = None, timeout: float | None = None) -> str:
        """Reserves a ref or a name."""
        ref: str = self.call("reserve", name=name, timeout=timeout)["ref"]
        return ref

    def slots(self, count: int) -> list[str]:
        """Makes refs that any client may put."""
        refs: list[str] = self.call("slots", count=count)["refs"]
        return refs

    def lease(self, ref: object, *, timeout: float | None = None) -> int:
        """Takes a lease of an object. Returns its number in the peer."""
        lease: int = self.call("lease", ref=str(ref), timeout=timeout)["lease"]
        return lease

    def locations(self, ref: object, *, timeout: float | None = None) -> list[tuple[str, str | None, bool]]:
        """The nodes that hold an object: id, address and whether the copy is complete."""
        rows = self.call("locations", ref=str(ref), timeout=timeout)["locations"]
        return [(row["node"], row["address"], row["complete"]) for row in rows]

    def status(self, *, timeout: float | None = None) -> Any:  # noqa: ANN401 - JSON
        """The status of the node."""
        return json.loads(self.call("status", timeout=timeout)["text"])

    def close(self) -> None:
        """Closes the client."""
        self.call("release")


class NativeBuffer:
    """Memory of an object that the peer fills and seals."""

    def __init__(self, client: NativeClient, made: dict[str, Any]) -> None:
        self._client = client
        self.ref: str = made["ref"]
        self.nbytes: int = made["nbytes"]
        self._slot: int = made["buffer"]

    def fill(self, value: object) -> None:
        """Writes the bytes of a value to the start of the memory."""
        self._client.call("fill", buffer=self._slot, data=self._client.peer.file(encoded(value)[2]))

    def seal(self, *, timeout: float | None = None) -> str:
        """Completes the object."""
        ref: str = self._client.call("seal", buffer=self._slot, timeout=timeout)["ref"]
        return ref

    def discard(self) -> None:
        """Ends the buffer without an object."""
        self._client.call("release", buffer=self._slot)


Either = hoplite.Client | NativeClient


def encoded(value: object) -> tuple[str | None, tuple[int, ...] | None, bytes]:
    """The dtype, shape and bytes of an array or of bytes, as C programs pass them."""
    if isinstance(value, bytes):
        return None, None, value
    array = np.asarray(value)
    return array.dtype.name, array.shape, array.tobytes()


def decoded(dtype: str, shape: Sequence[int], data: bytes) -> Any:  # noqa: ANN401 - an array or bytes
    """The array, or the bytes, of an object that a C program sees."""
    if dtype == "bytes":
        assert not shape, "bytes have no axes"
        return data
    found = numpy_dtype(dtype)
    assert math.prod(shape) * found.itemsize == len(data)
    return np.frombuffer(data, found).reshape(shape) if data else np.empty(shape, found)
