"""The objects of a checkpoint: pieces with the bytes of many items, and the list of items, which completes it.

The list has the name of the checkpoint, "ckpt/17"; pieces have names below it. It is put last, so a checkpoint whose
list exists is complete. Nothing in a checkpoint runs code: its list, and all values that are not tensors, are loaded
with `weights_only=True`. This module does not know planners.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as of_torch

import hoplite
from hoplite._timeouts import DEFAULT, limit
from hoplite.errors import DecodeError, InvalidArgument
from hoplite.torch import safe_load

# The classes of the list. They have no code of their own.
SAFE = [
    of_torch.BytesStorageMetadata,
    of_torch.ChunkStorageMetadata,
    of_torch.Metadata,
    of_torch.MetadataIndex,
    of_torch.StorageMeta,
    of_torch.TensorProperties,
    of_torch.TensorStorageMetadata,
    of_torch._MEM_FORMAT_ENCODING,
]

# Pieces that are replicated, or received, at once: while one is copied, the others are on the wire.
AT_ONCE = 4


class Stored(NamedTuple):
    """Where the bytes of an item are.

    Attributes:
        piece: name of the object.
        start: offset in it.
        nbytes: size.
        dtype: dtype of a tensor; None for other items.
        shape: shape of a tensor; None for other items.
    """

    piece: str
    start: int
    nbytes: int
    dtype: Any
    shape: Any


def dump(metadata: object, name: str) -> bytes:
    """Returns the list of a checkpoint as bytes.

    Raises:
        InvalidArgument: the planner added an object that is not safe to load.
    """
    torch.serialization.add_safe_globals(SAFE)
    return safe_load.dump(metadata, f"checkpoint {name}")


def load(data: bytes | memoryview, name: str) -> Any:
    """Returns the list of a checkpoint.

    Raises:
        DecodeError: the bytes are no such list.
    """
    torch.serialization.add_safe_globals(SAFE)
    found = safe_load.load(data, f"checkpoint {name}")
    if not isinstance(found, of_torch.Metadata) or not isinstance(found.storage_data, dict):
        raise DecodeError(f"{name} is no checkpoint, but a {type(found).__name__}: pass the name of a checkpoint")
    return found


def as_tensor(memory: Any) -> Any:
    """Returns a tensor, uint8 [nbytes], over memory that is not empty. Never write into read-only memory."""
    _suppress_warning()
    return torch.frombuffer(memory, dtype=torch.uint8)


def checked(checkpoint_id: str | os.PathLike[str] | None) -> str | None:
    """Returns the name of a checkpoint as text.

    Raises:
        InvalidArgument: it is empty, or looks like a path.
    """
    if checkpoint_id is None:
        return None
    name = os.fspath(checkpoint_id)
    if not is_name(name):
        raise InvalidArgument(f"checkpoint_id {name!r} is not valid: pass a name such as 'ckpt/17', not a path")
    return name


def is_name(name: str) -> bool:
    """Returns whether a text is a valid name of a checkpoint, or a prefix of names."""
    return bool(name) and not name.startswith(("@", "/", "."))


def delete(checkpoint_id: str, *, client: hoplite.Client | None = None, timeout: float | None = DEFAULT) -> None:
    """Deletes a checkpoint on all nodes, or what a failed save of it has left.

    Args:
        checkpoint_id: name of the checkpoint, such as "ckpt/17".
        client: client to use. The default is `hoplite.client()`.
        timeout: seconds to wait for all nodes.

    Raises:
        InvalidArgument: the name is not valid.
        Timeout: a node did not reply in time.
    """
    name = checked(checkpoint_id)
    if name is None or name.endswith("/"):
        raise InvalidArgument(f"checkpoint_id {checkpoint_id!r} is a prefix: pass the name of one checkpoint")
    found = hoplite.client() if client is None else client
    timeout = limit(timeout, found)
    # The list first: from then on no reader finds the checkpoint.
    found.delete(name, timeout=timeout)
    found.delete([row["ref"] for row in found.directory(f"{name}/", timeout=timeout)], timeout=timeout)


def prune(client: hoplite.Client, name: str, retain: int, timeout: float | None) -> None:
    """Deletes the pieces of checkpoints that are older than the newest `retain`. The store deletes their lists."""
    prefix = name[: name.rindex("/") + 1]
    pieces: dict[int, list[str]] = {}
    complete = {int(name[len(prefix) :])}
    for row in client.directory(prefix, timeout=timeout):
        number, _, rest = row["ref"][len(prefix) :].partition("/")
        if not number.isdecimal():
            continue
        if rest:
            pieces.setdefault(int(number), []).append(row["ref"])
        else:
            complete.add(int(number))
    oldest = min(sorted(complete)[-retain:])
    client.delete([piece for number, names in pieces.items() if number < oldest for piece in names], timeout=timeout)


@functools.cache
def _suppress_warning() -> None:
    """Suppresses the warning about read-only memory, which torch issues once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.frombuffer(b"0", dtype=torch.uint8)
