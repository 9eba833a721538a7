"""The self-test of a lab: does every link bring the rate that was asked, all at once?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.lab.hosts import Host
    from hoplite_bench.lab.lab import Lab

# By how much a measured rate may miss the one that was asked. Headers alone take 4.4 %: of a frame of 1514 bytes, TCP
# brings 1448.
TOLERANCE = 0.07


@dataclass(frozen=True)
class Stream:
    """One stream of a round: from which host to which, asked and measured, in bit/s."""

    source: str
    target: str
    asked: int
    measured: float

    @property
    def is_good(self) -> bool:
        """Whether it is within 7 %."""
        return abs(self.measured / self.asked - 1) <= TOLERANCE


def rounds(lab: Lab, count: int = 3) -> Iterator[list[Stream]]:
    """Measures streams around a ring of all hosts, all at once: every link is full in both directions.

    Args:
        lab: what to test.
        count: rounds to measure, for another program may take the processor for a moment; ends with the first good one.

    Yields:
        The streams of each round.

    Raises:
        InvalidArgument: a lab of one host, or no round.
        LabError: a stream did not come up.
    """
    if len(lab.hosts) < 2:
        raise InvalidArgument("a lab of one host has nothing to measure; hosts must be 2 or more")
    if count < 1:
        raise InvalidArgument(f"count must be 1 round or more, not {count}")
    pairs = [(host, lab.hosts[(host.number + 1) % len(lab.hosts)]) for host in lab.hosts]
    facts: dict[str, Any] = lab.facts()
    rate, uplink, pod_uplink = (int(facts[name] or facts["rate"]) for name in ("rate", "uplink", "pod_uplink"))
    pod_of = {host.number: pod.number for pod in lab.pods for host in pod.hosts}

    def carried(a: Host, b: Host) -> int:
        """What a stream's way carries; of the ring, one stream leaves each rack and each pod, and one comes in."""
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
