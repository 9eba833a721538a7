"""Progress of a probe on stderr: a bar on a terminal, otherwise a few lines. Independent of hosts."""

from __future__ import annotations

import time
from typing import Self

from rich import progress as bars
from rich.console import Console

from hoplite.tools.quantities import duration

# Interval between lines if stderr is not a terminal.
LINE_EVERY_S = 5.0


class Progress:
    """Shows the number of finished rounds.

    Args:
        console: output; stderr by default.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._bars = bars.Progress(
            bars.BarColumn(bar_width=20),
            bars.TextColumn("{task.completed:.0f}/{task.total:.0f} rounds", markup=False),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.description}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._bar = self._bars.add_task("", total=1)
        self._begun = self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """Prints a permanent message on one line, without markup."""
        self.console.print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)

    def notify(self, text: str) -> None:
        """Shows the current step."""
        self._bars.update(self._bar, description=text)

    def done(self, at: int, count: int) -> None:
        """Shows that `at` of `count` rounds are done."""
        self._bars.update(self._bar, completed=at, total=count)
        now = time.monotonic()
        if not self.console.is_terminal and now - self._said >= LINE_EVERY_S and at < count:
            self._said = now
            left_s = (now - self._begun) / at * (count - at)
            self.say(f"{at}/{count} rounds, about {duration(left_s)} left")
