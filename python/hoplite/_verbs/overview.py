"""The verbs that report state: of an object, of the node, and which objects there are."""

# A mixin of one class, which annotates `self` with that class.
# mypy: disable-error-code="misc"

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Literal, overload

from hoplite._arguments import check_prefix, check_ref, left
from hoplite._attachment import Attachment
from hoplite._shared import DEFAULT
from hoplite._verbs.listings import Listing
from hoplite._waits import IN_LOOP, IN_THREAD, answer, answer_async, finish
from hoplite.errors import InvalidArgument, NodeDown
from hoplite.location import Location, Watch
from hoplite.ref import Ref

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hoplite._client import Client
    from hoplite._native import Pending
    from hoplite._waits import Waits
    from hoplite.activity import Activity, Metrics
    from hoplite.listing import DirectoryEntry, LocalObject
    from hoplite.location import Row
    from hoplite.node_status import Status

# How often a listing is repeated because a member left meanwhile.
LISTINGS = 3

# Number of events of one report.
EVENTS_MAX = 5000


class Overview(Attachment):
    """Base class of `Client`."""

    def locations(self, ref: Ref | str, *, timeout: float | None = DEFAULT) -> list[Location]:
        """Lists the nodes that hold an object, completely or in part.

        Args:
            ref: the object; it need not exist.
            timeout: seconds to wait for the reply of the object's owner.

        Returns:
            The current locations; an empty list if the object does not exist.

        Raises:
            Timeout: the owner did not reply in time.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.

        Examples:
            >>> ref = hp.put(b"x" * 100_000)
            >>> [location.complete for location in hp.locations(ref)]
            [True]

        Source: the synchronous location query of Hoplite (SIGCOMM 2021), section 3.2.
        """
        return [Location(*row) for row in answer(self._start_locations(ref, timeout))]

    async def locations_async(self, ref: Ref | str, *, timeout: float | None = DEFAULT) -> list[Location]:
        """`locations`, for asyncio."""
        return [Location(*row) for row in await answer_async(self._start_locations(ref, timeout))]

    def _start_locations(self, ref: Ref | str, timeout: float | None) -> Pending[list[Row]]:
        text = check_ref(ref)
        native, limit = self._open_within(self._limit(timeout))
        return native.start_locations(text, None, limit)

    def watch_locations(self, ref: Ref | str, *, timeout: float | None = DEFAULT) -> Iterator[Location]:
        """Yields the locations of an object as they change.

        Args:
            ref: the object; it need not exist yet.
            timeout: seconds to wait for the next location.

        Returns:
            An iterator over the current locations, then over each node when it begins to hold a copy, and again when
            that copy is complete. It ends with the object, by `ObjectDeleted` or `ObjectLost`.

        Raises:
            Timeout: nothing new came in time.
            ObjectDeleted: the object was deleted.
            ObjectLost: no copy of it is left.

        Examples:
            >>> ref = hp.put(b"x" * 100_000)
            >>> next(hp.watch_locations(ref)).complete
            True

        Source: the asynchronous location query of Hoplite (SIGCOMM 2021), section 3.2.
        """
        return self._watch(check_ref(ref), self._limit(timeout))

    def watch_locations_async(self, ref: Ref | str, *, timeout: float | None = DEFAULT) -> AsyncIterator[Location]:
        """`watch_locations`, for asyncio.

        Asyncio:
            `async for` over it.
        """
        return self._watch_async(check_ref(ref), self._limit(timeout))

    def _watch(self, text: str, limit: float | None) -> Iterator[Location]:
        watch = Watch()
        while True:
            native, rest = self._open_within(limit)
            yield from watch.news(answer(native.start_locations(text, watch.known, rest)))

    async def _watch_async(self, text: str, limit: float | None) -> AsyncIterator[Location]:
        watch = Watch()
        while True:
            native, rest = self._open_within(limit)
            for location in watch.news(await answer_async(native.start_locations(text, watch.known, rest))):
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

    @overload
    def inspect(
        self,
        what: Literal["activity"],
        *,
        node: str | None = None,
        after: int = 0,
        limit: int = 1000,
        timeout: float | None = DEFAULT,
    ) -> Activity: ...

    @overload
    def inspect(
        self,
        what: Literal["metrics"],
        *,
        node: str | None = None,
        after: int = 0,
        limit: int = 1000,
        timeout: float | None = DEFAULT,
    ) -> Metrics: ...

    def inspect(
        self, what: str, *, node: str | None = None, after: int = 0, limit: int = 1000, timeout: float | None = DEFAULT
    ) -> Activity | Metrics:
        """Reports what a member of the cluster does, or its metrics.

        Args:
            what: "activity" for recent events and what runs now, or "metrics" for counters, latencies and the status.
            node: id of the member in hex; None means this host's node.
            after: number of the first event to report. To continue, pass the number after the last event's.
            limit: maximum number of events; at most 2500.
            timeout: seconds to wait for the member.

        Returns:
            A dict, whose fields `hoplite.activity.Activity` or `hoplite.activity.Metrics` describes.

        Raises:
            InvalidArgument: `what` is unknown, or `node` is not an id.
            NodeDown: the node is not a member, or ends meanwhile.
            NotAllowed: this client has a capability for a prefix.
            Timeout: the member did not reply in time.

        Examples:
            >>> ref = hp.put(b"weights", name="inspected/1")
            >>> [event["kind"] for event in hp.inspect("activity")["events"] if event.get("ref") == str(ref)]
            ['put']
            >>> hp.inspect("metrics")["totals"]["puts"] > 0
            True
        """
        report: Activity | Metrics = json.loads(answer(self._start_inspect(what, node, after, limit, timeout)))
        return report

    @overload
    async def inspect_async(
        self,
        what: Literal["activity"],
        *,
        node: str | None = None,
        after: int = 0,
        limit: int = 1000,
        timeout: float | None = DEFAULT,
    ) -> Activity: ...

    @overload
    async def inspect_async(
        self,
        what: Literal["metrics"],
        *,
        node: str | None = None,
        after: int = 0,
        limit: int = 1000,
        timeout: float | None = DEFAULT,
    ) -> Metrics: ...

    async def inspect_async(
        self, what: str, *, node: str | None = None, after: int = 0, limit: int = 1000, timeout: float | None = DEFAULT
    ) -> Activity | Metrics:
        """`inspect`, for asyncio."""
        started = self._start_inspect(what, node, after, limit, timeout)
        report: Activity | Metrics = json.loads(await answer_async(started))
        return report

    def _start_inspect(
        self, what: str, node: str | None, after: int, limit: int, timeout: float | None
    ) -> Pending[str]:
        for name, number in (("after", after), ("limit", limit)):
            if number < 0:
                raise InvalidArgument(f"{name} is {number}: set at least 0")
        native, rest = self._open_within(self._limit(timeout))
        return native.start_inspect(what, node, after, min(limit, EVENTS_MAX), rest)

    def objects(self, prefix: Ref | str = "", *, timeout: float | None = DEFAULT) -> list[LocalObject]:
        """Lists the copies on this host's node. Requests them page by page.

        Args:
            prefix: start of the refs to list, such as "policy/".
            timeout: seconds to wait for all pages together.

        Returns:
            A dict for each copy; `hoplite.listing.LocalObject` describes the fields. Refs without a name come first,
            then names in order.

        Raises:
            Timeout: the node did not reply in time.

        Examples:
            >>> ref = hp.put(b"weights", name="local/1")
            >>> [(row["ref"], row["state"]) for row in hp.objects("local/")]
            [('local/1', 'complete')]
        """
        return finish(self._objects(IN_THREAD, check_prefix(prefix), self._limit(timeout)))

    async def objects_async(self, prefix: Ref | str = "", *, timeout: float | None = DEFAULT) -> list[LocalObject]:
        """`objects`, for asyncio."""
        return await self._objects(IN_LOOP, check_prefix(prefix), self._limit(timeout))

    async def _objects(self, waits: Waits, prefix: str, limit: float | None) -> list[LocalObject]:
        begun, remaining = time.monotonic(), limit
        copies: list[LocalObject] = []
        after = None
        while True:
            native, rest = self._open_within(remaining)
            page, after = await waits.answer(native.start_objects(prefix, after, rest))
            copies += json.loads(page)
            if after is None:
                return copies
            remaining = left(limit, begun)

    def directory(
        self,
        prefix: Ref | str = "",
        *,
        sort: str = "ref",
        limit: int | None = None,
        after: Ref | str | None = None,
        timeout: float | None = DEFAULT,
    ) -> list[DirectoryEntry]:
        """Lists the objects of the cluster. Requests them from every node, page by page.

        To list many objects in parts, pass `limit`, and as `after` the last ref of the part before.

        Args:
            prefix: start of the refs to list, such as "policy/".
            sort: "ref" lists refs without a name first, then names in order. "bytes", "age" and "copies" list the
                largest value first.
            limit: maximum number of rows; None means all.
            after: list only what follows this ref. Requires `sort="ref"`.
            timeout: seconds to wait for all nodes together.

        Returns:
            A dict for each object; `hoplite.listing.DirectoryEntry` describes the fields.

        Raises:
            InvalidArgument: `sort` is unknown, `limit` is below 1, or `after` is given with another order.
            Timeout: a node did not reply in time.

        Examples:
            >>> refs = [hp.put(b"weights", name=f"listed/{number}") for number in range(3)]
            >>> [row["ref"] for row in hp.directory("listed/", limit=2, timeout=10)]
            ['listed/0', 'listed/1']
            >>> [(row["ref"], row["copies"]) for row in hp.directory("listed/", after="listed/1", timeout=10)]
            [('listed/2', 1)]
        """
        return finish(self._directory(IN_THREAD, Listing.checked(prefix, sort, limit, after), self._limit(timeout)))

    async def directory_async(
        self,
        prefix: Ref | str = "",
        *,
        sort: str = "ref",
        limit: int | None = None,
        after: Ref | str | None = None,
        timeout: float | None = DEFAULT,
    ) -> list[DirectoryEntry]:
        """`directory`, for asyncio."""
        listing = Listing.checked(prefix, sort, limit, after)
        return await self._directory(IN_LOOP, listing, self._limit(timeout))

    async def _directory(self, waits: Waits, listing: Listing, limit: float | None) -> list[DirectoryEntry]:
        begun = time.monotonic()
        for attempt in range(1, LISTINGS + 1):
            try:
                return await self._list(waits, listing, limit, begun)
            except NodeDown:
                # A member left meanwhile: list again.
                if attempt == LISTINGS or left(limit, begun) == 0:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _list(self, waits: Waits, listing: Listing, limit: float | None, begun: float) -> list[DirectoryEntry]:
        found: dict[str, DirectoryEntry] = {}
        native, rest = self._open_within(limit)
        status: Status = json.loads(await waits.answer(native.start_status(rest)))
        for member in status["members"]:
            after = listing.after
            rows = 0
            while not listing.is_enough(rows):
                native, rest = self._open_within(left(limit, begun))
                page, after = await waits.answer(native.start_list(member["id"], listing.prefix, after, rest))
                # Both owners list an object, so that none is missing if one of them leaves. One may lag behind.
                for row in json.loads(page):
                    row["owner"] = member["id"]
                    known = found.get(row["ref"], row)
                    found[row["ref"]] = max(known, row, key=lambda row: row["copies"])
                    rows += 1
                if after is None:
                    break
        return listing.arranged(found.values())

    def _inputs(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.inputs`."""
        native, limit = self._open_within(self._limit(timeout))
        return self._refs(answer(native.start_inputs(text, limit)))

    async def _inputs_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        native, limit = self._open_within(self._limit(timeout))
        return self._refs(await answer_async(native.start_inputs(text, limit)))

    def _lost(self: Client, text: str, timeout: float | None) -> list[Ref]:
        """Answers `Ref.lost`."""
        native, limit = self._open_within(self._limit(timeout))
        return self._refs(answer(native.start_lost(text, limit)))

    async def _lost_async(self: Client, text: str, timeout: float | None) -> list[Ref]:
        native, limit = self._open_within(self._limit(timeout))
        return self._refs(await answer_async(native.start_lost(text, limit)))

    def _refs(self: Client, texts: list[str]) -> list[Ref]:
        return [Ref(text, self) for text in texts]
