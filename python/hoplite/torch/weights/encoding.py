"""Manifests as bytes: `encode` and `parse`.

Two texts in JSON follow a fixed header: one of the data, one of the tensors. A small publication has its data behind
them, in the same object. Whoever may put a name may put any bytes: `parse` checks all names, sizes and offsets, and
executes nothing. Does not know torch or clients.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

from hoplite.torch.weights.manifest import (
    ALIGNMENT,
    AXES_MAX,
    BYTES_MAX,
    DTYPES_MAX,
    EXTENTS_MAX,
    NAME_CHARS_MAX,
    OBJECTS_MAX,
    SHARDS_MAX,
    TENSORS_MAX,
    TEXT_BYTES_MAX,
    Entry,
    Extent,
    Manifest,
    ManifestInvalid,
    Source,
    aligned,
)
from hoplite.torch.weights.texts import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MAGIC = b"HPLWGHT1"
HEADER = struct.Struct("<8sQQ")

# Of a version with several publishers, the ids of all are joined, but only in memory.
ID_CHARS_MAX = 64

_ID = re.compile(r"[0-9a-f]{16,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def encode(manifest: Manifest) -> bytearray:
    """Encodes a manifest. Data of a small publication goes behind it; the result is aligned for that.

    The tensors are in columns: a list for each of thousands of tensors would take longer than the rest.
    """
    entries = manifest.entries
    dtypes = list(dict.fromkeys(entry.dtype for entry in entries))
    place = {dtype: index for index, dtype in enumerate(dtypes)}
    data = {
        "version": manifest.version,
        "id": manifest.id,
        "nbytes": manifest.nbytes,
        "shard": [manifest.shard, manifest.shards],
        "objects": manifest.sources,
        "extents": manifest.extents,
        "patches": manifest.patches
        and [manifest.patches[0], [[index, *patch] for index, patch in manifest.patches[1].items()]],
        "publisher": manifest.publisher,
    }
    tensors = {
        "names": [entry.name for entry in entries],
        "dtypes": dtypes,
        "kinds": [place[entry.dtype] for entry in entries],
        "axes": [len(entry.shape) for entry in entries],
        "lengths": [length for entry in entries for length in entry.shape],
        "offsets": [entry.offset for entry in entries],
        "boxes": [[at, entry.begin, entry.full] for at, entry in enumerate(entries) if entry.begin is not None],
    }
    texts = [json.dumps(each, separators=(",", ":"), allow_nan=False).encode() for each in (data, tensors)]
    found = HEADER.pack(MAGIC, *map(len, texts)) + b"".join(texts)
    return bytearray(found.ljust(aligned(len(found)), b" "))


def parse(data: Any, name: str, sizes: dict[str, int]) -> Manifest:
    """Parses and checks a manifest.

    Args:
        data: value of the object, which the inline data refers to.
        name: name of the object, for the error.
        sizes: size in bytes of an element of each dtype that is known here.

    Raises:
        ManifestInvalid: the bytes are not a valid manifest.
    """
    with _checks(name):
        first, second, inline = _texts(data)
        manifest = _manifest(Text(first), inline.nbytes)
        manifest.entries = _entries(Text(second), manifest.nbytes, sizes)
        manifest.inline = {index: inline for index, source in enumerate(manifest.sources) if not source.ref}
        return manifest


def parse_data(data: Any, name: str) -> Manifest:
    """Parses and checks what a manifest has on the data of a version, without its tensors.

    Raises:
        ManifestInvalid: the bytes are not a valid manifest.
    """
    with _checks(name):
        first, _, inline = _texts(data)
        return _manifest(Text(first), inline.nbytes)


class _Invalid(Exception):
    """Why a manifest is not valid."""


@contextlib.contextmanager
def _checks(name: str) -> Iterator[None]:
    try:
        yield
    except _Invalid as error:
        why = str(error)
    except (TypeError, ValueError, OverflowError, RecursionError, KeyError, IndexError, AttributeError) as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
    else:
        return
    raise ManifestInvalid(f"{name} is not a manifest of published weights ({why}): publish under a name of its own")


def _texts(data: Any) -> tuple[memoryview, memoryview, memoryview]:
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1 or view.nbytes < HEADER.size:
        raise _Invalid("it is not bytes, or too short")
    magic, first, second = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _Invalid("it starts with other bytes")
    if first + second > min(TEXT_BYTES_MAX, view.nbytes - HEADER.size):
        raise _Invalid(f"its text of {first + second} bytes is too long")
    begin, end = HEADER.size + first, HEADER.size + first + second
    return view[HEADER.size : begin], view[begin:end], view[aligned(end) :]


def _manifest(text: Text, inline_bytes: int) -> Manifest:
    text.skip('{"version":')
    version = _whole(text.number(), 2**63 - 1)
    text.skip(',"id":')
    identity = _matching(_ID, text.string(ID_CHARS_MAX))
    text.skip(',"nbytes":')
    nbytes = _whole(text.number(), BYTES_MAX)
    text.skip(',"shard":')
    shard, shards = text.numbers(2)
    _whole(shards, SHARDS_MAX, 1)
    text.skip(',"objects":')
    sources = _sources(text.rows("]"), inline_bytes)
    text.skip(',"extents":')
    extents = _extents(text.rows("]"), nbytes, sources)
    text.skip(',"patches":')
    patches = _patches(text, len(sources))
    text.skip(',"publisher":')
    publisher = text.string(NAME_CHARS_MAX)
    text.skip("}")
    text.end()
    return Manifest(
        version=version,
        id=identity,
        nbytes=nbytes,
        entries=[],
        sources=sources,
        extents=extents,
        shard=_whole(shard, shards - 1),
        shards=shards,
        patches=patches,
        publisher=publisher,
    )


def _entries(text: Text, nbytes: int, sizes: dict[str, int]) -> list[Entry]:
    text.skip('{"names":')
    names = text.strings(TENSORS_MAX, NAME_CHARS_MAX)
    text.skip(',"dtypes":')
    dtypes = text.strings(DTYPES_MAX, NAME_CHARS_MAX)
    unknown = [dtype for dtype in dtypes if dtype not in sizes]
    if unknown:
        raise _Invalid(f"the dtype {unknown[0][:100]!r} is missing in torch here")
    text.skip(',"kinds":')
    kinds = _wholes(text.numbers(len(names)), TENSORS_MAX)
    text.skip(',"axes":')
    axes = _wholes(text.numbers(len(names)), AXES_MAX)
    text.skip(',"lengths":')
    lengths = _wholes(text.numbers(sum(axes)), BYTES_MAX)
    text.skip(',"offsets":')
    offsets = _wholes(text.numbers(len(names)), nbytes)
    text.skip(',"boxes":')
    entries: list[Entry] = []
    place = 0
    for name, kind, count, offset in zip(names, kinds, axes, offsets, strict=True):
        dtype = dtypes[kind]
        shape = tuple(lengths[place : place + count])
        place += count
        length = math.prod(shape) * sizes[dtype]
        if len(shape) != count or offset % ALIGNMENT or offset + length > nbytes:
            raise _Invalid(f"tensor {name[:100]} of {length} bytes is not inside the {nbytes} bytes of the version")
        entries.append(Entry(name, dtype, shape, offset, length, None, shape))
    for index, begin, full in text.rows("]]"):
        entry = entries[_whole(index, len(entries) - 1)]
        begin, full = tuple(_wholes(begin, BYTES_MAX)), tuple(_wholes(full, BYTES_MAX))
        if any(first + count > whole for first, count, whole in zip(begin, entry.shape, full, strict=True)):
            raise _Invalid(f"tensor {entry.name[:100]} is a part outside of its whole")
        entries[index] = entry._replace(begin=begin, full=full)
    text.skip("}")
    text.end()
    times = Counter(names) if len(set(names)) != len(names) else {}
    if any(entry.begin is None and times[entry.name] > 1 for entry in entries if times):
        raise _Invalid("a tensor is listed twice")
    # Tied tensors are the same range; others must not overlap, so that they never take more memory than the version.
    end = 0
    for first, length, _, _ in sorted({(each.offset, each.nbytes, each.dtype, each.shape) for each in entries}):
        if length and first < end:
            raise _Invalid(f"tensors overlap at byte {first}")
        end = max(end, first + length)
    return entries


def _sources(rows: Iterable[Any], inline_bytes: int) -> list[Source]:
    sources: list[Source] = []
    for row in rows:
        _limit(sources, OBJECTS_MAX, "objects")
        sources.append(_source(row, inline_bytes))
    return sources


def _source(row: Any, inline_bytes: int) -> Source:
    ref, nbytes, digest = row
    _ref(ref)
    _whole(nbytes, BYTES_MAX)
    if not ref and nbytes != inline_bytes:
        raise _Invalid(f"{inline_bytes} bytes follow the text, not {nbytes}")
    return Source(ref, nbytes, None if digest is None else _matching(_DIGEST, digest))


def _ref(found: Any) -> None:
    if type(found) is not str or len(found) > NAME_CHARS_MAX:
        raise _Invalid("the ref of an object is not valid")


def _extents(rows: Iterable[Any], nbytes: int, sources: Sequence[Source]) -> list[Extent]:
    extents: list[Extent] = []
    end = 0
    for at, length, source, start in rows:
        _limit(extents, EXTENTS_MAX, "extents")
        _whole(at, nbytes)
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


def _patches(text: Text, count: int) -> tuple[str, dict[int, Source]] | None:
    if text.skips("null"):
        return None
    text.skip("[")
    base = _matching(_ID, text.string(ID_CHARS_MAX))
    text.skip(",")
    patches: dict[int, Source] = {}
    for index, *row in text.rows("]"):
        _whole(index, count - 1)
        if index in patches:
            raise _Invalid(f"object {index} has two patches")
        patches[index] = _source(row, -1)
    text.skip("]")
    return base, patches


def _wholes(found: Any, most: int) -> list[int]:
    if type(found) is not list or not set(map(type, found)) <= {int}:
        raise _Invalid("a list of numbers is not valid")
    if found and not 0 <= min(found) <= max(found) <= most:
        raise _Invalid(f"a number is not from 0 to {most}")
    return found


def _whole(found: Any, most: int, least: int = 0) -> int:
    if type(found) is not int or not least <= found <= most:
        raise _Invalid(f"{str(found)[:50]} is not a number from {least} to {most}")
    return found


def _matching(pattern: re.Pattern[str], found: Any) -> str:
    if type(found) is not str or pattern.fullmatch(found) is None:
        raise _Invalid(f"{str(found)[:50]!r} is not valid hexadecimal")
    return found


def _limit(found: Sequence[Any], most: int, what: str) -> None:
    """Checks that one more is allowed."""
    if len(found) == most:
        raise _Invalid(f"it lists more than {most} {what}")
