"""Brings the bytes of one version: requests its objects in order, some of them ahead, and hands each on as it arrives.

The objects in flight are bounded, so that a receiver needs little memory in addition to its tensors.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite import ObjectCorrupt, StoreFull
from hoplite._aside import in_own_thread
from hoplite.torch.weights.manifest import ALIGNMENT, ManifestInvalid
from hoplite.torch.weights.ordering import apart
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.placing import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hoplite import Client
    from hoplite.torch.weights.manifest import Extent, Manifest, Source
    from hoplite.torch.weights.names import Deadline, Version
    from hoplite.torch.weights.placing import Placement

# Bytes requested ahead. Two objects are always in flight, so that the link does not idle between them.
AHEAD_BYTES = 24 << 20

# Up to this share of an object, only the ranges that are needed are brought, and no copy of it stays for others. A
# range costs a request, as much as this number of bytes.
RANGES_SHARE = 0.5
RANGE_BYTES_MIN = 64 << 10


class Need(NamedTuple):
    """An object, and its pieces that are needed.

    Attributes:
        source: index in `Manifest.sources`.
        segments: the pieces, in the order of the flat space.
    """

    source: int
    segments: list[Segment]


def needs(manifest: Manifest, ranges: Sequence[tuple[int, int]], base: Manifest | None = None) -> list[Need]:
    """Returns the objects that contain ranges of the flat space, in its order.

    Args:
        manifest: the version.
        ranges: the ranges, in order and disjoint.
        base: a version that the receiver has; what is the same in both is not needed.
    """
    if base is not None:
        ranges = list(_common(ranges, changed(manifest, base)))
    found: dict[int, list[Segment]] = {}
    pending = deque(ranges)
    for extent in manifest.extents:
        end = extent.at + extent.nbytes
        while pending and pending[0][0] < end:
            first, last = pending[0]
            begin, stop = max(first, extent.at), min(last, end)
            if begin < stop:
                piece = Segment(extent.start + begin - extent.at, begin, stop - begin)
                found.setdefault(extent.source, []).append(piece)
            if last > end:
                break
            pending.popleft()
    return [Need(index, segments) for index, segments in found.items()]


def changed(manifest: Manifest, base: Manifest) -> list[tuple[int, int]]:
    """Returns the ranges of the flat space whose bytes may differ from those of another version."""
    if manifest.entries != base.entries or manifest.nbytes != base.nbytes:
        return [(0, manifest.nbytes)]
    ranges: list[tuple[int, int]] = []
    theirs = deque(base.extents)
    for extent in manifest.extents:
        at, end = extent.at, extent.at + extent.nbytes
        while at < end:
            other = theirs[0]
            stop = min(end, other.at + other.nbytes)
            if _place(manifest, extent, at) != _place(base, other, at):
                if ranges and ranges[-1][1] == at:
                    ranges[-1] = (ranges[-1][0], stop)
                else:
                    ranges.append((at, stop))
            if stop == other.at + other.nbytes:
                theirs.popleft()
            at = stop
    return ranges


def _place(manifest: Manifest, extent: Extent, at: int) -> tuple[str, int]:
    # Data behind a manifest belongs to that publication alone.
    return manifest.sources[extent.source].ref or manifest.id, extent.start + at - extent.at


def _common(some: Iterable[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yields the parts of ranges that are in other ranges too."""
    at = 0
    for first, last in some:
        while at < len(others) and others[at][1] <= first:
            at += 1
        index = at
        while index < len(others) and others[index][0] < last:
            yield max(first, others[index][0]), min(last, others[index][1])
            index += 1


class Part(NamedTuple):
    """An object to get, and what to do with its bytes.

    Attributes:
        source: the object.
        data: its bytes if they are here; None to get them.
        copy: called with the bytes, once they are verified.
        place: first byte of the object to get, and the end, exclusive; None gets all of it.
    """

    source: Source
    data: Any
    copy: Callable[[Any], None]
    place: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes to get."""
        return self.source.nbytes if self.place is None else self.place[1] - self.place[0]


def parts(manifest: Manifest, placement: Placement, base: Manifest | None) -> list[Part]:
    """Returns what a placement needs of a version, publisher by publisher in the order of the flat space.

    Args:
        manifest: the version.
        placement: where the bytes go.
        base: the version that the tensors have now; None if unknown.
    """
    found = []
    patches = {} if base is None else manifest.patches_for(base)
    # A patch begins where the first byte of its object is.
    origins: dict[int, int] = {}
    for extent in manifest.extents if patches else ():
        origins.setdefault(extent.source, extent.at)
    for need in apart(manifest, needs(manifest, placement.ranges(), base), placement.boxes):
        source, data, patch = manifest.sources[need.source], manifest.inline.get(need.source), patches.get(need.source)
        if patch is not None and patch.nbytes <= sum(segment.nbytes for segment in need.segments):
            found.append(Part(patch, None, partial(placement.patch, origin=origins[need.source])))
        elif data is None and _is_small(source, need.segments):
            found += [_range(source, placement, segment) for segment in need.segments]
        else:
            found.append(Part(source, data, partial(placement.take, segments=need.segments)))
    return found


def _is_small(source: Source, segments: Sequence[Segment]) -> bool:
    """Whether to bring segments alone. A digest is that of the whole object."""
    cost = sum(max(segment.nbytes, RANGE_BYTES_MIN) for segment in segments)
    return source.digest is None and cost <= source.nbytes * RANGES_SHARE


def _range(source: Source, placement: Placement, segment: Segment) -> Part:
    first = segment.start // ALIGNMENT * ALIGNMENT
    moved = segment._replace(start=segment.start - first)
    return Part(source, None, partial(placement.take, segments=[moved]), (first, segment.start + segment.nbytes))


async def check_capacity(client: Client, version: Version, wanted: Iterable[Part]) -> None:
    """Checks that objects fit into the store together. Otherwise a fetch that keeps them would wait for itself.

    Raises:
        StoreFull: they do not.
    """
    capacity = (await client.status_async())["store"]["capacity"]
    nbytes = sum(part.nbytes for part in wanted if part.data is None)
    if nbytes > capacity:
        raise StoreFull(
            f"{version.name} needs {nbytes} bytes of the store until the switch, and the capacity of this node is "
            f"{capacity}: increase the capacity, or fetch without stage"
        )


async def bring(client: Client, wanted: Iterable[Part], deadline: Deadline, *, aside: bool) -> None:
    """Gets objects, and copies them in order.

    Args:
        client: client to get the objects with.
        wanted: the objects.
        deadline: when to give up.
        aside: whether to copy in another thread, since the loop has other work. Nothing is copied after this ends,
            also if it is canceled.

    Raises:
        ObjectCorrupt: the bytes of an object do not match its digest.
        ManifestInvalid: an object has another size than the manifest states.
        HopliteError: any error of `Client.get`.
    """
    waiting = deque(wanted)
    flying: deque[tuple[Part, asyncio.Task[Any]]] = deque()
    ahead = 0
    try:
        while waiting or flying:
            while waiting and (len(flying) < 2 or ahead + waiting[0].nbytes <= AHEAD_BYTES):
                part = waiting.popleft()
                ahead += part.nbytes
                flying.append((part, asyncio.ensure_future(_get(client, part, deadline))))
            part, task = flying.popleft()
            data = await task
            # Only `data` may refer to the object: its memory is freed before the next one arrives.
            del task
            ahead -= part.nbytes
            if aside:
                await in_own_thread(_take, part, data)
            else:
                # An interrupt cancels the task, which notices it only when it suspends.
                await asyncio.sleep(0)
                _take(part, data)
            del data
    finally:
        for _, task in flying:
            task.cancel()
        if flying:
            await asyncio.gather(*(task for _, task in flying), return_exceptions=True)


async def _get(client: Client, part: Part, deadline: Deadline) -> Any:
    if part.data is not None:
        return part.data
    if part.place is None:
        return await client.get_async(part.source.ref, timeout=deadline.left())
    return await client.get_async(part.source.ref, part=slice(*part.place), timeout=deadline.left())


def _take(part: Part, data: Any) -> None:
    source = part.source
    if not isinstance(data, memoryview) or data.nbytes != part.nbytes:
        raise ManifestInvalid(f"object {source.ref} is not {source.nbytes} bytes, as its manifest states")
    if source.digest is not None and hashlib.sha256(data).hexdigest() != source.digest:
        raise ObjectCorrupt(
            f"the SHA-256 of object {source.ref or 'behind the manifest'} is not the one in the manifest: publish the "
            "version again under a higher number"
        )
    with paused_collector():
        part.copy(data)
