"""The format of a publication: which tensors there are, and in which objects their bytes are.

The tensors of a publication form one flat space of `nbytes` bytes, each at an offset that is a multiple of 64. Extents
map this space to positions in data objects. The text is JSON behind a fixed header. A small publication has its data
behind the text, in the same object.

Whoever may put a name may put any bytes: `parse` checks all names, sizes and offsets, and executes nothing. Does not
know torch or clients.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import HopliteError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A cache line, and a multiple of the size of every element.
ALIGNMENT = 64

MAGIC = b"HPLWGHT1"
HEADER = struct.Struct("<8sQ")

# Limits of what a receiver accepts. The largest models have some 100 000 tensors.
TEXT_BYTES_MAX = 256 << 20
TENSORS_MAX = 1 << 20
OBJECTS_MAX = 1 << 20
EXTENTS_MAX = 1 << 22
NAME_CHARS_MAX = 4096
AXES_MAX = 64
BYTES_MAX = 1 << 48
SHARDS_MAX = 1 << 16

_DTYPE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_ID = re.compile(r"[0-9a-f]{16,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


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
        patches: for the opaque form of a delta, the id of the base and, for each object of a whole version, its patch.
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
    patches: tuple[str, Sequence[Source]] | None = None
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
        patches = () if self.patches is None else self.patches[1]
        return list(dict.fromkeys(source.ref for source in (*self.sources, *patches) if source.ref))


def aligned(offset: int) -> int:
    """Rounds up to a multiple of `ALIGNMENT`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def encode(manifest: Manifest) -> bytearray:
    """Encodes a manifest. Data of a small publication goes behind it; the result is aligned for that."""
    text = json.dumps(
        {
            "version": manifest.version,
            "id": manifest.id,
            "nbytes": manifest.nbytes,
            "shard": [manifest.shard, manifest.shards],
            "tensors": [
                (entry.name, entry.dtype, entry.shape, entry.offset)
                if entry.begin is None
                else (entry.name, entry.dtype, entry.shape, entry.offset, entry.begin, entry.full)
                for entry in manifest.entries
            ],
            "objects": manifest.sources,
            "extents": manifest.extents,
            "patches": manifest.patches,
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return bytearray((HEADER.pack(MAGIC, len(text)) + text).ljust(aligned(HEADER.size + len(text)), b" "))


def parse(data: Any, name: str, sizes: dict[str, int]) -> Manifest:  # noqa: ANN401 - a buffer, or what else was put
    """Parses and checks a manifest.

    Args:
        data: value of the object, which the inline data refers to.
        name: name of the object, for the error.
        sizes: size in bytes of an element of each dtype that is known here.

    Raises:
        ManifestInvalid: the bytes are not a valid manifest.
    """
    try:
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            raise _Invalid("it is not bytes")
        return _manifest(*_text(view), sizes)
    except _Invalid as error:
        why = str(error)
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError, AttributeError) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
    raise ManifestInvalid(f"{name} is not a manifest of published weights ({why}): publish under a name of its own")


class _Invalid(Exception):
    """Why a manifest is not valid."""


def _text(view: memoryview) -> tuple[dict[str, Any], memoryview]:
    if view.nbytes < HEADER.size:
        raise _Invalid(f"it has {view.nbytes} bytes")
    magic, length = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _Invalid("it starts with other bytes")
    if length > min(TEXT_BYTES_MAX, view.nbytes - HEADER.size):
        raise _Invalid(f"its text of {length} bytes is too long")
    found = json.loads(bytes(view[HEADER.size : HEADER.size + length]))
    if type(found) is not dict:
        raise _Invalid("its text is not an object")
    return found, view[aligned(HEADER.size + length) :]


def _manifest(found: dict[str, Any], inline: memoryview, sizes: dict[str, int]) -> Manifest:
    nbytes = _whole(found["nbytes"], BYTES_MAX)
    shard, shards = found["shard"]
    _whole(shards, SHARDS_MAX, 1)
    sources = _sources(found["objects"], inline.nbytes)
    manifest = Manifest(
        version=_whole(found["version"], 2**63 - 1),
        id=_matching(_ID, found["id"]),
        nbytes=nbytes,
        entries=_entries(found["tensors"], nbytes, sizes),
        sources=sources,
        extents=_extents(found["extents"], nbytes, sources),
        shard=_whole(shard, shards - 1),
        shards=shards,
        patches=_patches(found["patches"], len(sources)),
    )
    manifest.inline = {index: inline for index, source in enumerate(sources) if not source.ref}
    return manifest


def _entries(rows: Any, nbytes: int, sizes: dict[str, int]) -> list[Entry]:  # noqa: ANN401 - parsed JSON
    _limit(rows, TENSORS_MAX, "tensors")
    entries: list[Entry] = []
    names: set[str] = set()
    for row in rows:
        name, dtype, shape, offset, *placed = row
        if type(name) is not str or len(name) > NAME_CHARS_MAX or name in names:
            raise _Invalid(f"the tensor name {str(name)[:100]!r} is not valid, or listed twice")
        names.add(name)
        size = sizes.get(dtype) if type(dtype) is str and _DTYPE.fullmatch(dtype) else None
        if size is None:
            raise _Invalid(f"tensor {name[:100]} has the dtype {str(dtype)[:100]!r}, which torch lacks here")
        here = _shape(shape)
        length = math.prod(here) * size
        if type(offset) is not int or offset < 0 or offset % ALIGNMENT or offset + length > nbytes:
            raise _Invalid(f"tensor {name[:100]} of {length} bytes is not inside the {nbytes} bytes of the version")
        begin, full = None, here
        if placed:
            begin, full = _shape(placed[0]), _shape(placed[1])
            if not len(begin) == len(full) == len(here) or len(placed) != 2:
                raise _Invalid(f"tensor {name[:100]} is a part with another number of axes than its whole")
            if any(first + count > whole for first, count, whole in zip(begin, here, full, strict=True)):
                raise _Invalid(f"tensor {name[:100]} is a part outside of its whole")
        entries.append(Entry(name, dtype, here, offset, length, begin, full))
    # Tied tensors are the same range; others must not overlap, so that they never take more memory than the version.
    ranges = sorted({(entry.offset, entry.nbytes, entry.dtype, entry.shape) for entry in entries if entry.nbytes})
    end = 0
    for first, length, _, _ in ranges:
        if first < end:
            raise _Invalid(f"tensors overlap at byte {first}")
        end = first + length
    return entries


def _sources(rows: Any, inline_bytes: int) -> list[Source]:  # noqa: ANN401 - parsed JSON
    _limit(rows, OBJECTS_MAX, "objects")
    sources = []
    for row in rows:
        ref, nbytes, digest = row
        if type(ref) is not str or len(ref) > NAME_CHARS_MAX:
            raise _Invalid("the ref of an object is not valid")
        _whole(nbytes, BYTES_MAX)
        if not ref and nbytes != inline_bytes:
            raise _Invalid(f"{inline_bytes} bytes follow the text, not {nbytes}")
        sources.append(Source(ref, nbytes, None if digest is None else _matching(_DIGEST, digest)))
    return sources


def _extents(rows: Any, nbytes: int, sources: Sequence[Source]) -> list[Extent]:  # noqa: ANN401 - parsed JSON
    _limit(rows, EXTENTS_MAX, "extents")
    extents = []
    end = 0
    for row in rows:
        at, length, source, start = row
        _whole(length, nbytes, 1)
        _whole(source, len(sources) - 1)
        _whole(start, sources[source].nbytes)
        if at != end or start % ALIGNMENT or at % ALIGNMENT or start + length > sources[source].nbytes:
            raise _Invalid(f"the extent at byte {str(at)[:30]} is not valid")
        end = at + length
        extents.append(Extent(at, length, source, start))
    if end != nbytes:
        raise _Invalid(f"its extents end at byte {end} of {nbytes}")
    return extents


def _patches(found: Any, count: int) -> tuple[str, Sequence[Source]] | None:  # noqa: ANN401 - parsed JSON
    if found is None:
        return None
    base, rows = found
    patches = _sources(rows, -1)
    if len(patches) != count:
        raise _Invalid(f"it has {len(patches)} patches for {count} objects")
    return _matching(_ID, base), patches


def _shape(found: Any) -> tuple[int, ...]:  # noqa: ANN401 - parsed JSON
    if type(found) is not list or len(found) > AXES_MAX:
        raise _Invalid("a shape is not valid")
    return tuple([_whole(length, BYTES_MAX) for length in found])


def _whole(found: Any, most: int, least: int = 0) -> int:  # noqa: ANN401 - parsed JSON
    if type(found) is not int or not least <= found <= most:
        raise _Invalid(f"{str(found)[:50]} is not a number from {least} to {most}")
    return found


def _matching(pattern: re.Pattern[str], found: Any) -> str:  # noqa: ANN401 - parsed JSON
    if type(found) is not str or pattern.fullmatch(found) is None:
        raise _Invalid(f"{str(found)[:50]!r} is not valid hexadecimal")
    return found


def _limit(rows: Any, most: int, what: str) -> None:  # noqa: ANN401 - parsed JSON
    if type(rows) is not list or len(rows) > most:
        raise _Invalid(f"it lists more than {most} {what}, or none")
