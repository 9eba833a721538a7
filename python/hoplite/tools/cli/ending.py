"""Orderly termination of long commands by signals."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end a command as Ctrl-C does, so that it first stops what it started.

    The exit code is 128 plus the number of the signal.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        # A second signal ends the process immediately.
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    # Leave signals that the user ignores, for example by nohup.
    mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
