"""Offsets of the clocks of nodes, estimated from requests (Cristian, "Probabilistic clock synchronization", 1989).

A reply carries the node's time. The node read it between the request and the reply, so the midpoint of the two is at
most half the round trip away. The sample with the smallest error counts; its error grows with its age, as clocks drift.
"""

from __future__ import annotations

from typing import NamedTuple

# Largest drift between two clocks, in seconds per second: crystals differ by up to 100 ppm.
DRIFT = 1e-4


class Offset(NamedTuple):
    """How far the clock of a node is ahead of this process's clock.

    Attributes:
        seconds: seconds to subtract from the node's times; 0 if the error allows equal clocks, as hosts with NTP have.
        error: largest error of `seconds`, in seconds.
    """

    seconds: float
    error: float


class Clock:
    """The samples of one node's clock."""

    def __init__(self) -> None:
        self._measured = 0.0
        self._error = float("inf")
        self._at = 0.0

    def add(self, sent: float, received: float, remote: float) -> None:
        """Adds a request.

        Args:
            sent: time before the request, in Unix seconds of this process's clock.
            received: time after the reply, likewise.
            remote: time in the reply, in Unix seconds of the node's clock.
        """
        error = max(0.0, received - sent) / 2
        measured = remote - (sent + received) / 2
        aged = self._aged(received)
        # Samples that contradict each other: a clock was set.
        if error <= aged or abs(measured - self._measured) > error + aged:
            self._measured, self._error, self._at = measured, error, received

    def offset(self, now: float) -> Offset:
        """Returns the estimate.

        Args:
            now: Unix seconds of this process's clock.
        """
        error = self._aged(now)
        return Offset(0.0 if abs(self._measured) <= error else self._measured, error)

    def _aged(self, now: float) -> float:
        return self._error + DRIFT * abs(now - self._at)
