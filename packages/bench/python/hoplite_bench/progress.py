"""Progress of a run: the current step, the number of finished cells, and the estimated time left.

Does not depend on processes: the caller reports each turn when it has ended, and its expected time.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING

from hoplite.tools.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console

    from hoplite_bench.plan import Cell, Contender

# Weight of the initial pace of 1, in measured seconds: the first turns start processes.
TRUST_S = 20.0


class Forecast:
    """Estimates the time left: the expected time of each turn, scaled by the pace of each system so far.

    Args:
        turns: for each contender and cell, the expected seconds of one turn and the number of turns.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, turns: Mapping[tuple[Contender, Cell], tuple[float, int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._turns = dict(turns)
        self._clock = clock
        self._last = clock()
        self._expected: dict[str, float] = collections.defaultdict(float)
        self._taken: dict[str, float] = collections.defaultdict(float)

    def turned(self, contender: Contender, cell: Cell) -> None:
        """Records that a turn has ended and the next one begins."""
        now = self._clock()
        each, left = self._turns.get((contender, cell), (0.0, 0))
        if left:
            self._turns[contender, cell] = each, left - 1
            self._expected[contender.system] += each
            self._taken[contender.system] += now - self._last
        self._last = now

    def close(self, cell: Cell) -> None:
        """Records that a cell is done: a system that failed in it has no more turns there."""
        self._turns = {key: turns for key, turns in self._turns.items() if key[1] != cell}
        self._last = self._clock()

    def left_s(self) -> float:
        """The estimated number of seconds left."""
        return sum(
            each * left * (self._taken[one.system] + TRUST_S) / (self._expected[one.system] + TRUST_S)
            for (one, _), (each, left) in self._turns.items()
        )


class Watch(Progress):
    """Shows a run: the finished cells, and the time left by the forecast.

    Args:
        console: output; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        super().__init__("starting", unit="cells", console=console)
        self._forecast = Forecast({})
        self._closed = 0

    def begin(self, turns: Mapping[tuple[Contender, Cell], tuple[float, int]], cells: int) -> None:
        """Starts the forecast; `turns` as for `Forecast`."""
        self._forecast = Forecast(turns)
        self.update(0, cells, left_s=self._forecast.left_s())

    def turned(self, contender: Contender, cell: Cell) -> None:
        """Records that a turn has ended."""
        self._forecast.turned(contender, cell)
        self.update(self._closed, left_s=self._forecast.left_s())

    def close(self, cell: Cell) -> None:
        """Records that a cell is done."""
        self._forecast.close(cell)
        self._closed += 1
        self.update(self._closed, left_s=self._forecast.left_s())
