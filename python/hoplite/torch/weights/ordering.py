"""The order in which a receiver that joins midway gets the objects of a version.

Receivers with small stores evict an object soon after they have copied it. A late receiver that began with the first
object would share the link of the publisher with the others. It begins with the objects that flow between the others
now, which they relay, and gets the first ones from the publisher when the others are done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hoplite import HopliteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite import Client
    from hoplite.torch.weights.names import Deadline
    from hoplite.torch.weights.transfer import Part

# With fewer objects, the order makes no difference.
PARTS_MIN = 4


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
