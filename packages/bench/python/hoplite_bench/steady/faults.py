"""Faults of a steady run: their kinds, when they begin, and how they end."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hoplite_bench.lab import Host

# How long each fault lasts, in seconds.
FAULTS = {"cut": 2.0, "kill": 1.0, "freeze": 2.0, "slow": 5.0}
TITLES = {
    "cut": "cut off",
    "kill": "worker killed",
    "freeze": "frozen",
    "slow": "slowed to a tenth of the rate",
}
# Shares of a run after which the faults begin, each on another host.
SHARES = (0.15, 0.30)
# Minimum number of steps before the first fault, to measure the undisturbed step.
STEPS_BEFORE = 5
# Rate of a slow host as a share of the others' rate.
SLOW_SHARE = 0.1


@dataclasses.dataclass
class Span:
    """A fault that was injected.

    Attributes:
        host: name of the host.
        step: number of finished steps when it began.
        begun: monotonic clock of the machine when it began.
        healed: monotonic clock when it ended; None while it lasts.
    """

    host: str
    step: int
    begun: float
    healed: float | None = None


def moments(steps: int) -> list[int]:
    """The steps after which faults begin, in a run of this many steps."""
    return [max(STEPS_BEFORE, round(share * steps)) for share in SHARES]


class Injector:
    """Injects one kind of fault into hosts, one after the other.

    Args:
        kind: a name in `FAULTS`, or "none".
        steps: number of steps of the run.
        victims: a host for each fault.
        rate: rate of a host's link, in bit/s.
        kill: kills the worker of a host and returns a function that starts it again.
    """

    def __init__(
        self,
        kind: str,
        steps: int,
        victims: Sequence[Host],
        rate: int,
        kill: Callable[[Host], Callable[[], None]],
    ) -> None:
        self._kind = kind
        self._due = [] if kind == "none" else list(zip(moments(steps), victims, strict=False))
        self._rate = rate
        self._kill = kill
        self._heal: Callable[[], None] | None = None
        self.spans: list[Span] = []

    @property
    def active(self) -> bool:
        """Whether a fault is active now."""
        return self._heal is not None

    def on_step(self, done: int) -> None:
        """Begins the next fault if it is due and none is active."""
        if not self._due or self.active or done < self._due[0][0]:
            return
        _, host = self._due.pop(0)
        self.spans.append(Span(host.name, done, time.monotonic()))
        self._heal = self._begin(host)

    def tick(self) -> float | None:
        """Ends the active fault if its time is over.

        Returns:
            Seconds until then; None if no fault is active.
        """
        if self._heal is None:
            return None
        span = self.spans[-1]
        left = span.begun + FAULTS[self._kind] - time.monotonic()
        if left > 0:
            return left
        self.heal()
        return None

    def heal(self) -> None:
        """Ends the active fault, if there is one."""
        if self._heal is not None:
            heal, self._heal = self._heal, None
            heal()
            self.spans[-1].healed = time.monotonic()

    def _begin(self, host: Host) -> Callable[[], None]:
        match self._kind:
            case "cut":
                host.cut()
                return host.heal
            case "kill":
                return self._kill(host)
            case "freeze":
                host.freeze()
                return host.thaw
            case "slow":
                host.slow(self._rate * SLOW_SHARE)
                return lambda: host.slow(None)
            case other:
                raise AssertionError(f"no fault is named {other}")
