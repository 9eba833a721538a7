"""Versions that several publishers publish together: merges the manifests of their shards into one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hoplite.torch.weights.manifest import Entry, Manifest, ManifestInvalid, Source

if TYPE_CHECKING:
    from collections.abc import Sequence


def merged(name: str, parts: Sequence[Manifest]) -> Manifest:
    """Merges the manifests of all shards, in the order of their ranks.

    Raises:
        ManifestInvalid: they are not the shards of one version, or do not have all elements of a tensor.
    """
    first = parts[0]
    entries: list[Entry] = []
    found: dict[str, list[Entry]] = {}
    patches: dict[int, Source] = {}
    whole = Manifest(first.version, "-".join(part.id for part in parts), 0, entries, [], [], 0, first.shards)
    for rank, part in enumerate(parts):
        if (part.shard, part.shards) != (rank, len(parts)):
            raise ManifestInvalid(
                f"shard {rank} of {name} is shard {part.shard} of {part.shards}: use the same number of shards on all "
                "ranks"
            )
        for entry in part.entries:
            others = found.setdefault(entry.name, [])
            if others and (entry.full, entry.dtype) != (others[0].full, others[0].dtype):
                raise ManifestInvalid(
                    f"{entry.name} is {others[0].dtype} {list(others[0].full)} in one shard of {name}, and "
                    f"{entry.dtype} {list(entry.full)} in shard {rank}: publish parts of one tensor"
                )
            # Every rank may have whole tensors; those of the first are taken.
            if not (
                others and (entry.begin is None or (entry.begin, entry.shape) in [(o.begin, o.shape) for o in others])
            ):
                others.append(entry)
                entries.append(entry._replace(offset=whole.nbytes + entry.offset))
        if part.patches is not None:
            patches.update({len(whole.sources) + index: patch for index, patch in part.patches[1].items()})
        _append(whole, part)
    if any(part.patches is not None for part in parts):
        bases = [part.patches[0] if part.patches is not None else "" for part in parts]
        whole.patches = ("-".join(bases), patches)
    for tensor, boxes in found.items():
        is_whole = sum(math.prod(box.shape) for box in boxes) == math.prod(boxes[0].full)
        if any(box.begin is not None for box in boxes) and not (is_whole and _are_apart(boxes)):
            raise ManifestInvalid(f"the shards of {name} do not have each element of {tensor} once: check their slices")
    return whole


def _are_apart(boxes: Sequence[Entry]) -> bool:
    """Whether no two boxes have an element in common."""
    ordered = sorted(([*zip(box.begin or (), box.shape, strict=True)] for box in boxes), key=lambda box: box[:1])
    for index, one in enumerate(ordered):
        for other in ordered[index + 1 :]:
            if one and other[0][0] >= sum(one[0]):
                break
            if all(a < b + n and b < a + m for (a, m), (b, n) in zip(one, other, strict=True)):
                return False
    return True


def _append(whole: Manifest, part: Manifest) -> None:
    """Appends the flat space of a part."""
    shift = len(whole.sources)
    if shift:
        whole.firsts = [*whole.firsts, shift]
    whole.sources = [*whole.sources, *part.sources]
    moved = [extent._replace(at=whole.nbytes + extent.at, source=shift + extent.source) for extent in part.extents]
    whole.extents = [*whole.extents, *moved]
    whole.inline.update({shift + index: data for index, data in part.inline.items()})
    whole.nbytes += part.nbytes
