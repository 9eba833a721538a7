"""Types of the results of `Client.inspect`, for annotations: `from hoplite.activity import Activity`. Each is a dict.

Times are seconds since 1970, nodes are ids in hex, processes are PIDs or None. A newer node may report more kinds and
fields, which readers must ignore.
"""

from __future__ import annotations

from typing import Any, TypedDict

from hoplite.node_status import Status  # noqa: TC001 - for get_type_hints

# crates/node/src/observe/report.rs writes each field; tests/test_inspect.py compares the two.


class Transfer(TypedDict):
    """A copy that arrives."""

    ref: str
    """The object."""

    instance: str
    """Which creation of its bytes."""

    source: str
    """The node that sends it."""

    choice: str
    """Why: "only_holder", "idle_complete", "idle_relay", "least_loaded", "insert", "redirect" or "ordered"."""

    reason: str
    """The same in words, with numbers."""

    bytes: int
    """Size of the object."""

    received: int
    """Bytes that are here."""

    since: float
    """When this source began."""


class Fold(TypedDict):
    """A position of a reduce."""

    result: str
    """The result of the reduce."""

    epoch: int
    """The attempt."""

    position: int | None
    """The place in the tree; None for the node whose client called reduce."""

    children: list[str]
    """Nodes whose sums are folded in."""

    inputs: list[str]
    """Inputs of this node."""

    since: float
    """When it began."""


class RunningReduce(TypedDict):
    """A reduce of a client of this node."""

    result: str
    """Its result."""

    epoch: int
    """The attempt."""

    degree: str | None
    """The shape: "chain", "tree 2", "star" or "ring of 4"; None until it is chosen."""

    reason: str
    """Why that shape, in words."""

    since: float
    """When it began."""


class Wait(TypedDict):
    """A request that waits."""

    verb: str
    """The request."""

    ref: str | None
    """The object or the prefix that it waits for; None if there are several."""

    process: int | None
    """The process that waits."""

    since: float
    """When it began."""

    what: str | None
    """What it waits for; None in its first second, beyond the 100 longest waits, or after 1 ms of descriptions."""

    state: str | None
    """Why that is missing; None as for `what`."""


class ReadVersion(TypedDict):
    """The newest version of a prefix that a process read."""

    prefix: str
    """The text before the number."""

    version: int
    """The number."""

    process: int | None
    """The process."""

    since: float
    """When it read this version first."""


class Activity(TypedDict):
    """The result of `Client.inspect("activity")`: recent events of a node, and what it does now."""

    time: float
    """When the node wrote this."""

    node: str
    """The node."""

    first: int
    """Serial number of the oldest event that the node still has."""

    next: int
    """Serial number that the next event will get."""

    events: list[dict[str, Any]]
    """Events in order. Each has "serial", "time" and "kind", and the fields of its kind."""

    transfers: list[Transfer]
    """Copies that arrive."""

    folds: list[Fold]
    """Positions of reduces that run here."""

    reduces: list[RunningReduce]
    """Reduces of this node's clients."""

    waits: list[Wait]
    """Requests that wait."""

    reads: list[ReadVersion]
    """What processes of this host read."""

    omitted: dict[str, int]
    """How many rows each list lacks, beyond its limit of 1000 rows or 256 KiB."""


class Histogram(TypedDict):
    """How long replies of other nodes took."""

    bounds: list[float]
    """Upper bounds of the buckets in seconds."""

    counts: list[int]
    """Replies in each bucket; the last is for longer ones."""

    sum: float
    """Seconds of all replies together."""


class StateCount(TypedDict):
    """Copies in one state."""

    objects: int
    """Their number."""

    bytes: int
    """Their size."""


class Traffic(TypedDict):
    """Bytes of copies and partial sums."""

    received: int
    """From the member."""

    sent: int
    """To the member."""


class Metrics(TypedDict):
    """The result of `Client.inspect("metrics")`: counters and latencies since the start of a node, and its status."""

    time: float
    """When the node wrote this."""

    node: str
    """The node."""

    version: str
    """Its version of Hoplite."""

    started: float
    """When it started."""

    status: Status
    """Its status, as `Client.status` returns it there."""

    totals: dict[str, int]
    """Counters that the status lacks."""

    choices: dict[str, int]
    """How often each reason chose a source for this node."""

    memberships: dict[str, int]
    """How often members joined, left, failed, reconnected, or were suspected, trusted again or barred."""

    states: dict[str, StateCount]
    """Copies by state: "filling", "flowing", "folding", "complete", "spilled" and "returning"."""

    pins: int
    """Number of pinned copies."""

    queues: dict[str, int]
    """What waits on this node."""

    peers: dict[str, Traffic]
    """Bytes moved from and to each member."""

    latencies: dict[str, Histogram]
    """Replies of owners, by the kind of request."""

    reads: list[ReadVersion]
    """What processes of this host read."""
