"""Tasks of the Dask tests. Workers import this module by its file name."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import hoplite

Array = np.ndarray[Any, Any]


def facts(array: Array) -> dict[str, Any]:
    """Describes the array that a task received and the process it runs in."""
    return {
        "type": type(array).__name__,
        "sum": float(array.sum()),
        "shape": array.shape,
        "writeable": array.flags.writeable,
        "process": os.getpid(),
        "address": array.__array_interface__["data"][0],
    }


def make(size: int, value: float) -> Array:
    """Creates an array that the worker owns."""
    return np.full(size, value)


def fail(why: str) -> Array:
    """Raises an error instead of returning an array."""
    raise RuntimeError(why)


def wait_for(name: str) -> Array:
    """Returns an array once an object has been put."""
    return np.full(8, float(hoplite.init().get(name, timeout=30)))


def same(array: Array) -> Array:
    """Returns the array unchanged."""
    return array


# Bytes of each array that this worker has sent since `watch_sent`.
_sent: list[int] = []


def watch_sent() -> None:
    """Starts recording the bytes of arrays that this worker sends."""
    from distributed.protocol.serialize import register_serialization

    from hoplite.dask import arrays

    def serialize(array: Array, context: Any = None) -> Any:  # noqa: ANN401 - Dask's signature
        header, frames = arrays.serialize(array, context)
        _sent.append(sum(memoryview(frame).nbytes for frame in frames))
        return header, frames

    _sent.clear()
    register_serialization(np.ndarray, serialize, arrays.deserialize)


def sent() -> list[int]:
    """Returns the recorded sizes."""
    return list(_sent)


def end_watching() -> None:
    """Stops recording."""
    from distributed.protocol.serialize import register_serialization

    from hoplite.dask import arrays

    register_serialization(np.ndarray, arrays.serialize, arrays.deserialize)


def node_id() -> str:
    """Returns the node that a task finds without configuration."""
    with hoplite.init() as client:
        return str(client.status()["id"])


def files_of(process: int) -> str:
    """Returns the command line and environment of a process, as other users' tools see them."""
    found = ""
    for what in ("cmdline", "environ"):
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123 - short
            found += file.read().decode(errors="replace")
    return found
