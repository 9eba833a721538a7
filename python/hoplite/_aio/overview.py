"""The verbs that tell how things are: of an object, a reduce and the node; and which objects there are."""

# A mixin of one class, which says so of its self.
# mypy: disable-error-code="misc"

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from hoplite._arguments import check_ref, check_timeout, left
from hoplite._attachment import Attachment
from hoplite._listing import ATTEMPTS, questions
from hoplite._waits import answer_async
from hoplite.errors import NodeDown
from hoplite.location import Location, Watch
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hoplite.client import Client
    from hoplite.node_status import Status


class AsyncOverview(Attachment):
    """What `Client` inherits."""

    async def locations_async(self, ref: Ref | str, *, timeout: float | None = None) -> list[Location]:
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
        rows = await answer_async(self._open().start_locations(check_ref(ref), None, check_timeout(timeout)))
        return [Location(*row) for row in rows]

    def watch_locations_async(self, ref: Ref | str, *, timeout: float | None = None) -> AsyncIterator[Location]:
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

        Asyncio:
            `async for` over it.

        Source: the asynchronous location query of Hoplite (SIGCOMM 2021), section 3.2.
        """
        return self._watch_locations_async(check_ref(ref), check_timeout(timeout))

    async def _watch_locations_async(self, text: str, limit: float | None) -> AsyncIterator[Location]:
        watch = Watch()
        while True:
            rows = await answer_async(self._open().start_locations(text, watch.known, limit))
            for location in watch.news(rows):
                yield location

    async def status_async(self) -> Status:
        """Reports the state of this host's node: identity, members, store, limits and counters.

        Returns:
            A dict, whose fields `hoplite.node_status.Status` describes; docs/counters.md explains the numbers of
            "store" and "counters".

        Examples:
            >>> status = hp.status()
            >>> status["store"]["used"] <= status["store"]["capacity"]
            True
        """
        return await self._status_async()

    async def _status_async(self, limit: float | None = None) -> Status:
        status: Status = json.loads(await answer_async(self._open().start_status(limit)))
        return status

    async def objects_async(
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
        limit = check_timeout(timeout)
        if not everywhere:
            objects: list[dict[str, Any]] = json.loads(await answer_async(self._open().start_objects(limit)))
            return [each for each in objects if each["ref"].startswith(prefix)]
        begun, attempt = time.monotonic(), 1
        # Pins are known where they are: of other nodes' readers this one knows nothing.
        here = {each["ref"]: each["readers"] for each in await self.objects_async(prefix, timeout=limit)}
        while True:
            try:
                return await self._list_async(prefix, limit, begun, here)
            except NodeDown:
                if attempt == ATTEMPTS or left(limit, begun) == 0:
                    raise
                attempt += 1

    async def _list_async(
        self, prefix: str, limit: float | None, begun: float, here: dict[str, int]
    ) -> list[dict[str, Any]]:
        status = await self._status_async(limit)
        listing = questions(member["id"] for member in status["members"])
        try:
            question = next(listing)
            while True:
                asked = self._open().start_list(question[0], prefix, question[1], left(limit, begun))
                question = listing.send(await answer_async(asked))
        except StopIteration as end:
            found: list[dict[str, Any]] = end.value
            return [{**each, "readers": here.get(each["ref"], 0)} for each in found]

    async def _inputs_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.inputs`."""
        texts = await answer_async(self._open().start_inputs(text, check_timeout(timeout)))
        return [Ref(text, self) for text in texts]

    async def _lost_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.lost`."""
        texts = await answer_async(self._open().start_lost(text, check_timeout(timeout)))
        return [Ref(text, self) for text in texts]
