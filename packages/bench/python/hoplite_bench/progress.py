"""Progress display of a run: the current step, the number of finished cells, and the estimated time left.

Does not depend on processes: the caller reports each turn when it has ended, and its expected time.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from hoplite.tools.quantities import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


class Watch:
    """Shows a run on stderr: a progress bar on a terminal, otherwise one line per finished cell.

    Args:
        console: output; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.fields[done]}/{task.fields[cells]} cells", markup=False),
            _TimeLeft(),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None, done=0, cells="?", ends=None)
        self._forecast = Forecast({})
        self._cells = 0
        self._done = 0
        self._began = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints a permanent message on one line, without markup."""
        self.console.print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)

    def notify(self, text: str) -> None:
        """Shows the current step."""
        self._progress.update(self._bar, description=text)

    def begin(self, turns: Mapping[tuple[Contender, Cell], tuple[float, int]], cells: int) -> None:
        """Starts the display; `turns` as for `Forecast`."""
        self._cells = cells
        self._forecast = Forecast(turns)
        self._began = time.monotonic()
        self._show()

    def turned(self, contender: Contender, cell: Cell) -> None:
        """Records that a turn has ended."""
        self._forecast.turned(contender, cell)
        self._show()

    def close(self, cell: Cell) -> None:
        """Records that a cell is done."""
        self._forecast.close(cell)
        self._done += 1
        self._show()
        if not self.console.is_terminal:
            left = duration(self._forecast.left_s())
            self.say(f"{self._done}/{self._cells} cells, about {left} left: {cell} is done")

    def _show(self) -> None:
        left_s = self._forecast.left_s()
        now = time.monotonic()
        total = now - self._began + left_s
        self._progress.update(
            self._bar,
            completed=now - self._began,
            # A bar without work is full.
            total=total or 1.0,
            done=self._done,
            cells=self._cells,
            ends=now + left_s,
        )


class _TimeLeft(ProgressColumn):
    """Counts down between one forecast and the next."""

    def render(self, task: Task) -> Text:
        ends = task.fields["ends"]
        return Text("" if ends is None else f"{duration(max(0.0, ends - time.monotonic()))} left")
