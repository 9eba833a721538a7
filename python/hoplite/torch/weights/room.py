"""Whether the store of this node can hold a publication.

Otherwise the publisher would wait for memory that it keeps itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite import NotAllowed, StoreFull
from hoplite.torch.weights.names import ANNOUNCED, Version
from hoplite.torch.weights.pruning import refs_of

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.torch.weights.names import Deadline

# Bookkeeping of the store for each object, as part of its capacity.
OBJECT_BYTES = 256


def check_room(client: Client, version: Version, nbytes: int, count: int, deadline: Deadline, *, extra: int = 0) -> int:
    """Checks that the data of a version fits into the store together with the versions that stay until it is complete.

    Other objects can be evicted, or deleted while the publisher waits.

    Args:
        client: client of the node.
        version: the version that is published.
        nbytes: bytes that its objects need here, including those that are there already.
        count: number of its objects.
        deadline: when to give up.
        extra: bytes that it can do without.

    Returns:
        How many of the extra bytes fit too.

    Raises:
        StoreFull: it does not fit.
        Timeout: the time is up.
    """
    needed = nbytes + count * OBJECT_BYTES
    try:
        store = client.status()["store"]
        limit = store["capacity"] + store["spill_limit"]
        if needed + extra <= limit - store["used"] - store["spilled"]:
            return extra
        held = _held(client, version, deadline)
    except NotAllowed:
        # A client with a capability may not list what others have here.
        return extra
    stays = sum(held.values())
    if needed + stays <= limit:
        return min(extra, limit - needed - stays)
    listed = ", ".join(f"{version.prefix}{number} ({size} bytes)" for number, size in sorted(held.items()) if size)
    keeps = f"; until it is complete, the node also keeps {listed}" if listed else ""
    raise StoreFull(
        f"{version.name} needs {needed} bytes of the store of this node, whose capacity is {limit} bytes{keeps}: "
        f"set a capacity of at least {needed + stays} bytes"
        + (", retain fewer versions with retain=, or delete versions with hoplite.torch.delete" if listed else "")
    )


def _held(client: Client, version: Version, deadline: Deadline) -> dict[int, int]:
    """Returns the bytes that other versions have on this node and that are not evicted, by number."""
    here = {row["ref"]: row["bytes"] + OBJECT_BYTES for row in client.objects(timeout=deadline.left()) if row["pinned"]}
    prefix = version.prefix + ANNOUNCED
    held: dict[int, int] = {}
    for row in client.directory(prefix, timeout=deadline.left()):
        number = row["ref"][len(prefix) :].partition(".")[0]
        if number.isascii() and number.isdigit() and int(number) != version.number:
            # Versions share objects, each of which counts once.
            sizes = [here.pop(ref, 0) for ref in (row["ref"], *refs_of(client, row["ref"], deadline))]
            held[int(number)] = held.get(int(number), 0) + sum(sizes)
    return held
