"""The metrics of a node: one table of families, and where each value is in the reply to `inspect("metrics")`.

docs/metrics.md is generated from the table. Names follow the conventions of Prometheus: base units, and `_total` for
counters. A value that an older node lacks is left out. Does not know the text format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hoplite.tools.observe.readers import PREFIXES_MAX, lags, prefix_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

PREFIX = "hoplite_"

Row = dict[str, Any]


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: name without the prefix `hoplite_`; that of a counter without `_total`.
        kind: counter, gauge or histogram.
        unit: what it counts; the name ends in it if it is bytes or seconds.
        help: one line.
        source: path of the value in the facts of `facts_of`; `*` stands for the value of the last label. Or paths by
            value of the label.
        labels: names of the labels.
        scale: factor from the source to the unit.
    """

    name: str
    kind: str
    unit: str
    help: str
    source: str | Mapping[str, str]
    labels: tuple[str, ...] = ()
    scale: float = 1

    @property
    def full_name(self) -> str:
        """Name of its samples; a histogram adds `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == COUNTER else ''}"

    def samples(self, facts: Row) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yields the values of the labels and the value of each sample."""
        if isinstance(self.source, str):
            yield from self._found(facts, self.source)
            return
        for label, path in self.source.items():
            for _, value in self._found(facts, path):
                yield (label,), value

    def _found(self, facts: Row, path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
        before, star, after = path.partition("*")
        if not star:
            value = _at(facts, path)
            if value is not None:
                yield (), value if self.kind == HISTOGRAM else value * self.scale
            return
        for key, row in (_at(facts, before.rstrip(".")) or {}).items():
            value = _at(row, after.lstrip("."))
            if value is not None:
                labels = key if isinstance(key, tuple) else (key,)
                yield labels, value if self.kind == HISTOGRAM else value * self.scale


def _at(facts: Any, path: str) -> Any:  # noqa: ANN401 - any value of the reply
    for name in path.split(".") if path else ():
        if not isinstance(facts, dict):
            return None
        facts = facts.get(name)
    return facts


def _counter(name: str, unit: str, text: str, source: str | Mapping[str, str], *labels: str) -> Family:
    return Family(name, COUNTER, unit, text, source, labels)


def _gauge(name: str, unit: str, text: str, source: str | Mapping[str, str], *labels: str, scale: float = 1) -> Family:
    return Family(name, GAUGE, unit, text, source, labels, scale)


FAMILIES = (
    # The node.
    _gauge("node_info", "", "Always 1; the labels describe the node.", "info.*", "node", "version", "cluster", "rack"),
    _gauge("start_time_seconds", "seconds", "When the node started, in Unix time.", "started"),
    # Objects.
    _gauge("objects", "copies", "Copies on this node, by state.", "states.*.objects", "state"),
    _gauge("object_bytes", "bytes", "Size of the copies on this node, by state.", "states.*.bytes", "state"),
    _gauge("objects_owned", "objects", "Existing objects that this node owns in the directory.", "status.owned"),
    _gauge("pins", "copies", "Copies that are pinned.", "pins"),
    _counter("puts", "objects", "Objects that clients of this node put.", "totals.puts"),
    _counter("gets_waited", "requests", "Gets that had to wait.", "totals.gets_waited"),
    _counter("deletes", "requests", "Deletions that clients of this node requested.", "totals.deletes"),
    # Store.
    _gauge("store_used_bytes", "bytes", "Size of all copies in memory.", "status.store.used"),
    _gauge("store_capacity_bytes", "bytes", "Limit of the store.", "status.store.capacity"),
    _gauge("store_mapped_bytes", "bytes", "Shared memory allocated from the system.", "status.store.mapped"),
    _gauge("store_warm_bytes", "bytes", "Allocated shared memory that is free.", "status.store.warm"),
    _gauge("inline_bytes", "bytes", "Small objects stored for other members.", "status.store.small"),
    _gauge("inline_capacity_bytes", "bytes", "Limit of the small objects.", "status.store.small_capacity"),
    _gauge("spill_used_bytes", "bytes", "Size of the spill files.", "status.store.spilled"),
    _gauge("spill_capacity_bytes", "bytes", "Limit of the spill files.", "status.store.spill_limit"),
    _counter("evictions", "copies", "Cached copies evicted to free memory.", "status.counters.evictions"),
    _counter("memory_refused", "refusals", "Memory that the host refused.", "status.counters.memory_refused"),
    _counter("spills", "objects", "Objects written to disk.", "status.counters.spills"),
    _counter("unspills", "objects", "Objects read back from disk.", "status.counters.unspills"),
    _counter("spill_failures", "failures", "Failed writes to and reads from disk.", "status.counters.spill_failures"),
    _counter("spilled_bytes", "bytes", "Bytes written to disk.", "totals.spilled_bytes"),
    _counter("unspilled_bytes", "bytes", "Bytes read back from disk.", "totals.unspilled_bytes"),
    # Transfers.
    _counter(
        "transfers",
        "transfers",
        "Transfers of copies, by path: sent from a complete copy, sent while the copy grows, received, continued after "
        "an interruption, interrupted.",
        {
            "direct": "totals.serves_direct",
            "relayed": "totals.serves_relayed",
            "received": "status.counters.fetches",
            "resumed": "totals.fetches_resumed",
            "failed": "status.counters.fetches_failed",
        },
        "path",
    ),
    _counter(
        "sent_bytes",
        "bytes",
        "Payload sent to other nodes: copies put here, copies received or reduced here, partial sums.",
        {
            "direct": "status.counters.bytes_direct",
            "relayed": "status.counters.bytes_relayed",
            "partial": "status.counters.bytes_partial",
        },
        "path",
    ),
    _counter(
        "received_bytes",
        "bytes",
        "Payload received from other nodes: copies, partial sums.",
        {"copy": "status.counters.bytes_received", "partial": "status.counters.bytes_partial_received"},
        "path",
    ),
    _counter("transfers_slow", "transfers", "Transfers aborted as stalled.", "status.counters.transfers_slow"),
    _counter("refusals", "requests", "Requests for copies that are gone.", "status.counters.refusals"),
    _counter("corrupt_blocks", "blocks", "Blocks with a checksum mismatch.", "status.counters.blocks_corrupt"),
    _counter("corrupt_copies", "objects", "Copies with another digest.", "status.counters.copies_corrupt"),
    _counter("source_choices", "choices", "Sources chosen for this node, by reason.", "choices.*", "choice"),
    # Peers.
    _counter("peer_received_bytes", "bytes", "Payload received from a member.", "peers.*.received", "peer"),
    _counter("peer_sent_bytes", "bytes", "Payload sent to a member.", "peers.*.sent", "peer"),
    _gauge(
        "peer_rtt_seconds", "seconds", "Shortest recent round trip to a member.", "members.*.rtt_us", "peer", scale=1e-6
    ),
    _gauge(
        "peer_bytes_per_second",
        "bytes per second",
        "Recent receive rate from a member.",
        "members.*.bytes_per_second",
        "peer",
    ),
    _gauge("link_bytes_per_second", "bytes per second", "Measured link.", "status.link.bytes_per_second"),
    # Reduces.
    _counter("reduces", "reduces", "Reduces that clients of this node called.", "totals.reduces"),
    _counter("reduces_ring", "reduces", "Reduces that ran as a ring.", "totals.reduces_ring"),
    _counter("reduce_restarts", "epochs", "Epochs that repaired a reduce.", "status.counters.reduces_restarted"),
    _gauge("reduces_running", "reduces", "Running reduces of this node's clients.", "status.reduces"),
    _counter("folds", "folds", "Positions of reduces that ran here.", "totals.folds"),
    _counter("folds_failed", "folds", "Positions that failed or were aborted.", "totals.folds_failed"),
    _counter(
        "folded_bytes",
        "bytes",
        "Inputs folded for reduces of own clients and of other nodes.",
        {"local": "status.counters.bytes_folded_local", "remote": "status.counters.bytes_folded_remote"},
        "caller",
    ),
    # Directory and membership.
    Family("directory_seconds", HISTOGRAM, "seconds", "Replies of owners, by request.", "latencies.*", ("operation",)),
    _gauge("members", "nodes", "Members of the cluster, with this node.", "counts.members"),
    _gauge("members_suspected", "nodes", "Members that a node suspects.", "counts.suspected"),
    _gauge("members_lost", "nodes", "Failed members that may reconnect.", "counts.lost"),
    _counter("membership_events", "events", "Membership changes, by state.", "memberships.*", "state"),
    _counter("replicas_late", "requests", "Replicas not stored in time.", "status.counters.replicas_late"),
    # Queues and messages.
    _gauge("requests_waiting", "requests", "Requests of this node's clients without a reply.", "status.waiting"),
    _gauge("queue_length", "entries", "What waits on this node, by queue.", "queues.*", "queue"),
    _counter(
        "messages",
        "messages",
        "Control messages sent, received and rejected.",
        {
            "sent": "status.counters.messages_sent",
            "received": "status.counters.messages_received",
            "rejected": "status.counters.messages_refused",
        },
        "direction",
    ),
    _counter("strangers", "connections", "Rejected connections.", "status.counters.strangers"),
    _counter("limit_rejections", "requests", "Requests beyond a limit, by limit.", "limits.*", "limit"),
    _counter("events", "events", "Events recorded for traces and stories.", "totals.events"),
    # Versions.
    _gauge("newest_version", "", "Newest version of a prefix that processes here read.", "newest.*", "prefix"),
    _gauge("reader_version", "", "Newest version that a process read.", "readers.*.version", "prefix", "process"),
    _gauge("reader_lag_versions", "versions", "Versions behind the newest.", "readers.*.lag", "prefix", "process"),
)


def prefixes_of(reply: Row) -> list[str]:
    """Returns the prefixes of which the newest version is needed, at most `PREFIXES_MAX`."""
    return list(dict.fromkeys(prefix_of(row) for row in reply.get("reads") or ()))[:PREFIXES_MAX]


def facts_of(reply: Row, newest: Mapping[str, int]) -> Row:
    """Returns what the sources of the families refer to: the reply, and lists of it by label.

    Args:
        reply: the reply to `inspect("metrics")`.
        newest: the newest version of each prefix, if known.
    """
    status = reply.get("status") or {}
    members = status.get("members") or ()
    names = {member["id"]: member.get("address") or member["id"] for member in members}
    info = reply.get("node", ""), reply.get("version", ""), status.get("cluster", ""), status.get("rack") or ""
    limits: dict[str, int] = {}
    for row in status.get("limits") or ():
        limits[row["limit"]] = limits.get(row["limit"], 0) + row["count"]
    # Clients of one process may have read different versions: its newest counts.
    # Of other prefixes, the newest version was not looked up.
    prefixes = set(prefixes_of(reply))
    known = [row for row in reply.get("reads") or () if prefix_of(row) in prefixes]
    reads = sorted(lags(known, newest, now=reply.get("time", 0.0)), key=lambda row: row["version"])
    return {
        **reply,
        "info": {info: 1},
        "peers": {names[node]: row for node, row in (reply.get("peers") or {}).items() if node in names},
        "members": {names[member["id"]]: member for member in members},
        "counts": {
            "members": len(members),
            "suspected": sum(bool(member.get("suspected")) for member in members),
            "lost": len(status.get("lost") or ()),
        },
        "limits": limits,
        "newest": {row["prefix"]: row["newest"] for row in reads},
        "readers": {(row["prefix"], str(row["process"] or "")): row for row in reads},
    }
