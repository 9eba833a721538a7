"""Objects of the cluster for the page: lists in parts, and one object with its copies and story.

Listings run in other threads, two at a time, so that frames keep their pace.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from hoplite.errors import HopliteError, InvalidArgument
from hoplite.tools.observe.story import read, tell

if TYPE_CHECKING:
    from hoplite import Client

TIMEOUT_S = 10.0
ROWS_MAX = 1000
# Orders other than "ref" request all objects from all nodes. They are served for clusters up to this size, and only
# their first rows, which are reused for some seconds.
SORTED_MAX = 200_000
REUSE_S = 10.0

Row = dict[str, Any]


class Objects:
    """Lists of one cluster.

    Args:
        client: attached to any node.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client
        self._threads: anyio.CapacityLimiter | None = None
        self._sorted: tuple[tuple[str, str], float, list[Row]] | None = None

    async def part(self, prefix: str, sort: str, limit: int, after: str | None) -> Row:
        """Lists objects in parts.

        Args:
            prefix: start of their refs.
            sort: order, as in `Client.directory`.
            limit: maximum number of rows.
            after: ref of the last row of the part before.

        Raises:
            InvalidArgument: an argument is not valid, or there are too many objects for this order.
        """
        if not 1 <= limit <= ROWS_MAX:
            raise InvalidArgument(f"limit is {limit}: write a number from 1 to {ROWS_MAX}")
        if sort == "ref":
            rows = await self._directory(prefix, sort=sort, limit=limit + 1, after=after)
        else:
            rows = _after(await self._largest(prefix, sort), after)
        return {"rows": rows[:limit], "more": len(rows) > limit, "total": None}

    async def _largest(self, prefix: str, sort: str) -> list[Row]:
        key = prefix, sort
        if self._sorted is not None and self._sorted[0] == key and time.monotonic() - self._sorted[1] < REUSE_S:
            return self._sorted[2]
        status = await self._client.status_async()
        # Two nodes own each object, and all nodes own about as many.
        if status["owned"] * len(status["members"]) > SORTED_MAX * 2:
            raise InvalidArgument(f"there are more than {SORTED_MAX} objects, too many to sort by {sort}: sort by ref")
        rows = await self._directory(prefix, sort=sort, limit=ROWS_MAX)
        self._sorted = key, time.monotonic(), rows
        return rows

    async def _directory(self, prefix: str, **options: Any) -> list[Row]:  # noqa: ANN401 - as in Client.directory
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(2)

        def call() -> list[Row]:
            rows: list[Row] = self._client.directory(prefix, timeout=TIMEOUT_S, **options)
            return rows

        found: list[Row] = await anyio.to_thread.run_sync(call, limiter=self._threads)
        return found

    async def show(self, ref: str) -> Row:
        """Returns the row, the copies and the story of one object, if they exist."""
        rows = await self._directory(ref, limit=1)
        row = next((row for row in rows if row["ref"] == ref), None)
        try:
            found = await self._client.locations_async(ref, timeout=TIMEOUT_S)
            locations = [{"node": each.node, "complete": each.complete} for each in found]
        except InvalidArgument:
            raise
        except HopliteError:
            # It was deleted or lost. Its story shows that.
            locations = []
        snapshot, _ = await anyio.to_thread.run_sync(read, self._client, ref, limiter=self._threads)
        story = [
            {"time": round(event["time"], 4), "node": event.get("recorder"), "text": event["text"]}
            for event in tell(ref, snapshot).events
        ]
        return {"row": row, "locations": locations, "story": story}


def _after(rows: list[Row], after: str | None) -> list[Row]:
    """Returns the rows behind the one with a ref; all if there is none."""
    place = next((number for number, row in enumerate(rows) if row["ref"] == after), -1)
    return rows[place + 1 :]
