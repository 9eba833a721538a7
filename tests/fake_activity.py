"""A deterministic fake of `Client` for tests of tools, with a cluster whose events are in `fake_timeline`.

cluster = FakeCluster(6, skews={3: 3600.0})
cluster.advance(2.0)
cluster.client().inspect("activity", node=cluster.ids[3])
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from fake_timeline import INPUT_BYTES, START, Row, Timeline
from hoplite import Ref
from hoplite.errors import HopliteError, InvalidArgument, NodeDown, ObjectDeleted, Timeout
from hoplite.location import Location

# Longest list except events, and most events in a reply, as in a node.
ROWS_MAX = 1000
EVENTS_MAX = 2500

# Events that begin and end a row of another list: the list, and the fields that identify the row.
BEGINS = {"fetch": ("transfers", "ref"), "fold": ("folds", "result"), "wait": ("waits", "ref")}
BEGINS |= {"reduce_begin": ("reduces", "result")}
ENDS = {"fetched": "transfers", "fetch_failed": "transfers", "folded": "folds", "reply": "waits", "reduced": "reduces"}


class FakeCluster(Timeline):
    """A cluster to which `FakeClient` attaches; its arguments are those of `Timeline`."""

    def client(self, number: int = 0) -> FakeClient:
        """Attaches to a node."""
        return FakeClient(self, number)


class FakeClient:
    """The methods of a `Client` that the tools use; see `FakeCluster`."""

    def __init__(self, cluster: FakeCluster, number: int) -> None:
        self._cluster = cluster
        self._number = number

    def close(self) -> None:
        """Does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def inspect(
        self, what: str, *, node: str | None = None, after: int = 0, limit: int = 1000, timeout: float | None = None
    ) -> Row:
        """Reports metrics or activity of a node."""
        del timeout
        cluster = self._cluster
        if what not in ("activity", "metrics"):
            raise InvalidArgument(f'inspect {what!r} is not valid: use "metrics" or "activity"')
        if node is not None and node not in cluster.ids:
            raise InvalidArgument(f"{node} is not a member")
        number = self._number if node is None else cluster.ids.index(node)
        if cluster.is_down(number):
            raise NodeDown(f"node {cluster.ids[number]} has failed")
        if number in cluster.old:
            raise HopliteError(f"node {cluster.ids[number]} does not support inspect")
        if what == "metrics":
            return self._metrics(number)
        return self._activity(number, after, min(limit, EVENTS_MAX))

    async def inspect_async(self, what: str, **options: Any) -> Row:  # noqa: ANN401 - as in inspect
        """`inspect`, for asyncio."""
        await asyncio.sleep(0)
        return self.inspect(what, **options)

    def _activity(self, number: int, after: int, limit: int) -> Row:
        cluster = self._cluster
        everything = cluster.events(number)
        ring = everything[-cluster.ring :]
        skew = cluster.skews.get(number, 0.0)
        rows = self._running(number, everything)
        omitted = {name: len(found) - ROWS_MAX for name, found in rows.items() if len(found) > ROWS_MAX}
        return {
            "time": cluster.now + skew,
            "node": cluster.ids[number],
            "first": ring[0]["serial"] if ring else 0,
            "next": len(everything),
            "events": [event for event in ring if event["serial"] >= after][:limit],
            **{name: sorted(found, key=lambda row: row["since"])[:ROWS_MAX] for name, found in rows.items()},
            "omitted": omitted,
        }

    def _running(self, number: int, events: list[Row]) -> dict[str, list[Row]]:
        running: dict[str, dict[Any, Row]] = {"transfers": {}, "folds": {}, "waits": {}, "reduces": {}}
        choices: dict[str, Row] = {}
        for event in events:
            kind = event["kind"]
            key: str = event.get("result") or event.get("ref", "")
            if kind == "source":
                choices[key] = event
            elif kind in BEGINS:
                running[BEGINS[kind][0]][key] = event
            elif kind in ENDS:
                running[ENDS[kind]].pop(key, None)
            elif kind in ("degree", "restart") and key in running["reduces"]:
                running["reduces"][key] = {**running["reduces"][key], **event, "time": running["reduces"][key]["time"]}
        now = self._cluster.now + self._cluster.skews.get(number, 0.0)
        return {
            "transfers": [
                {
                    **{name: event[name] for name in ("ref", "instance", "source", "bytes")},
                    "choice": choices[event["ref"]]["choice"],
                    "reason": choices[event["ref"]]["reason"],
                    "received": int(event["bytes"] * min(1.0, now - event["time"])),
                    "since": event["time"],
                }
                for event in running["transfers"].values()
            ],
            "folds": [
                {
                    **{name: event[name] for name in ("result", "epoch", "position", "children", "inputs")},
                    "since": event["time"],
                }
                for event in running["folds"].values()
            ],
            "waits": [
                {
                    **{name: event[name] for name in ("verb", "ref", "process")},
                    "since": event["time"],
                    "what": f"object {event['ref']}",
                    "state": None,
                }
                for event in running["waits"].values()
            ],
            "reduces": [
                {
                    "result": event["result"],
                    "epoch": event.get("epoch", 1),
                    "degree": event.get("degree"),
                    "reason": event.get("reason"),
                    "since": event["time"],
                }
                for event in running["reduces"].values()
            ],
            "reads": self._reads(number, events),
        }

    def _reads(self, number: int, events: list[Row]) -> list[Row]:
        got = [event for event in events if event["kind"] == "reply" and event["ref"].startswith("weights/")]
        got = [event for event in got if event["error"] is None]
        # The process on the last node uses the version before the newest.
        if number == len(self._cluster.ids) - 1:
            got = got[:-1]
        if not got:
            return []
        newest = got[-1]
        version = int(newest["ref"].removeprefix("weights/"))
        return [{"prefix": "weights/", "version": version, "process": newest["process"], "since": newest["time"]}]

    def _metrics(self, number: int) -> Row:
        cluster = self._cluster
        events = cluster.events(number)
        skew = cluster.skews.get(number, 0.0)

        def count(kind: str, **wanted: object) -> int:
            return sum(
                event["kind"] == kind and all(event.get(name) == value for name, value in wanted.items())
                for event in events
            )

        received: dict[str, int] = {}
        for event in events:
            if event["kind"] == "fetched":
                received[event["source"]] = received.get(event["source"], 0) + event["bytes"]
        choices = {
            choice: count("source", choice=choice)
            for choice in ("only_holder", "idle_complete", "idle_relay", "least_loaded", "insert")
        }
        memberships = ("joined", "left", "failed", "reconnected", "suspected", "barred")
        states = ("filling", "flowing", "folding", "complete", "spilled", "returning")
        running = self._running(number, events)
        objects = self._objects(number)
        held = {
            **{state: {"objects": 0, "bytes": 0} for state in states},
            "complete": {"objects": len(objects), "bytes": sum(size for _, size in objects)},
        }
        return {
            "time": cluster.now + skew,
            "node": cluster.ids[number],
            "version": "0.1.0",
            "started": START + skew,
            "status": self._status(number),
            "totals": {
                "serves_direct": count("serve", relayed=False),
                "serves_relayed": count("serve", relayed=True),
                "fetches_resumed": count("fetch", resumed=True),
                "reduces": count("reduce_begin"),
                "reduces_ring": 0,
                "folds": count("fold"),
                "folds_failed": count("folded") - count("folded", error=None),
                "spilled_bytes": count("spilled") * INPUT_BYTES,
                "unspilled_bytes": 0,
                "puts": count("put") + count("create"),
                "gets_waited": count("wait", verb="get"),
                "deletes": count("delete"),
                "events": len(events),
            },
            "choices": {**choices, "redirect": count("redirect")},
            "memberships": {state: count("member", state=state) for state in memberships},
            "states": held,
            "pins": len(objects),
            "queues": {"events": 0, "messages_out": 0, "memory": 0, "requests": len(running["waits"])},
            "peers": {
                node: {"received": received.get(node, 0), "sent": 0}
                for node in cluster.ids
                if node != cluster.ids[number]
            },
            "latencies": {
                verb: {"bounds": [0.001, 0.01, 0.1], "counts": [count("locate"), 0, 0, 0], "sum": 0.0005}
                for verb in ("locate", "claim", "delete", "latest", "locations", "list")
            },
            "reads": running["reads"],
        }

    def _objects(self, number: int) -> list[tuple[str, int]]:
        """Refs and sizes of the complete copies on a node."""
        held: dict[str, int] = {}
        for event in self._cluster.events(number):
            if event["kind"] in ("put", "create", "fetched"):
                held[event["ref"]] = event["bytes"]
        return [(ref, size) for ref, size in held.items() if ref not in self._deleted()]

    def _deleted(self) -> set[str]:
        return {event["ref"] for event in self._cluster.events(0) if event["kind"] == "delete"}

    def status(self) -> Row:
        """Reports the state of this client's node."""
        if self._cluster.is_down(self._number):
            raise NodeDown(f"node {self._cluster.ids[self._number]} has failed")
        return self._status(self._number)

    async def status_async(self) -> Row:
        """`status`, for asyncio."""
        await asyncio.sleep(0)
        return self.status()

    def _status(self, number: int) -> Row:
        cluster = self._cluster
        objects = self._objects(number)
        events = cluster.events(number)

        def node(other: int) -> Row:
            rack = f"rack{other // 3}"
            return {
                "id": cluster.ids[other],
                "address": cluster.address(other),
                "place": [rack],
                "carries": None,
                "rack": rack,
            }

        others = [other for other in range(len(cluster.ids)) if not cluster.is_down(other)]
        lost = [other for other in range(len(cluster.ids)) if cluster.is_down(other)]
        used = sum(size for _, size in objects)
        fetched = [event["bytes"] for event in events if event["kind"] == "fetched"]
        return {
            **node(number),
            "cluster": "fake",
            "cluster_id": "00000000000000fa",
            "admission": "no authentication",
            "revocations": None,
            "barred": None,
            "members": [
                {
                    **node(other),
                    "suspected": None,
                    "blocks_corrupt": 0,
                    "via": None,
                    "rtt_us": None if other == number else 100 + other,
                    "bytes_per_second": None if other == number else 1_250_000_000,
                }
                for other in others
            ],
            "lost": [
                {**node(other), "seconds": cluster.now - START - cluster.failed[other], "reason": "closed"}
                for other in lost
            ],
            "limits": [],
            "survey": "none",
            "objects": len(objects),
            "owned": len(objects),
            "waiting": len(self._running(number, events)["waits"]),
            "reduces": len(self._running(number, events)["reduces"]),
            "store": {
                "used": used,
                "capacity": 1 << 30,
                "mapped": used,
                "warm": 0,
                "extents": 1,
                "small": 0,
                "small_capacity": 1 << 28,
                "spilled": INPUT_BYTES * sum(event["kind"] == "spilled" for event in events),
                "spill_limit": 1 << 30 if number == 1 else 0,
            },
            "link": {"latency_ns": 50_000, "bytes_per_second": 1_250_000_000},
            "counters": {
                "bytes_received": sum(fetched),
                "bytes_direct": 0,
                "bytes_relayed": 0,
                "fetches": len(fetched),
                "fetches_failed": sum(event["kind"] == "fetch_failed" for event in events),
                "evictions": sum(event["copies"] for event in events if event["kind"] == "evicted"),
            },
        }

    def latest(self, prefix: str, *, after: int | None = None, timeout: float | None = None) -> Ref:
        """Returns the newest object under a prefix."""
        del timeout
        names = [row["ref"] for row in self.directory(prefix)]
        numbers = [int(name.removeprefix(prefix)) for name in names if name.removeprefix(prefix).isdigit()]
        newest = max((number for number in numbers if number > (-1 if after is None else after)), default=None)
        if newest is None:
            raise Timeout(f"no object under {prefix}")
        return Ref(f"{prefix}{newest}")

    async def latest_async(self, prefix: str, **options: Any) -> Ref:  # noqa: ANN401 - as above
        """`latest`, for asyncio."""
        return self.latest(prefix, **options)

    def directory(
        self,
        prefix: Ref | str = "",
        *,
        sort: str = "ref",
        limit: int | None = None,
        after: Ref | str | None = None,
        timeout: float | None = None,
    ) -> list[Row]:
        """Lists the objects of the cluster."""
        del timeout
        holders: dict[str, tuple[int, int]] = {}
        for number in range(len(self._cluster.ids)):
            for ref, size in self._objects(number):
                holders[ref] = size, holders.get(ref, (size, 0))[1] + 1
        rows: list[Row] = [
            {
                "ref": ref,
                "bytes": size,
                "dtype": "float32",
                "shape": [size // 4],
                "what": f"float32[{size // 4}]",
                "form": "plain",
                "job": None,
                "ttl": None,
                "owner": self._cluster.ids[1],
                "age": max(0.0, self._cluster.now - START),
                "copies": copies,
                "partial": 0,
            }
            for ref, (size, copies) in holders.items()
            if ref.startswith(str(prefix)) and (after is None or ref > str(after))
        ]
        rows.sort(key=lambda row: row["ref"])
        if sort != "ref":
            rows.sort(key=lambda row: row[sort], reverse=True)
        return rows[:limit]

    async def directory_async(self, prefix: Ref | str = "", **options: Any) -> list[Row]:  # noqa: ANN401 - as above
        """`directory`, for asyncio."""
        return self.directory(prefix, **options)

    def locations(self, ref: Ref | str, *, timeout: float | None = None) -> list[Location]:
        """Lists the nodes that hold an object."""
        del timeout
        if str(ref) in self._deleted():
            raise ObjectDeleted(f"{ref} was deleted")
        cluster = self._cluster
        return [
            Location(cluster.ids[number], cluster.address(number), complete=True)
            for number in range(len(cluster.ids))
            if str(ref) in dict(self._objects(number))
        ]

    async def locations_async(self, ref: Ref | str, **options: Any) -> list[Location]:  # noqa: ANN401 - as above
        """`locations`, for asyncio."""
        return self.locations(ref, **options)
