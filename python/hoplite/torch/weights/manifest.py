"""The format of a publication: which tensors there are, and in which objects their bytes are.

The tensors of a publication form one flat space of `nbytes` bytes, each at an offset that is a multiple of 64. Extents
map this space to positions in data objects. Does not know torch or clients, or how `encoding` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import HopliteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A cache line, and a multiple of the size of every element.
ALIGNMENT = 64

# Limits of what a receiver accepts. The largest models have some 100 000 tensors.
TEXT_BYTES_MAX = 256 << 20
TENSORS_MAX = 1 << 20
OBJECTS_MAX = 1 << 20
EXTENTS_MAX = 1 << 22
NAME_CHARS_MAX = 4096
AXES_MAX = 64
DTYPES_MAX = 256
BYTES_MAX = 1 << 48
SHARDS_MAX = 1 << 16


class ManifestInvalid(HopliteError):
    """An object is not a valid manifest of published weights, or its data does not match it. Publish a new version."""


class Entry(NamedTuple):
    """A tensor, or a box of a tensor that several publishers share.

    Attributes:
        name: name of the tensor in the state dict.
        dtype: name of its dtype, without "torch.".
        shape: shape of what is here.
        offset: position in the flat space, in bytes.
        nbytes: size in bytes.
        begin: index of the first element in the whole tensor; None if all of it is here.
        full: shape of the whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    begin: tuple[int, ...] | None
    full: tuple[int, ...]


class Extent(NamedTuple):
    """A range of the flat space, and where its bytes are.

    Attributes:
        at: first byte in the flat space.
        nbytes: length in bytes.
        source: index of the object.
        start: first byte in the object.
    """

    at: int
    nbytes: int
    source: int
    start: int


class Source(NamedTuple):
    """A data object.

    Attributes:
        ref: text of its ref; empty if the data is behind the manifest.
        nbytes: size in bytes.
        digest: SHA-256 of its bytes in hexadecimal, if receivers verify it.
    """

    ref: str
    nbytes: int
    digest: str | None = None


@dataclass
class Manifest:
    """What a version consists of.

    Attributes:
        version: its number.
        id: identifies this publication; another publication of the same number has another one.
        nbytes: size of the flat space.
        entries: the tensors, in the order of the state dict.
        sources: the data objects.
        extents: map of the flat space, in its order and without gaps.
        shard: rank of the publisher.
        shards: number of publishers.
        firsts: of several publishers' manifests together, the index in `sources` of each one's first object.
        publisher: a ref that its publisher has reserved until the version is complete.
        patches: of a version that was published with a base, the id of the base, and the patches of objects by index in
            `sources`. Of several shards, the ids are joined by "-", with nothing for a shard without a base.
        inline: data behind the manifest, by index in `sources`.
    """

    version: int
    id: str
    nbytes: int
    entries: Sequence[Entry]
    sources: Sequence[Source]
    extents: Sequence[Extent]
    shard: int = 0
    shards: int = 1
    firsts: Sequence[int] = (0,)
    publisher: str = ""
    patches: tuple[str, Mapping[int, Source]] | None = None
    inline: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the order of the publisher."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each whole tensor."""
        return {entry.name: entry.full for entry in self.entries}

    @property
    def dtypes(self) -> dict[str, str]:
        """Name of the dtype of each tensor."""
        return {entry.name: entry.dtype for entry in self.entries}

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each data object, by ref; empty unless `publish` had `digest=True`."""
        return {source.ref: source.digest for source in self.sources if source.digest is not None}

    def refs(self) -> list[str]:
        """Refs of all objects that this version needs."""
        patches = {} if self.patches is None else self.patches[1]
        return list(dict.fromkeys(source.ref for source in (*self.sources, *patches.values()) if source.ref))

    def patches_for(self, base: Manifest) -> Mapping[int, Source]:
        """The patches that lead from another version to this one, by index in `sources`."""
        if self.patches is None or self.entries != base.entries:
            return {}
        ids, others = self.patches[0].split("-"), base.id.split("-")
        pairs = zip(ids, others, strict=True) if len(ids) == len(others) else ()
        return self.patches[1] if pairs and all(one in ("", other) for one, other in pairs) else {}


def aligned(offset: int) -> int:
    """Rounds up to a multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
