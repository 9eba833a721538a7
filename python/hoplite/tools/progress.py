"""Progress of a long command on stderr: a bar on a terminal, otherwise a line from time to time. Knows no command.

A short command shows nothing. A thread of its own draws, so progress is visible while the caller's thread is blocked,
and an interrupt of that thread can't leave the terminal half drawn. Imports rich only to draw.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from hoplite.errors import HopliteError
from hoplite.tools.quantities import duration, write_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

# A person expects a sign of life after this time.
QUIET_S = 2.0

# Least time between two lines if stderr is not a terminal.
LINE_EVERY_S = 10.0
DRAW_EVERY_S = 0.1
POLL_EVERY_S = 0.5
BAR_WIDTH = 12

BYTES = "bytes"


class Progress:
    """Shows the progress of the work in its `with` block.

    Args:
        what: what the command does, in words.
        total: number of units of the whole work; None if it is not known.
        unit: `BYTES`, or the units in words, such as "rounds".
        poll: calls `update`; called from another thread while progress is shown. None if the caller's thread calls
            `update` or `advance`, or if nothing is known.
        console: output; stderr by default.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        unit: str = "",
        *,
        poll: Callable[[Progress], None] | None = None,
        console: Console | None = None,
    ) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._poll = poll
        self._console = console
        self._done = 0.0
        # Time and units of the first report, from which the rate is measured: earlier work may have been resumed.
        self._first: tuple[float, float] | None = None
        self._polled = 0.0
        self._begun = time.monotonic()
        self._ends: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def notify(self, what: str) -> None:
        """Shows the current step."""
        self._what = " ".join(what.split())

    def update(self, done: float, total: float | None = None, *, left_s: float | None = None) -> None:
        """Sets the number of finished units.

        Args:
            done: finished units.
            total: units of the whole work; None leaves it unchanged.
            left_s: estimated seconds left; None estimates them from the rate so far.
        """
        self._done = done
        if done and self._first is None:
            self._first = time.monotonic(), done
        self._total = self._total if total is None else total
        self._ends = None if left_s is None else time.monotonic() + left_s

    def advance(self, count: float = 1) -> None:
        """Adds finished units."""
        self.update(self._done + count)

    def say(self, text: str) -> None:
        """Prints a permanent message on one line, without markup."""
        self._output().print(" ".join(text.split()), markup=False, highlight=False, soft_wrap=True)

    def _output(self) -> Console:
        if self._console is None:
            from rich.console import Console

            self._console = Console(stderr=True)
        return self._console

    def _show(self) -> None:
        if self._ended.wait(QUIET_S):
            return
        console = self._output()
        if console.is_terminal and not console.is_dumb_terminal:
            self._draw(console)
            return
        shown = ""
        while True:
            numbers = self._numbers()
            text = f"{self._what}: {numbers}" if numbers else self._what
            if text != shown:
                shown = text
                self.say(text)
            if self._ended.wait(LINE_EVERY_S):
                return

    def _draw(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        bars = Progress(
            BarColumn(bar_width=BAR_WIDTH),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            auto_refresh=False,
            transient=True,
            # Results keep their way to a pipe or file; on the same terminal, they appear above the bar.
            redirect_stdout=sys.stdout.isatty(),
        )
        bar = bars.add_task("", total=None)
        with bars:
            while not self._ended.is_set():
                numbers = self._numbers() or duration(time.monotonic() - self._begun)
                # Numbers first: on a narrow terminal, the end is cut.
                text = f"{numbers}  {self._what}"
                bars.update(bar, completed=self._done, total=self._total or None, description=text)
                bars.refresh()
                self._ended.wait(DRAW_EVERY_S)

    def _numbers(self) -> str:
        """Formats the finished part and the time left; empty if neither is known."""
        now = time.monotonic()
        if self._poll is not None and now - self._polled >= POLL_EVERY_S:
            self._polled = now
            with contextlib.suppress(HopliteError, OSError):
                self._poll(self)
        begun, before = self._first or (now, self._done)
        # Units per second; 0 if not known yet.
        rate = (self._done - before) / (now - begun) if now > begun else 0.0
        parts = []
        if self._unit and (self._total is not None or self._done):
            is_size = self._unit == BYTES
            write = write_size if is_size else "{:.0f}".format
            whole = "" if self._total is None else f" of {write(self._total)}"
            parts.append(f"{write(self._done)}{whole}{'' if is_size else f' {self._unit}'}")
            if is_size and rate:
                parts.append(f"{write_size(rate)}/s")
        left_s = None if self._ends is None else max(0.0, self._ends - now)
        if left_s is None and self._total and rate > 0:
            left_s = max(self._total - self._done, 0.0) / rate
        if left_s is not None:
            parts.append(f"about {duration(left_s)} left")
        return ", ".join(parts)


def waiting_for(what: str, poll: Callable[[Progress], None] | None = None) -> Progress:
    """Shows that a command waits, and how to stop it; `poll` can report bytes."""
    return Progress(f"waiting for {what}; press Ctrl-C to stop", unit=BYTES, poll=poll)
