"""Judges a cluster: members, versions, clocks, reachability both ways and rates. Needs a running node."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from hoplite import __version__
from hoplite.errors import HopliteError
from hoplite.tools.doctor import Finding
from hoplite.tools.observe.collect import Collector
from hoplite.tools.observe.words import node_name, seconds
from hoplite.tools.quantities import write_rate, write_size

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.tools.observe.collect import Row, Snapshot

# Difference of clocks that misleads readers of logs, and that matters for certificates and capabilities.
CLOCK_WARNING_S = 1.0
CLOCK_PROBLEM_S = 60.0

# A member this many times slower than the median is slow.
SLOW_TIMES = 4.0

# Object that is sent to measure a rate, and the share of the free capacity that it may take.
PROBE_BYTES = 64 << 20
PROBE_PART = 4
PROBE_TIMEOUT_S = 30.0

METRICS_TIMEOUT_S = 3.0

# A put that waits this long for memory is a finding; memory that is only being allocated takes less.
FULL_AFTER_S = 5.0
# Other requests that wait this long are counted, and findings of one check are at most this many.
WAITS_AFTER_S = 30.0
WAITS_MAX = 5


class View:
    """What the nodes of a cluster report about themselves and each other.

    Attributes:
        snapshot: the activity of all nodes.
        metrics: replies to `inspect("metrics")`, by id of the node; a node that does not reply is missing.
    """

    def __init__(self, snapshot: Snapshot, metrics: dict[str, Row]) -> None:
        self.snapshot = snapshot
        self.metrics = metrics

    @property
    def names(self) -> dict[str, str]:
        """Names of the nodes, by id."""
        return self.snapshot.names

    @classmethod
    def of(cls, client: Client) -> View:
        """Requests the reports of all nodes.

        Raises:
            HopliteError: this host's node does not reply.
        """
        return asyncio.run(cls._of(client))

    @classmethod
    async def _of(cls, client: Any) -> View:  # noqa: ANN401 - also a client of tests
        snapshot = await Collector(client, history=False).collect()
        nodes = [report.node for report in snapshot.reports if report.note is None]
        replies = await asyncio.gather(
            *(client.inspect_async("metrics", node=node, timeout=METRICS_TIMEOUT_S) for node in nodes),
            return_exceptions=True,
        )
        found = {}
        for node, reply in zip(nodes, replies, strict=True):
            if isinstance(reply, dict):
                found[node] = reply
            elif not isinstance(reply, HopliteError):
                raise reply
        return cls(snapshot, found)


def members(view: View) -> list[Finding]:
    """Judges which members reply."""
    status = view.snapshot.status
    found = []
    for lost in status.get("lost", ()):
        text = f"{lost['address'] or lost['id']} failed {lost['seconds']:.0f} s ago: {lost['reason']}"
        fix = f"Restart it: hoplite node --join {status['address'] or 'HOST:PORT'}"
        found.append(Finding("members", "warning", text, fix))
    for report in view.snapshot.reports:
        is_lost = any(lost["id"] == report.node for lost in status.get("lost", ()))
        if report.note is not None and not is_lost:
            text = f"{report.name} did not report: {report.note}"
            found.append(Finding("members", "warning", text, f"Update or restart the node at {report.name}"))
    for member in status["members"]:
        if member.get("suspected"):
            text = f"{member['address']} does not reply to {view.names.get(member['suspected']['by'], 'a node')}"
            fix = f"Look at the log and the load of {member['address']}: journalctl -u hoplite"
            found.append(Finding("members", "warning", text, fix))
    if status.get("barred"):
        fix = "Issue a new certificate: hoplite certs issue"
        found.append(Finding("members", "problem", f"other nodes reject this one: {status['barred']}", fix))
    count = len(status["members"])
    return found or [Finding("members", "ok", f"{count} {'node' if count == 1 else 'nodes'}, all report")]


def versions(view: View) -> Finding:
    """Judges whether all nodes have the version of this command."""
    others = {
        node_name(node, view.names): str(reply["version"])
        for node, reply in view.metrics.items()
        if reply.get("version") not in (None, __version__)
    }
    if others:
        text = ", ".join(f"{name} has {version}" for name, version in others.items())
        fix = f"Install hoplite-collectives {__version__} on each host, then restart its node."
        return Finding("versions", "warning", f"this command has {__version__}, but {text}", fix)
    return Finding("versions", "ok", f"all nodes that reply have {__version__}")


def clocks(view: View) -> list[Finding]:
    """Judges the differences of the clocks."""
    found = []
    most = 0.0
    reports = [report for report in view.snapshot.reports if report.note is None]
    for report in reports:
        offset = report.offset.seconds
        most = max(most, abs(offset) + report.offset.error)
        if abs(offset) > CLOCK_WARNING_S:
            level: Any = "problem" if abs(offset) > CLOCK_PROBLEM_S else "warning"
            text = f"the clock of {report.name} is {seconds(abs(offset))} {'ahead' if offset > 0 else 'behind'}"
            fix = f"Synchronize the clock of {report.name}: timedatectl set-ntp true"
            found.append(Finding("clocks", level, text, fix))
    return found or [Finding("clocks", "ok", f"the clocks of {len(reports)} nodes differ by at most {seconds(most)}")]


def reachability(view: View) -> list[Finding]:
    """Judges whether each node reaches each other directly."""
    found = []
    nodes = {member["id"]: member for member in view.snapshot.status["members"]}
    for node, reply in view.metrics.items():
        seen = {member["id"]: member for member in reply["status"]["members"]}
        for other, member in nodes.items():
            name, target = node_name(node, view.names), node_name(other, view.names)
            number = (member["address"] or "").rpartition(":")[2]
            fix = f"Allow TCP port {number or 'of the node'} from {name} to {target} in the firewall: nft list ruleset"
            if other != node and other not in seen:
                found.append(Finding("reachability", "problem", f"{name} does not see {target}", fix))
            elif other != node and seen[other].get("via"):
                via = node_name(seen[other]["via"], view.names)
                text = f"{name} reaches {target} only through {via}"
                found.append(Finding("reachability", "warning", text, fix))
    address = view.snapshot.status["address"]
    if address is None or address.startswith(("127.", "[::1]", "localhost")):
        where = f"on {address}" if address else "on no TCP port"
        text = f"this node listens {where}; other hosts can join only after: hoplite node --listen ADDRESS:7420"
        found.append(Finding("reachability", "ok", text))
    pairs = sum(1 for node in view.metrics for other in nodes if other != node)
    if not any(one.level != "ok" for one in found):
        found.append(Finding("reachability", "ok", f"all {pairs} connections between nodes are direct"))
    return found


def corruption(view: View) -> list[Finding]:
    """Judges what members sent that was damaged or malformed."""
    found = []
    for member in view.snapshot.status["members"]:
        if member.get("blocks_corrupt"):
            text = f"{member['address']} sent {member['blocks_corrupt']} corrupt blocks"
            fix = f"Test the memory and the network card of {member['address']}: memtester 1G; ethtool -S INTERFACE"
            found.append(Finding("corruption", "warning", text, fix))
    return found


def waits(view: View) -> list[Finding]:
    """Judges which requests of clients wait: puts for room in a store, and others for long."""
    found = []
    others = []
    for report in view.snapshot.reports:
        for row in report.activity.get("waits", ()):
            # Both times are those of the same clock.
            waited = report.activity["time"] - report.offset.seconds - row["since"]
            by = "a process" if row.get("process") is None else f"process {row['process']}"
            who = f"{row['verb']} of {by} at {report.name} has waited {seconds(waited)}"
            what = f" for {row['what']}" if row.get("what") else ""
            text = f"{who}{what}: {row.get('state') or 'the node did not describe why'}"
            if row["verb"] in ("put", "create") and waited >= FULL_AFTER_S:
                fix = "Delete the largest: hoplite objects --sort size; hoplite delete REF. Or set a larger capacity"
                found.append((waited, Finding("waits", "warning", text, fix)))
            elif waited >= WAITS_AFTER_S:
                others.append((waited, text))
    found.sort(key=lambda each: -each[0])
    findings = [finding for _, finding in found[:WAITS_MAX]]
    if others:
        count = f"{len(others)} other {'request waits' if len(others) == 1 else 'requests wait'}"
        findings.append(Finding("waits", "ok", f"{count} for long; the longest: {max(others)[1]}"))
    return findings or [Finding("waits", "ok", "no put waits for memory")]


def rates(view: View) -> list[Finding]:
    """Judges the rates that nodes have measured in earlier transfers between hosts.

    A transfer within a host crosses no link: its rate is that of memory and of the processors.
    """
    hosts = {member["id"]: (member["address"] or "").rpartition(":")[0] for member in view.snapshot.status["members"]}
    measured = {
        (node, member["id"]): member["bytes_per_second"]
        for node, reply in view.metrics.items()
        for member in reply["status"]["members"]
        if hosts.get(node) != hosts.get(member["id"], member["id"]) and member.get("bytes_per_second")
    }
    if len(measured) < 2:
        return []
    median = sorted(measured.values())[len(measured) // 2]
    slow = Counter(
        node for (to, source), rate in measured.items() if rate * SLOW_TIMES < median for node in (to, source)
    )
    if slow:
        node, _ = slow.most_common(1)[0]
        rate = min(rate for pair, rate in measured.items() if node in pair)
        text = f"{node_name(node, view.names)} had only {write_rate(rate * 8)}, others {write_rate(median * 8)}"
        fix = f"Check the link of {node_name(node, view.names)}: ethtool INTERFACE; ip -s link"
        return [Finding("rates", "warning", text, fix)]
    low, high = min(measured.values()), max(measured.values())
    return [Finding("rates", "ok", f"earlier transfers had {write_rate(low * 8)} to {write_rate(high * 8)}")]


def rate(client: Client, view: View) -> Finding:
    """Measures the rate to another node: puts an object with a replica, and deletes it."""
    store = view.snapshot.status["store"]
    if len(view.snapshot.status["members"]) < 2:
        return Finding("rate", "unchecked", "only one node is in the cluster")
    if store["capacity"] - store["used"] < PROBE_BYTES * PROBE_PART:
        return Finding("rate", "unchecked", f"the store has too little free capacity for {write_size(PROBE_BYTES)}")
    ref = None
    try:
        ref = client.put(bytes(PROBE_BYTES), replicas=2, ttl=PROBE_TIMEOUT_S * 2, timeout=PROBE_TIMEOUT_S)
        places = client.locations(ref, timeout=METRICS_TIMEOUT_S)
        node = next(place.node for place in places if place.node != view.snapshot.status["id"])
        snapshot = asyncio.run(Collector(client).collect())
        taken = next(
            event["seconds"]
            for event in snapshot.events()
            if event["kind"] == "fetched" and event.get("ref") == str(ref) and event["recorder"] == node
        )
    except (HopliteError, StopIteration) as error:
        text = f"no other node took {write_size(PROBE_BYTES)}" + (f": {error}" if str(error) else "")
        return Finding("rate", "unchecked", text)
    finally:
        if ref is not None:
            # If that fails, its time to live deletes it.
            with contextlib.suppress(HopliteError):
                client.delete(ref, timeout=PROBE_TIMEOUT_S)
    measured = write_rate(PROBE_BYTES * 8 / max(taken, 1e-9))
    return Finding("rate", "ok", f"{measured} to {node_name(node, view.names)}, with {write_size(PROBE_BYTES)}")
