"""What echoes tell of each pair of hosts: quantiles by direction, one time for both, and how far to trust it.

Knows hosts by their number; a time that is missing is None.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hoplite_topology.matrix import SYMMETRIES

if TYPE_CHECKING:
    from collections.abc import Sequence

Times = list[list[float | None]]

# Which part of the echoes was at most as long.
QUANTILES = {"min": 0.0, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
ESTIMATORS = ("p10", "p50", "min")
# Above these the figures are doubted, in words. A quiet lab has directions 3 % apart and a spread of 1.3.
DISAGREEMENT_MAX = 0.25
SPREAD_MAX = 3.0
DRIFT_MAX = 0.25
LOSS_MAX = 0.01


@dataclass
class Samples:
    """What was measured so far, a row for each host that asked and a column for each that answered.

    Attributes:
        count: of hosts.
        asked: echoes that were asked for.
        lost: of these, the ones that didn't come in time.
        late: answers that came after that, of all pairs.
        quantiles_us: by name; None where no echo came.
        again: (before, after) of pairs that were asked a second time at the end, in microseconds.
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
        """Takes what a host said of another one; of two measurements the one of more echoes stays."""
        self.late += answer["late"]
        if asked < self.asked[source][target]:
            return
        self.asked[source][target] = asked
        self.lost[source][target] = answer["lost"]
        times = sorted(answer["times_ns"])
        for name, part in QUANTILES.items():
            self.quantiles_us[name][source][target] = quantile_us(times, part)

    def has(self, host: int) -> bool:
        """Whether any echo came from or to a host."""
        times = self.quantiles_us["p10"]
        return any(times[host][other] is not None or times[other][host] is not None for other in range(self.count))

    def times_us(self, estimator: str, symmetric: str) -> Times:
        """One time for both directions of each pair; that of one direction where the other is missing."""
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
    """The time that so large a part of sorted times doesn't pass, in microseconds."""
    if not times_ns:
        return None
    return round(times_ns[min(len(times_ns) - 1, int(part * len(times_ns)))] / 1000, 3)


@dataclass(frozen=True)
class Quality:
    """How far to trust a probe.

    Attributes:
        disagreement: median part by which the directions of a pair differ; both measure the same way there and back.
        spread: median of how many times p10 is in p90.
        loss: part of the echoes that were lost.
        late: answers that came when they were given up.
        drift: median part by which pairs had changed when they were asked again; None if none was.
        pairs_missing: of hosts that answer, asked and without a time.
        warnings: what makes the figures doubtful, in words; none if nothing does.
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
        """Whether times may tell of other work of hosts rather than of ways between them."""
        return self.disagreement > DISAGREEMENT_MAX or self.spread > SPREAD_MAX

    def words(self) -> str:
        """The figures in a sentence."""
        said = (
            f"directions of a pair differ by {self.disagreement:.0%}, p90 is {self.spread:.1f} times p10, "
            f"{self.loss:.1%} of the echoes were lost"
        )
        return said + ("" if self.drift is None else f", pairs that were asked again had changed by {self.drift:.0%}")


def judge(samples: Samples, estimator: str, loads: Sequence[tuple[str, float, int]] = ()) -> Quality:
    """Says how good a probe is.

    Args:
        samples: what was measured.
        estimator: which quantile is used.
        loads: name, load average and count of cores of each host.
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
        said.append(f"the two directions of a pair differ by {quality.disagreement:.0%}, though they are one way")
    if quality.spread > SPREAD_MAX:
        said.append(f"echoes of a pair are spread: p90 is {quality.spread:.1f} times p10")
    if quality.drift is not None and quality.drift > DRIFT_MAX:
        said.append(f"times changed by {quality.drift:.0%} while the probe ran")
    if quality.loss > LOSS_MAX:
        said.append(f"{quality.loss:.1%} of the echoes were lost")
    busy = [name for name, load, cores in loads if load > cores]
    if busy:
        said.append(f"{len(busy)} hosts had more to run than cores, {busy[0]} among them")
    if said:
        said.append("the hosts or the network were busy: probe again when they are quiet, or with a larger --count")
    if quality.pairs_missing:
        said.append(
            f"{quality.pairs_missing} pairs have no time: an order is planned by the way round over other hosts"
        )
    return said
