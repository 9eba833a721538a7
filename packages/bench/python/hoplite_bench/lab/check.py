"""The self-test of a lab: checks that all links reach their configured rate at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.lab.hosts import Host
    from hoplite_bench.lab.lab import Lab

# Tolerance of a measured rate. Headers alone take 4.4 %: a frame of 1514 bytes carries 1448 bytes of TCP payload.
TOLERANCE = 0.07


@dataclass(frozen=True)
class Stream:
    """One stream of a round: sender, receiver, and its expected and measured rate in bit/s."""

    source: str
    target: str
    asked: int
    measured: float

    @property
    def is_good(self) -> bool:
        """Whether the measured rate is within 7 % of the expected one."""
        return abs(self.measured / self.asked - 1) <= TOLERANCE


def rounds(lab: Lab, count: int = 3) -> Iterator[list[Stream]]:
    """Measures streams around a ring of all hosts at once, so that every link is full in both directions.

    Args:
        lab: the lab to test.
        count: maximum number of rounds, because another program may use the processor for a moment. Stops after the
            first good round.

    Yields:
        The streams of each round.

    Raises:
        InvalidArgument: the lab has one host, or `count` is less than 1.
        LabError: a stream did not start.
    """
    if len(lab.hosts) < 2:
        raise InvalidArgument("a lab of one host has no link to measure: create at least 2 hosts")
    if count < 1:
        raise InvalidArgument(f"count {count} is too small: set at least 1 round")
    pairs = [(host, lab.hosts[(host.number + 1) % len(lab.hosts)]) for host in lab.hosts]
    facts: dict[str, Any] = lab.facts()
    rate, uplink, pod_uplink = (int(facts[name] or facts["rate"]) for name in ("rate", "uplink", "pod_uplink"))
    if facts["flow_cap"] is not None:
        rate = min(rate, int(facts["flow_cap"]))
    pod_of = {host.number: pod.number for pod in lab.pods for host in pod.hosts}

    def carried(a: Host, b: Host) -> int:
        """The expected rate of a stream. Of the ring, one stream leaves each rack and each pod, and one enters it."""
        if a.rack == b.rack:
            return rate
        return min(rate, uplink) if pod_of.get(a.number) == pod_of.get(b.number) else min(rate, uplink, pod_uplink)

    asked = [carried(a, b) for a, b in pairs]
    for _ in range(count):
        measured = lab.measure_rates_at_once(pairs)
        streams = [Stream(a.name, b.name, bits, got) for (a, b), bits, got in zip(pairs, asked, measured, strict=True)]
        yield streams
        if all(stream.is_good for stream in streams):
            return
