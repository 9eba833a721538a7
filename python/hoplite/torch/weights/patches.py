"""The opaque form of a delta: patches in a format of the caller, in addition to a whole version.

For each data object of the version there is a patch, from the bytes of the base to those of the version. A receiver
that has the base and the decoder brings the patches; others bring the objects. Does not know what a patch contains.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from hoplite import InvalidArgument
from hoplite.torch.weights.modes import copying
from hoplite.torch.weights.placing import Placement, Segment
from hoplite.torch.weights.sources import Sources
from hoplite.torch.weights.transfer import Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from hoplite.torch.weights.manifest import Extent, Manifest


def patch_parts(
    manifest: Manifest, placement: Placement, base: Manifest, outs: dict[str, Any], decode: Callable[..., Any]
) -> list[Part] | None:
    """Returns the patches to get, and what to do with each; None if the version has none for this base.

    Args:
        manifest: the version.
        placement: where its bytes go.
        base: the version that the tensors have now.
        outs: the tensors, in the order of the publication.
        decode: called with the bytes of the base and a patch; returns those of the version.
    """
    is_one_to_one = [extent.source for extent in manifest.extents] == list(range(len(manifest.sources)))
    if manifest.patches is None or manifest.patches[0] != base.id or not is_one_to_one:
        return None
    with copying():
        sources = Sources({entry.name: outs[entry.name] for entry in manifest.entries if entry.name in outs})
    if sources.entries != manifest.entries or sources.nbytes != manifest.nbytes:
        # Only some of the tensors, or converted ones.
        return None
    return [
        Part(patch, None, partial(_apply, placement, sources, extent, decode))
        for patch, extent in zip(manifest.patches[1], manifest.extents, strict=True)
    ]


def _apply(
    placement: Placement, sources: Sources, extent: Extent, decode: Callable[..., Any], patch: memoryview
) -> None:
    old = bytearray(extent.nbytes)
    with copying():
        sources.copy(old, extent.at)
    new = memoryview(decode(memoryview(old).toreadonly(), patch))
    if new.nbytes != extent.nbytes or not new.c_contiguous:
        raise InvalidArgument(
            f"decode returned {new.nbytes} bytes in place of {extent.nbytes}: return as many as it got"
        )
    placement.take(new.cast("B"), [Segment(0, extent.at, extent.nbytes)])
