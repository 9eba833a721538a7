"""The order in which a receiver gets the objects of a version: where it begins.

Receivers of other parts begin with other publishers, and those of the same parts with the same one: they relay to each
other.

Receivers with small stores evict an object soon after they have copied it. A late receiver that began with the first
object would share the link of the publisher with the others. It begins with the objects that flow between the others
now, which they relay, and gets the first ones from the publisher when the others are done.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from hoplite import HopliteError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite import Client
    from hoplite.torch.weights.boxes import Box
    from hoplite.torch.weights.manifest import Manifest
    from hoplite.torch.weights.names import Deadline
    from hoplite.torch.weights.transfer import Need, Part

# With fewer objects, the order makes no difference.
PARTS_MIN = 4

# A publisher with this share of the most bytes has about as many: chunks are uneven, and one has the plain tensors.
ENOUGH_SHARE = 0.875

# Ranks of as many parts as there are publishers are a whole publisher apart.
ROUNDING = 1e-6


def apart(manifest: Manifest, wanted: list[Need], boxes: Mapping[str, Box | None]) -> list[Need]:
    """Rotates what is needed of several publishers, so that receivers of other parts begin with other publishers.

    Otherwise, all would share the link of the first publisher, then that of the next. A receiver begins with the
    publisher that has most bytes for it. If several have about as many, its place in the model decides: where its
    slices begin, and the middle of its tensors.

    Args:
        manifest: the version, of all publishers.
        wanted: what is needed of it, in the order of the flat space.
        boxes: what is wanted of each whole tensor, by name; None for all of it.
    """
    firsts, count = manifest.firsts, len(manifest.firsts)
    if not wanted or count == 1:
        return wanted
    nbytes = [0] * count
    for need in wanted:
        nbytes[bisect_right(firsts, need.source) - 1] += sum(segment.nbytes for segment in need.segments)
    fulls = manifest.shapes
    slices = max((_place(box, fulls[name]) for name, box in boxes.items() if box), default=0.0)
    indexes = [index for index, name in enumerate(fulls) if name in boxes]
    start = int((slices + indexes[len(indexes) // 2] / len(fulls)) * count + ROUNDING)
    nearest = (each % count for each in range(start, start + count))
    publisher = next(each for each in nearest if nbytes[each] >= ENOUGH_SHARE * max(nbytes))
    place = bisect_left(wanted, firsts[publisher], key=lambda need: need.source)
    return wanted[place:] + wanted[:place]


def _place(box: Box, full: tuple[int, ...]) -> float:
    """Where a box begins, as a share of the first axis that it cuts."""
    cut = ((start, length) for (start, stop), length in zip(box, full, strict=True) if stop - start < length)
    start, length = next(cut, (0, 1))
    return start / length


async def flowing_first(client: Client, wanted: Sequence[Part], deadline: Deadline) -> list[Part]:
    """Rotates objects so that those which most nodes are receiving now come first.

    Args:
        client: client to look with.
        wanted: the objects, in order.
        deadline: when to give up.
    """
    parts = list(wanted)
    if len(parts) < PARTS_MIN:
        return parts
    complete, partial = await _copies(client, parts[0], deadline)
    if partial or not complete:
        # The others receive the first object too, or wait for it.
        return parts
    found = await asyncio.gather(*(_copies(client, part, deadline) for part in parts))
    # An object without a complete copy is still being put: nobody receives it.
    place = max(range(len(parts)), key=lambda index: found[index][1] if found[index][0] else 0)
    return parts[place:] + parts[:place]


async def _copies(client: Client, part: Part, deadline: Deadline) -> tuple[int, int]:
    """Numbers of complete and of partial copies of an object."""
    if part.data is not None:
        return 0, 0
    try:
        found = await client.locations_async(part.source.ref, timeout=deadline.left())
    except HopliteError:
        # The get raises it.
        return 0, 0
    complete = sum(location.complete for location in found)
    return complete, len(found) - complete
