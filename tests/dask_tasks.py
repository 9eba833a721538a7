"""Tasks of the tests of Dask: a worker imports them by the name of this file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import hoplite

Array = np.ndarray[Any, Any]


def facts(array: Array) -> dict[str, Any]:
    """What a task has got, and where it runs."""
    return {
        "type": type(array).__name__,
        "sum": float(array.sum()),
        "shape": array.shape,
        "writeable": array.flags.writeable,
        "process": os.getpid(),
        "address": array.__array_interface__["data"][0],
    }


def make(size: int, value: float) -> Array:
    """An array of the worker's own."""
    return np.full(size, value)


def fail(why: str) -> Array:
    """Fails, in place of making an array."""
    raise RuntimeError(why)


def wait_for(name: str) -> Array:
    """Makes an array when an object has been put."""
    return np.full(8, float(hoplite.init().get(name, timeout=30)))


def same(array: Array) -> Array:
    """Hands an array on."""
    return array


# Bytes of each array that this worker has sent, since `watch_sent`.
_sent: list[int] = []


def watch_sent() -> None:
    """Begins to note what this worker sends of arrays."""
    from distributed.protocol.serialize import register_serialization

    from hoplite.dask import arrays

    def serialize(array: Array, context: Any = None) -> Any:  # noqa: ANN401 - as Dask has it
        header, frames = arrays.serialize(array, context)
        _sent.append(sum(memoryview(frame).nbytes for frame in frames))
        return header, frames

    _sent.clear()
    register_serialization(np.ndarray, serialize, arrays.deserialize)


def sent() -> list[int]:
    """What was noted."""
    return list(_sent)


def end_watching() -> None:
    """Ends it."""
    from distributed.protocol.serialize import register_serialization

    from hoplite.dask import arrays

    register_serialization(np.ndarray, arrays.serialize, arrays.deserialize)


def node_id() -> str:
    """The node that a task finds without being told."""
    with hoplite.init() as client:
        return str(client.status()["id"])


def files_of(process: int) -> str:
    """The command line and the environment of a process, as other users' tools see them."""
    found = ""
    for what in ("cmdline", "environ"):
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123 - short
            found += file.read().decode(errors="replace")
    return found
