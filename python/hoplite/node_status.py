"""Types of what `Client.status` returns, for annotations: `from hoplite.node_status import Status`. Each is a dict."""

from __future__ import annotations

from typing import Literal, TypedDict

# crates/node/src/local/describe.rs writes each field; tests/test_status.py compares the two.


class NodeDescription(TypedDict):
    """Identity and location of a node."""

    id: str
    """Of this start of the node, in hex."""

    address: str | None
    """Host and port for other nodes; None if no other node can join it."""

    place: list[str] | None
    """The groups of its host, outermost first; None if they are not known."""

    carries: list[int | None] | None
    """For each group, how many transfers at a host's full rate its link to other groups carries; None if not known."""

    rack: str | None
    """The last of the groups."""


class Suspicion(TypedDict):
    """Why a member is suspected to be dead."""

    by: str
    """The id of the node that found it silent."""

    seconds: float
    """Since it last answered."""


class MemberStatus(NodeDescription):
    """A member of the cluster, as this node sees it."""

    suspected: Suspicion | None
    """None of a member that answers."""

    blocks_corrupt: int
    """Blocks from it that did not match their checksum: fetched again, after three from others if possible."""

    via: str | None
    """The id of the member that relays for it; None if it is reached directly."""

    rtt_us: int | None
    """Shortest round trip of the last minutes in microseconds, by TCP; None without a direct connection."""

    bytes_per_second: int | None
    """Rate at which bytes have arrived from it lately, or at least that; None without a direct connection."""


class LostMember(NodeDescription):
    """A former member, to which this node still tries to reconnect."""

    seconds: float
    """Since it was lost."""

    reason: str
    """Why it was lost."""


class LimitStatus(TypedDict):
    """A limit that turned something away; docs/security-model.md lists all of them."""

    limit: str
    """Its name."""

    member: str | None
    """The id of the member that met it; None of a process of this host."""

    process: int | None
    """The number of the process of this host; None of a member, or if it is not known."""

    count: int
    """How often."""


class RevocationStatus(TypedDict):
    """The list of revoked certificates."""

    file: str
    """Its path."""

    renewed: int
    """How often a changed list was put in force."""

    problem: str | None
    """Why the present contents of the file are not in force; None if they are."""


class StoreStatus(TypedDict):
    """The store of a node, in bytes; docs/counters.md explains each number."""

    used: int
    """Of copies in memory."""

    capacity: int
    """That these may take."""

    mapped: int
    """Of shared memory from the operating system."""

    warm: int
    """Of `mapped` that are free."""

    extents: int
    """Files of memory that `mapped` is made of."""

    small: int
    """Of small objects of other members."""

    small_capacity: int
    """That these may take."""

    spilled: int
    """Of files of objects on disk."""

    spill_limit: int
    """That these may take; 0 without a disk."""


class LinkStatus(TypedDict):
    """The link between hosts, as measured by transfers of this node."""

    latency_ns: int
    """One way."""

    bytes_per_second: int
    """Of one host."""


class Status(NodeDescription):
    """The state of a node."""

    cluster: str
    """The name of its cluster."""

    admission: str
    """What members prove to join, in words."""

    revocations: RevocationStatus | None
    """None of a node without such a list."""

    barred: str | None
    """Why other nodes refuse this one, whose certificate is revoked; None if they do not."""

    members: list[MemberStatus]
    """All members, this node among them."""

    lost: list[LostMember]
    """Former members, to which this node still tries to reconnect."""

    limits: list[LimitStatus]
    """Limits that turned something away."""

    survey: Literal["none", "waiting", "even", "found"]
    """Whether the hosts have measured which of them share a link: they do not, will, found none, or found some."""

    objects: int
    """Copies here."""

    owned: int
    """Living objects that this node is an owner of."""

    waiting: int
    """Requests of its clients without a reply."""

    reduces: int
    """Reduces of its clients that are under way."""

    store: StoreStatus
    """Its memory and disk."""

    link: LinkStatus
    """The link between hosts."""

    counters: dict[str, int]
    """Since the start of the node; docs/counters.md explains each."""
