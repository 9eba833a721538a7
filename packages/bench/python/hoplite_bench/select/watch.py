"""Detects that a plan no longer fits: operations take longer than predicted, or the environment is another.

Pure. Ratios of observed to predicted times are averaged with exponentially decreasing weights, in logarithms, so that
half the time weighs as much as double. One slow operation does not make a plan stale.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hoplite_bench.select.estimates import Estimate
from hoplite_bench.select.model import Curve

if TYPE_CHECKING:
    from hoplite_bench.select.plan import Plan

# Weight of the newest observation.
WEIGHT = 0.1
# A plan is stale if an operation takes longer by more than this share, after this many observations. One that is faster
# than predicted is no loss: a program rarely has the load of the measurement.
DRIFT = 0.25
COUNT_MIN = 20


class Watch:
    """Compares the times of operations with those of a plan.

    Args:
        plan: the applied plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._curves: dict[tuple[str, str, str], Curve] = {}
        # The mean logarithm of the ratio, and the number of observations.
        self._drifts: dict[str, tuple[float, int]] = {}

    def predicted(self, op: str, nbytes: int) -> float:
        """The plan's prediction for the chosen library, in seconds.

        Raises:
            InvalidArgument: the plan has no rule for the operation.
        """
        rule = self._plan.rule(op, nbytes)
        which = op, rule.system, rule.variant
        if which not in self._curves:
            points = {
                one.nbytes: Estimate(one.seconds, one.spread or 0.0, 1)
                for one in self._plan.candidates
                if (one.op, one.library, one.variant) == which and one.seconds is not None
            }
            self._curves[which] = Curve(points or {nbytes: Estimate(rule.seconds, 0.0, 1)})
        return self._curves[which].seconds(nbytes)

    def observe(self, op: str, nbytes: int, seconds: float) -> None:
        """Adds the time of one operation.

        Args:
            op: an operation of the plan.
            nbytes: size of each rank's array in bytes.
            seconds: time from the last rank's call to the end.
        """
        expected = self.predicted(op, nbytes)
        if seconds <= 0 or expected <= 0:
            return
        mean, count = self._drifts.get(op, (0.0, 0))
        # The first observations have equal weights.
        weight = max(WEIGHT, 1 / (count + 1))
        self._drifts[op] = (mean + weight * (math.log(seconds / expected) - mean), count + 1)

    def stale(self, fingerprint: str = "") -> str:
        """Returns why the plan no longer fits; empty if it does.

        Args:
            fingerprint: fingerprint of the present environment; empty if it was not determined.
        """
        if fingerprint and fingerprint != self._plan.fingerprint:
            return "the environment is not that of the plan"
        for op, (mean, count) in self._drifts.items():
            if count >= COUNT_MIN and mean > math.log(1 + DRIFT):
                return f"{op} takes {math.exp(mean):.2f} times the predicted time"
        return ""
