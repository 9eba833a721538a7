"""Types of the rows that `Client.objects` and `Client.directory` return, for annotations. Each row is a dict."""

from __future__ import annotations

from typing import Literal, TypedDict

# crates/node/src/local/describe.rs writes each field; tests/test_cli_verbs.py compares the two.


class ListedObject(TypedDict):
    """Fields of the rows of both listings."""

    ref: str
    """Text of its ref."""

    bytes: int
    """Size in bytes."""

    dtype: str | None
    """Element type of an array; None for other values."""

    shape: list[int] | None
    """Length of each axis of an array; None for other values."""

    what: str
    """Dtype and shape in words, such as "float32[2, 3]"."""

    form: Literal["plain", "torch", "arrow", "pickle"]
    """How `get` decodes the bytes: as an array or bytes, or as a value of that package."""

    job: str | None
    """Job of the client that created it."""

    ttl: float | None
    """Seconds until it is deleted; None without a limit."""


class LocalObject(ListedObject):
    """A row of `Client.objects`: a copy on this host's node. It also has the fields of `ListedObject`."""

    instance: str
    """Identifies one put of a name: node id and number."""

    state: Literal["filling", "flowing", "folding", "complete", "spilled", "returning"]
    """In the order of the values: being written by a client, received or folded; complete in memory; on disk; being
    read back from disk."""

    pinned: bool
    """Whether it may not be evicted."""

    readers: int
    """Number of reads, transfers and folds that use it now."""


class DirectoryEntry(ListedObject):
    """A row of `Client.directory`: an object, as listed by an owner. It also has the fields of `ListedObject`."""

    owner: str
    """Id of the node that listed it."""

    age: float
    """Seconds since that node first received an announcement of it."""

    copies: int
    """Number of nodes with a complete copy."""

    partial: int
    """Number of nodes with a partial copy."""
