"""What people see while a run measures: what runs now, how many cells are done, and about how long it will take.

Knows no process: it is told of each turn when it has ended, and how long that was thought to take.
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

# A pace of 1 counts as much as so many seconds that were measured: the first turns start processes.
TRUST_S = 20.0


class Forecast:
    """How long what is left will take: what was expected of it, at the pace that each system has shown so far.

    Args:
        turns: of each contender in each cell, the expected seconds of one turn and how many turns it has.
        clock: seconds of a clock that never goes back.
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
        """A turn has ended, and the next one begins."""
        now = self._clock()
        each, left = self._turns.get((contender, cell), (0.0, 0))
        if left:
            self._turns[contender, cell] = each, left - 1
            self._expected[contender.system] += each
            self._taken[contender.system] += now - self._last
        self._last = now

    def close(self, cell: Cell) -> None:
        """A cell is done: a system that failed in it has no more turns there."""
        self._turns = {key: turns for key, turns in self._turns.items() if key[1] != cell}
        self._last = self._clock()

    def left_s(self) -> float:
        """About how many seconds are left."""
        return sum(
            each * left * (self._taken[one.system] + TRUST_S) / (self._expected[one.system] + TRUST_S)
            for (one, _), (each, left) in self._turns.items()
        )


class Watch:
    """Shows a run on stderr: on a terminal a bar, else a line for each cell that is done.

    Args:
        console: where to; stderr if it is not said.
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
        """Says something that stays; as it is, but on one line."""
        self.console.print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)

    def tell(self, text: str) -> None:
        """What runs now."""
        self._progress.update(self._bar, description=text)

    def begin(self, turns: Mapping[tuple[Contender, Cell], tuple[float, int]], cells: int) -> None:
        """Measuring begins; `turns` as of `Forecast`."""
        self._cells = cells
        self._forecast = Forecast(turns)
        self._began = time.monotonic()
        self._show()

    def turned(self, contender: Contender, cell: Cell) -> None:
        """A turn has ended."""
        self._forecast.turned(contender, cell)
        self._show()

    def close(self, cell: Cell) -> None:
        """A cell is done."""
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
            # A bar of nothing to do is full.
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
