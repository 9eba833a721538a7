"""The verbs that tell how things are: of an object, a reduce and the node; and which objects there are."""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from hoplite._arguments import check_ref, check_timeout, left
from hoplite._attachment import Attachment
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.errors import NodeDown
from hoplite.location import Location, Watch
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hoplite._native import Pending
    from hoplite._waits import Waits
    from hoplite.client import Client
    from hoplite.location import Row
    from hoplite.node_status import Status

# How often a listing begins again because a member went meanwhile; more than that is a cluster that falls apart.
LISTINGS = 3


class Overview(Attachment):
    """What `Client` inherits."""

    def locations(self, ref: Ref | str, *, timeout: float | None = None) -> list[Location]:
        """Lists the nodes that hold an object, completely or in part.

        Args:
            ref: the object; it need not exist.
            timeout: seconds to wait for the reply of the object's owner.

        Returns:
            The current locations; an empty list if the object does not exist.

        Raises:
            GetTimeout: the owner did not reply in time.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.

        Examples:
            >>> ref = hp.put(b"x" * 100_000)
            >>> [location.complete for location in hp.locations(ref)]
            [True]

        Source: the synchronous location query of Hoplite (SIGCOMM 2021), section 3.2.
        """
        return [Location(*row) for row in answer(self._start_locations(ref, timeout))]

    async def locations_async(self, ref: Ref | str, *, timeout: float | None = None) -> list[Location]:
        """`locations`, for asyncio."""
        return [Location(*row) for row in await answer_async(self._start_locations(ref, timeout))]

    def _start_locations(self, ref: Ref | str, timeout: float | None) -> Pending[list[Row]]:
        return self._open().start_locations(check_ref(ref), None, check_timeout(timeout))

    def watch_locations(self, ref: Ref | str, *, timeout: float | None = None) -> Iterator[Location]:
        """Yields the locations of an object as they change.

        Args:
            ref: the object; it need not exist yet.
            timeout: seconds to wait for the next location.

        Returns:
            An iterator over the current locations, then over each node when it begins to hold a copy, and again when
            that copy is complete. It ends with the object, by `ObjectDeleted` or `ObjectLost`.

        Raises:
            GetTimeout: nothing new came in time.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.

        Examples:
            >>> ref = hp.put(b"x" * 100_000)
            >>> next(hp.watch_locations(ref)).complete
            True

        Source: the asynchronous location query of Hoplite (SIGCOMM 2021), section 3.2.
        """
        return self._watch(check_ref(ref), check_timeout(timeout))

    def watch_locations_async(self, ref: Ref | str, *, timeout: float | None = None) -> AsyncIterator[Location]:
        """`watch_locations`, for asyncio.

        Asyncio:
            `async for` over it.
        """
        return self._watch_async(check_ref(ref), check_timeout(timeout))

    def _watch(self, text: str, limit: float | None) -> Iterator[Location]:
        watch = Watch()
        while True:
            yield from watch.news(answer(self._open().start_locations(text, watch.known, limit)))

    async def _watch_async(self, text: str, limit: float | None) -> AsyncIterator[Location]:
        watch = Watch()
        while True:
            for location in watch.news(await answer_async(self._open().start_locations(text, watch.known, limit))):
                yield location

    def status(self) -> Status:
        """Reports the state of this host's node: identity, members, store, limits and counters.

        Returns:
            A dict, whose fields `hoplite.node_status.Status` describes; docs/counters.md explains the numbers of
            "store" and "counters".

        Examples:
            >>> status = hp.status()
            >>> status["store"]["used"] <= status["store"]["capacity"]
            True
        """
        status: Status = json.loads(answer(self._open().start_status(None)))
        return status

    async def status_async(self) -> Status:
        """`status`, for asyncio."""
        status: Status = json.loads(await answer_async(self._open().start_status(None)))
        return status

    def objects(
        self, prefix: str = "", *, everywhere: bool = False, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """Lists the copies that this node holds, or the objects of the whole cluster.

        Args:
            prefix: only refs that begin so, such as "policy/"; all do with nothing.
            everywhere: ask every node for the living objects it is the owner of, instead of this one for its copies.
            timeout: seconds to wait for the nodes that are asked.

        Returns:
            Of each "ref", "bytes", "dtype" and "shape" (None of what is no array), "what" (both in words), "form",
            "job" and "ttl" (seconds that it is to live still, or None). "readers" is how many readers, transfers and
            folds use the copy of this node. Of a copy of this node also "state" ("filling", "flowing", "folding",
            "complete", "spilled" on disk, or "returning" from there), "pinned" and "instance"; of an object of the
            cluster "owner" (the id of the node that listed it), "age" (seconds since that node first heard of it) and
            "copies" and "partial", how many nodes have all of it and a part of it, in the order of the refs.

        Raises:
            GetTimeout: a node did not answer in time.

        Examples:
            >>> ref = hp.put(b"weights", name="listed/1")
            >>> [(each["ref"], each["copies"]) for each in hp.objects("listed/", everywhere=True, timeout=10)]
            [('listed/1', 1)]
        """
        return finish(self._objects(IN_THREAD, prefix, everywhere, check_timeout(timeout)))

    async def objects_async(
        self, prefix: str = "", *, everywhere: bool = False, timeout: float | None = None
    ) -> list[dict[str, Any]]:
        """`objects`, for asyncio."""
        return await self._objects(IN_LOOP, prefix, everywhere, check_timeout(timeout))

    async def _objects(self, waits: Waits, prefix: str, everywhere: bool, limit: float | None) -> list[dict[str, Any]]:
        begun = time.monotonic()
        copies: list[dict[str, Any]] = json.loads(await waits.answer(self._open().start_objects(limit)))
        copies = [each for each in copies if each["ref"].startswith(prefix)]
        if not everywhere:
            return copies
        # Pins are known where they are: of other nodes' readers this one knows nothing.
        readers = {each["ref"]: each["readers"] for each in copies}
        for attempt in range(1, LISTINGS + 1):
            try:
                found = await self._list(waits, prefix, limit, begun)
                break
            except NodeDown:
                if attempt == LISTINGS or left(limit, begun) == 0:
                    raise
        return [{**found[ref], "readers": readers.get(ref, 0)} for ref in sorted(found)]

    async def _list(self, waits: Waits, prefix: str, limit: float | None, begun: float) -> dict[str, dict[str, Any]]:
        """Requests from each member the objects that it owns, page by page; returns them by their refs."""
        found: dict[str, dict[str, Any]] = {}
        status: Status = json.loads(await waits.answer(self._open().start_status(limit)))
        for member in status["members"]:
            after: str | None = None
            while True:
                asked = self._open().start_list(member["id"], prefix, after, left(limit, begun))
                page, after = await waits.answer(asked)
                # Both owners of an object list it, so that none is missing while one of them goes. One may know less.
                for row in json.loads(page):
                    row["owner"] = member["id"]
                    known = found.get(row["ref"], row)
                    found[row["ref"]] = max(known, row, key=lambda row: row["copies"])
                if after is None:
                    break
        return found

    def _inputs(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.inputs`."""
        return self._refs(answer(self._open().start_inputs(text, check_timeout(timeout))))

    async def _inputs_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        return self._refs(await answer_async(self._open().start_inputs(text, check_timeout(timeout))))

    def _lost(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.lost`."""
        return self._refs(answer(self._open().start_lost(text, check_timeout(timeout))))

    async def _lost_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        return self._refs(await answer_async(self._open().start_lost(text, check_timeout(timeout))))

    def _refs(self: Client, texts: list[str]) -> list[Ref]:
        return [Ref(text, self) for text in texts]
