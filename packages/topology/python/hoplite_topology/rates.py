"""Measures link rates with streams between the hosts of a probe: one pair alone, all at once, and more over an uplink.

Uses the agents, and identifies hosts by number; `contention` finds the groups.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite_topology import contention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite_topology.contention import Round
    from hoplite_topology.reach import Reached
    from hoplite_topology.tournament import Pair

# Time until a stream has reached its speed, and then of its measurement.
WARM_S, SECONDS = 0.05, 0.1
OPEN_TIMEOUT_S, GO_TIMEOUT_S = 10.0, 40.0
# Window of a stream: what its link carries in two round trips and 1 ms, the time until a busy host reads again. A
# larger window would fill queues, which would delay the next round.
WINDOW_S, WINDOW_RTTS = 0.001, 2
WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 64 << 10, 6 << 20
# Assumed until a rate is known.
RATE_ASSUMED = 1e10
ALONE_PAIRS = 4
# An uplink counts as full if it carries less than this share of what its hosts could send.
FULL = 0.85
# Doubling the number of streams stops when the total grows by less than this factor.
GROWTH = 1.15
# A rate this close to a whole multiple of a host's link counts as that multiple.
WHOLE = 0.07


@dataclass
class Rates:
    """Measured rates, in bit/s of payload.

    Attributes:
        nic: rate of a host's link, the median of pairs that were measured alone; None if no stream started.
        rounds: rounds of all hosts at once, with numbers of hosts.
        uplinks: rate of a group's link, by group; links that were not saturated are missing.
        failed: why streams of a pair could not be opened.
        is_cut: whether the budget was used up before all was measured.
    """

    nic: float | None = None
    rounds: list[Round] = field(default_factory=list)
    uplinks: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    is_cut: bool = False


class Streams:
    """Streams between hosts; after the time limit, no more are started.

    Args:
        reached: the hosts.
        rtt_us: longest round trip between them.
        budget_s: time limit for all measurements.
        connections: connections per pair, because one stream may have its own limit.
        notify: called with the current step.
    """

    def __init__(
        self, reached: Reached, rtt_us: float, budget_s: float, connections: int, notify: Callable[[str], None]
    ) -> None:
        self._reached = reached
        self._rtt_s = rtt_us / 1e6
        self._end = time.monotonic() + budget_s
        self._connections = connections
        self._tell = notify
        self.found = Rates()

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return time.monotonic() >= self._end

    def measure(self, pairs: Sequence[Pair]) -> list[float]:
        """Returns the rates of streams from the first to the second host of each pair, all at once; 0 if one failed."""
        rate = self.found.nic or RATE_ASSUMED
        window = round(min(max(rate / 8 * (WINDOW_RTTS * self._rtt_s + WINDOW_S), WINDOW_BYTES_MIN), WINDOW_BYTES_MAX))
        requests: dict[int, dict[str, Any]] = {
            a: {
                "do": "open",
                "peer": [self._reached.sites[b].address, self._reached.hello[b]["listener"]],
                "window": window,
                "streams": self._connections,
                "warm_s": WARM_S,
                "seconds": SECONDS,
            }
            for a, b in pairs
        }
        opened = self._reached.ask(requests, OPEN_TIMEOUT_S)
        for a, b in pairs:
            if "error" in opened.get(a, {}):
                names = self._reached.sites[a].name, self._reached.sites[b].name
                self.found.failed.append(f"no stream from {names[0]} to {names[1]}: {opened[a]['error']}")
        ready = {a for a in opened if "error" not in opened[a]}
        told = self._reached.ask({a: {"do": "go", "seconds": WARM_S + SECONDS} for a in ready}, GO_TIMEOUT_S)
        return [float(told.get(a, {}).get("rate", 0.0)) for a, _ in pairs]

    def alone(self, pairs: Sequence[Pair]) -> None:
        """Measures the rate of a host's link: a few pairs, one after the other."""
        rates = []
        for a, b in pairs[:ALONE_PAIRS]:
            if self.is_over:
                self.found.is_cut = True
                break
            self._tell("measuring the link of a host")
            rates += [rate for rate in self.measure([(a, b)]) if rate]
        if rates:
            self.found.nic = round(statistics.median(rates))

    def all_at_once(self, hosts: Sequence[int], seed: int) -> None:
        """Measures all hosts at once, in rounds of pairs, until it is known which links are shared."""
        for pairs in contention.schedule(len(hosts), seed):
            numbered = [(hosts[a], hosts[b]) for a, b in pairs]
            if self.is_over:
                self.found.is_cut = True
                break
            self._tell(f"measuring all hosts at once, round {len(self.found.rounds) + 1}")
            measured = self._exchange(numbered)
            if contention.is_slow(self.found.rounds, measured):
                # A round that was slow by chance is unlikely to be slow again.
                again = {(a, b): rate for a, b, rate in self._exchange(numbered)}
                measured = [(a, b, max(rate, again.get((a, b), 0.0))) for a, b, rate in measured]
            self.found.rounds.append(measured)
            if contention.is_enough(self.found.rounds, len(hosts)):
                break

    def uplink(self, group: str, members: Sequence[int], others: Sequence[int]) -> None:
        """Measures the rate of a group's link: 1, 2, 4 and more streams out of it and into it, to saturation."""
        nic = self.found.nic
        if nic is None:
            return
        most = min(len(members), len(others))
        best: list[float] = []
        is_full = True
        for out in (True, False):
            count, carried = 1, 0.0
            while True:
                if self.is_over:
                    self.found.is_cut = True
                    return
                self._tell(f"measuring the link of {group}, {count} streams {'out' if out else 'in'}")
                pairs = list(zip(members[:count], others[:count], strict=True))
                total = sum(self.measure(pairs if out else [(b, a) for a, b in pairs]))
                knee = count > 1 and total < GROWTH * carried
                carried = max(carried, total)
                if knee or count == most:
                    break
                count = min(2 * count, most)
            best.append(carried)
            is_full = is_full and (carried < FULL * nic * min(count, most) or most == len(members))
        # With as many streams as hosts, the load can't increase any further.
        if is_full and min(best) > 0:
            self.found.uplinks[group] = round(_whole(min(best), nic))

    def _exchange(self, pairs: list[Pair]) -> Round:
        """Measures streams in both directions between each pair, all at once; the slower direction counts."""
        both = pairs + [(b, a) for a, b in pairs]
        rates = self.measure(both)
        measured = [(a, b, min(rates[place], rates[place + len(pairs)])) for place, (a, b) in enumerate(pairs)]
        # A pair without a stream gives no information on shared links.
        return [(a, b, rate) for a, b, rate in measured if rate > 0]


def _whole(carried: float, nic: float) -> float:
    """Rounds to a whole multiple of hosts' links, if the rate is close to one: the difference is measurement error."""
    count = round(carried / nic)
    return count * nic if count and abs(carried / nic - count) < WHOLE * count else carried
