"""Statistics of echoes for each pair of hosts: quantiles by direction, one time for both, and their reliability.

Identifies hosts by number; a missing time is None.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite_topology.matrix import SYMMETRIES

if TYPE_CHECKING:
    from collections.abc import Sequence

Times = list[list[float | None]]

# The share of echoes that were at most as long.
QUANTILES = {"min": 0.0, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
ESTIMATORS = ("p10", "p50", "min")
# Limits above which the figures are doubtful. In an idle lab, directions differ by 3 %, and the spread is 1.3.
DISAGREEMENT_MAX = 0.25
SPREAD_MAX = 3.0
DRIFT_MAX = 0.25
LOSS_MAX = 0.01


@dataclass
class Samples:
    """The measurements so far: a row for each sending host, and a column for each replying host.

    Attributes:
        count: number of hosts.
        asked: number of echoes sent.
        lost: number of those that did not return in time.
        late: number of replies that arrived after that, for all pairs.
        quantiles_us: quantiles by name; None where no echo arrived.
        again: (before, after) of pairs that were probed again at the end, in microseconds.
    """

    count: int
    asked: list[list[int]] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)
    late: int = 0
    quantiles_us: dict[str, Times] = field(default_factory=dict)
    again: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = self.asked or [[0] * self.count for _ in range(self.count)]
        self.lost = self.lost or [[0] * self.count for _ in range(self.count)]
        for name in QUANTILES:
            self.quantiles_us.setdefault(name, [[None] * self.count for _ in range(self.count)])

    def take(self, source: int, target: int, asked: int, answer: dict[str, Any]) -> None:
        """Records a host's measurement of another one; of two measurements, the one with more echoes stays."""
        self.late += answer["late"]
        if asked < self.asked[source][target]:
            return
        self.asked[source][target] = asked
        self.lost[source][target] = answer["lost"]
        times = sorted(answer["times_ns"])
        for name, part in QUANTILES.items():
            self.quantiles_us[name][source][target] = quantile_us(times, part)

    def has(self, host: int) -> bool:
        """Whether any echo arrived from or at a host."""
        times = self.quantiles_us["p10"]
        return any(times[host][other] is not None or times[other][host] is not None for other in range(self.count))

    def times_us(self, estimator: str, symmetric: str) -> Times:
        """One time for both directions of each pair; that of one direction if the other is missing."""
        directed = self.quantiles_us[estimator]
        times: Times = [[None] * self.count for _ in range(self.count)]
        for a in range(self.count):
            times[a][a] = 0.0
            for b in range(a):
                known = [time for time in (directed[a][b], directed[b][a]) if time is not None]
                if known:
                    times[a][b] = times[b][a] = round(SYMMETRIES[symmetric](known[0], known[-1]), 3)
        return times


def quantile_us(times_ns: Sequence[int], part: float) -> float | None:
    """A quantile of sorted times, in microseconds."""
    if not times_ns:
        return None
    return round(times_ns[min(len(times_ns) - 1, int(part * len(times_ns)))] / 1000, 3)


@dataclass(frozen=True)
class Quality:
    """The reliability of a probe.

    Attributes:
        disagreement: median relative difference between the directions of a pair; both measure the same round trip.
        spread: median of p90 divided by p10.
        loss: share of lost echoes.
        late: number of replies that arrived after their timeout.
        drift: median relative change of pairs that were probed again; None if there were none.
        pairs_missing: number of probed pairs of responding hosts without a time.
        warnings: what makes the figures doubtful; empty if nothing does.
    """

    disagreement: float
    spread: float
    loss: float
    late: int
    drift: float | None
    pairs_missing: int
    warnings: list[str]

    @property
    def is_doubtful(self) -> bool:
        """Whether times may reflect other work of the hosts instead of the network."""
        return self.disagreement > DISAGREEMENT_MAX or self.spread > SPREAD_MAX

    def words(self) -> str:
        """Formats the figures as a sentence."""
        said = (
            f"directions of a pair differ by {self.disagreement:.0%}, p90 is {self.spread:.1f} times p10, "
            f"{self.loss:.1%} of the echoes were lost"
        )
        return said + ("" if self.drift is None else f", and pairs that were probed again changed by {self.drift:.0%}")


def judge(samples: Samples, estimator: str, loads: Sequence[tuple[str, float, int]] = ()) -> Quality:
    """Rates the quality of a probe.

    Args:
        samples: the measurements.
        estimator: name of the quantile in use.
        loads: name, load average and number of cores of each host.
    """
    directed = samples.quantiles_us[estimator]
    hosts = [host for host in range(samples.count) if samples.has(host)]
    pairs = [(a, b) for a in hosts for b in hosts if a < b]
    differences, spreads = [], []
    missing = 0
    for a, b in pairs:
        there, back = directed[a][b], directed[b][a]
        missing += there is None and back is None and bool(samples.asked[a][b] or samples.asked[b][a])
        if there and back:
            differences.append(abs(there - back) / min(there, back))
        for one, other in ((a, b), (b, a)):
            low, high = samples.quantiles_us["p10"][one][other], samples.quantiles_us["p90"][one][other]
            if low and high:
                spreads.append(high / low)
    asked = sum(samples.asked[a][b] for a in hosts for b in hosts)
    lost = sum(samples.lost[a][b] for a in hosts for b in hosts)
    drifts = [abs(after - before) / min(before, after) for before, after in samples.again if before and after]
    quality = Quality(
        disagreement=round(statistics.median(differences), 4) if differences else 0.0,
        spread=round(statistics.median(spreads), 3) if spreads else 1.0,
        loss=round(lost / asked, 5) if asked else 0.0,
        late=samples.late,
        drift=round(statistics.median(drifts), 4) if drifts else None,
        pairs_missing=missing,
        warnings=[],
    )
    quality.warnings.extend(_warnings(quality, loads))
    return quality


def _warnings(quality: Quality, loads: Sequence[tuple[str, float, int]]) -> list[str]:
    said = []
    if quality.disagreement > DISAGREEMENT_MAX:
        said.append(
            f"the two directions of a pair differ by {quality.disagreement:.0%}, though both measure one round trip"
        )
    if quality.spread > SPREAD_MAX:
        said.append(f"echo times of a pair vary widely: p90 is {quality.spread:.1f} times p10")
    if quality.drift is not None and quality.drift > DRIFT_MAX:
        said.append(f"times changed by {quality.drift:.0%} while the probe ran")
    if quality.loss > LOSS_MAX:
        said.append(f"{quality.loss:.1%} of the echoes were lost")
    busy = [name for name, load, cores in loads if load > cores]
    if busy:
        said.append(f"{len(busy)} hosts had more running tasks than cores, such as {busy[0]}")
    if said:
        said.append("the hosts or the network were busy: probe again when they are idle, or with a larger --count")
    if quality.pairs_missing:
        said.append(f"{quality.pairs_missing} pairs have no time: a plan estimates it from paths through other hosts")
    return said
