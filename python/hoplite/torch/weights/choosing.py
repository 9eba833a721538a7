"""Which version a fetch takes: an exact one, or the newest that can still be had.

A version that was announced can fail: its publisher dies, or a newer version prunes it. It is then excluded by the id
of its publication, since a restarted publisher may publish the same number again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hoplite import HopliteError, InvalidArgument, ObjectDeleted, ObjectLost, Timeout
from hoplite.torch.weights.encoding import parse
from hoplite.torch.weights.manifest import Manifest, ManifestInvalid
from hoplite.torch.weights.memory import element_sizes
from hoplite.torch.weights.names import ANNOUNCED, Deadline, Version
from hoplite.torch.weights.pauses import paused_collector
from hoplite.torch.weights.shards import merged

if TYPE_CHECKING:
    from hoplite import Client

# Errors after which another version may still be available.
UNAVAILABLE = (ObjectDeleted, ObjectLost, ManifestInvalid)

# How long an announcement takes before it is looked for again, since it may have been pruned.
GONE_AFTER_S = 0.1

# How often a failed version is looked at again, besides the notices of the directory.
LOOK_EVERY_S = 1.0


async def read(client: Client, version: Version, name: str, deadline: Deadline) -> Manifest:
    """Gets and parses a manifest, with those of all shards.

    Args:
        client: client to get it with.
        version: the version.
        name: name of the manifest: that of the version, or of its announcement.
        deadline: when to give up.

    Raises:
        ManifestInvalid: it is not a manifest of that version.
        HopliteError: any error of `Client.get`.
    """
    manifest = await _parsed(client, version, name, deadline)
    if manifest.shards == 1:
        return manifest if all(entry.begin is None for entry in manifest.entries) else merged(version.name, [manifest])
    names = [version.shard(rank, manifest.id) for rank in range(1, manifest.shards)]

    async def others() -> list[Manifest]:
        return await asyncio.gather(*(_parsed(client, version, each, deadline) for each in names))

    # A publisher that fails before it has announced its shard leaves nothing that could be lost.
    async def replacement() -> None:
        while not await until_replaced(client, version, deadline):
            if deadline.left() == 0:
                return

    parts, replaced = asyncio.ensure_future(others()), asyncio.ensure_future(replacement())
    try:
        await asyncio.wait({parts, replaced}, return_when=asyncio.FIRST_COMPLETED)
        if replaced.done():
            replaced.result()
        # A version that is complete has all shards, until it is deleted.
        while not parts.done() and deadline.left() != 0:
            if not await client.locations_async(version.name, timeout=deadline.left()):
                raise ObjectLost(f"{version.name} lacks shards, and another publication replaced it")
            await asyncio.wait({parts}, timeout=GONE_AFTER_S)
        return merged(version.name, [manifest, *await parts])
    finally:
        await _cancel(parts, replaced)


async def _parsed(client: Client, version: Version, name: str, deadline: Deadline) -> Manifest:
    data = await client.get_async(name, timeout=deadline.left())
    with paused_collector():
        manifest = parse(data, name, element_sizes())
    if manifest.version != version.number:
        raise ManifestInvalid(f"{name} is the manifest of version {manifest.version}: publish under a name of its own")
    return manifest


async def until_replaced(client: Client, version: Version, deadline: Deadline) -> bool:
    """Waits until a higher version is announced or this announcement is deleted, but at most `LOOK_EVERY_S`.

    Returns:
        Whether one of the two has happened.
    """
    left = deadline.left()
    limit = LOOK_EVERY_S if left is None else min(left, LOOK_EVERY_S)

    async def deletion() -> bool:
        try:
            async for _ in client.watch_locations_async(version.announcement, timeout=limit):
                pass
        except (ObjectDeleted, ObjectLost):
            return True
        return False

    async def newer() -> bool:
        await client.latest_async(version.prefix + ANNOUNCED, after=version.number, timeout=limit)
        return True

    tasks = [asyncio.ensure_future(newer()), asyncio.ensure_future(deletion())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return any(task.done() and task.exception() is None and task.result() for task in tasks)
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Chooser:
    """Finds versions for one fetch.

    Args:
        client: client to look with.
        wanted: a prefix such as "policy/", or a name such as "policy/17".
        floor: accept only numbers above this one; None accepts any.
        deadline: when to give up.

    Raises:
        InvalidArgument: the name is not valid, or an exact version is combined with a floor.
    """

    def __init__(self, client: Client, wanted: str, floor: int | None, deadline: Deadline) -> None:
        self._client = client
        self._deadline = deadline
        self._exact = None if wanted.endswith("/") else Version.of(wanted)
        self.prefix = wanted if self._exact is None else self._exact.prefix
        if self._exact is not None and floor is not None:
            raise InvalidArgument(f'after works with a prefix, not with {wanted}: write "{self.prefix}"')
        self._floor = -1 if floor is None else floor
        self._failed: dict[str, HopliteError] = {}

    def fail(self, manifest: Manifest, error: HopliteError) -> None:
        """Excludes a publication."""
        self._failed[manifest.id] = error

    def is_wanted(self, version: Version) -> bool:
        """Whether the caller wants this version, and not only a whole one in place of a mix."""
        return version == self._exact if self._exact is not None else version.number > self._floor

    async def next(self) -> tuple[Version, Manifest]:
        """Waits for a version that the caller wants.

        Raises:
            Timeout: there was none in time.
            HopliteError: the exact version is not available any more.
        """
        if self._exact is not None:
            if self._failed:
                raise next(iter(self._failed.values()))
            return self._exact, await read(self._client, self._exact, self._exact.name, self._deadline)
        try:
            return await self._newest_usable()
        except Timeout as error:
            above = "" if self._floor < 0 else f" above {self._floor}"
            raise Timeout(
                f"no version of {self.prefix}{above} was available within {self._deadline.timeout:g} s ({error}): "
                "publish one, or set a longer timeout"
            ) from None

    async def _newest_usable(self) -> tuple[Version, Manifest]:
        prefix = self.prefix + ANNOUNCED
        while True:
            ref = await self._client.latest_async(prefix, after=self._floor, timeout=self._deadline.left())
            newest = Version(self.prefix, ref.number)
            found = await self._usable(newest) or await self._first_usable(below=newest.number, above=self._floor)
            if found is not None:
                return found
            if self._deadline.left() == 0:
                raise Timeout(f"the publisher of {newest.name} failed")
            await until_replaced(self._client, newest, self._deadline)

    async def any(self) -> tuple[Version, Manifest]:
        """Returns the newest version that is available now, whichever it is.

        Raises:
            ObjectLost: there is none.
        """
        found = await self._first_usable()
        if found is not None:
            return found
        why = next(iter(self._failed.values()))
        raise ObjectLost(
            f"a version of {self.prefix} became unavailable while it was copied ({why}), and there is no other"
        ) from why

    async def _first_usable(self, *, below: int | None = None, above: int = -1) -> tuple[Version, Manifest] | None:
        """Returns the highest version in a range of numbers that has not failed; None if there is none."""
        prefix = self.prefix + ANNOUNCED
        rows = await self._client.directory_async(prefix, timeout=self._deadline.left())
        ends = [row["ref"][len(prefix) :] for row in rows]
        numbers = sorted((int(end) for end in ends if end.isascii() and end.isdigit()), reverse=True)
        for number in numbers:
            if number > above and (below is None or number < below):
                found = await self._usable(Version(self.prefix, number))
                if found is not None:
                    return found
        return None

    async def _usable(self, version: Version) -> tuple[Version, Manifest] | None:
        """Reads an announcement; returns None if it or its publication has failed."""
        reading = asyncio.ensure_future(read(self._client, version, version.announcement, self._deadline))
        try:
            # A get of a name that was deleted before waits for the next put, and a pruned announcement has none.
            while not (await asyncio.wait({reading}, timeout=GONE_AFTER_S))[0]:
                if not await self._client.locations_async(version.announcement, timeout=self._deadline.left()):
                    return None
            manifest = await reading
        except UNAVAILABLE as error:
            self._failed.setdefault(version.name, error)
            return None
        finally:
            await _cancel(reading)
        return None if manifest.id in self._failed else (version, manifest)
