"""Types of the result of `Client.status`, for annotations: `from hoplite.node_status import Status`. Each is a dict."""

from __future__ import annotations

from typing import Literal, TypedDict

# crates/node/src/local/describe.rs writes each field; tests/test_status.py compares the two.


class NodeDescription(TypedDict):
    """Identity and location of a node."""

    id: str
    """Id of the node in hex, new at each start."""

    address: str | None
    """Host and port for other nodes; None if no other node can join it."""

    place: list[str] | None
    """Groups of its host, outermost first; None if unknown."""

    carries: list[int | None] | None
    """For each group, how many full-rate transfers its link to other groups carries; None if unknown."""

    rack: str | None
    """The innermost group."""


class Suspicion(TypedDict):
    """Why a member is suspected to have failed."""

    by: str
    """Id of the node whose probe the member did not acknowledge."""

    seconds: float
    """Seconds since this node raised or received the suspicion."""


class MemberStatus(NodeDescription):
    """A member of the cluster, as this node sees it. It also has the fields of `NodeDescription`."""

    suspected: Suspicion | None
    """None if the member replies."""

    blocks_corrupt: int
    """Blocks from it with a checksum mismatch. They are refetched, after three from other members if possible."""

    via: str | None
    """Id of the member that forwards bytes to it; None if it is reached directly."""

    rtt_us: int | None
    """Shortest round trip of the last minutes in microseconds, by TCP; None without a direct connection."""

    bytes_per_second: int | None
    """Recent receive rate from it, or a lower bound; None without a direct connection."""


class LostMember(NodeDescription):
    """A former member, to which this node still tries to reconnect. It also has the fields of `NodeDescription`."""

    seconds: float
    """Seconds since it was declared dead."""

    reason: str
    """Why it was declared dead."""


class LimitStatus(TypedDict):
    """A limit that rejected requests; docs/security-model.md lists all limits."""

    limit: str
    """Name of the limit."""

    member: str | None
    """Id of the member that exceeded it; None for a process of this host."""

    process: int | None
    """PID of the process of this host; None for a member, or if unknown."""

    count: int
    """How often it was exceeded."""


class RevocationStatus(TypedDict):
    """The list of revoked certificates."""

    file: str
    """Path of the file."""

    renewed: int
    """How often a changed list was loaded."""

    problem: str | None
    """Why the current contents of the file are not in effect; None if they are."""


class StoreStatus(TypedDict):
    """The store of a node, in bytes; docs/counters.md explains each number."""

    used: int
    """Size of all copies in memory."""

    capacity: int
    """Limit of `used`."""

    mapped: int
    """Shared memory that the operating system has allocated."""

    warm: int
    """Part of `mapped` that is free."""

    extents: int
    """Number of extents (memory files) in `mapped`."""

    small: int
    """Size of small objects of other members."""

    small_capacity: int
    """Limit of `small`."""

    spilled: int
    """Size of the spill files."""

    spill_limit: int
    """Limit of `spilled`; 0 without a spill directory."""


class LinkStatus(TypedDict):
    """The link between hosts, as measured by transfers of this node."""

    latency_ns: int
    """One-way latency."""

    bytes_per_second: int
    """Bandwidth of one host."""

    connections: int
    """On how many connections a large object begins to arrive: more than 1 if the network limits each connection."""


class Status(NodeDescription):
    """The result of `Client.status`: the state of a node. It also has the fields of `NodeDescription`."""

    cluster: str
    """Name of its cluster."""

    cluster_id: str
    """Id of its cluster, the same on all members; clusters of one name can have different ids."""

    admission: str
    """The credentials that members need, in words."""

    revocations: RevocationStatus | None
    """None without a revocation list."""

    barred: str | None
    """Why other nodes reject this one, whose certificate is revoked; None if they do not."""

    members: list[MemberStatus]
    """All members, including this node."""

    lost: list[LostMember]
    """Former members, to which this node still tries to reconnect."""

    limits: list[LimitStatus]
    """Limits that rejected requests."""

    survey: Literal["none", "waiting", "even", "found"]
    """Measurement of which hosts share a link: not applicable, not complete, none found, some found."""

    objects: int
    """Number of copies on this node."""

    owned: int
    """Number of existing objects of which this node is an owner."""

    waiting: int
    """Number of pending requests of its clients."""

    reduces: int
    """Number of running reduces of its clients."""

    store: StoreStatus
    """Memory and disk."""

    link: LinkStatus
    """The link between hosts."""

    counters: dict[str, int]
    """Counters since the start of the node; docs/counters.md explains each."""
