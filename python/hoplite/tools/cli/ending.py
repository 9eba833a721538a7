"""How a command that takes long ends by a signal."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


@contextlib.contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM and a lost terminal end a command as Ctrl-C does: what it has started is ended first.

    The command ends by 128 and the number of the signal.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        # A second one ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    # A user who has a signal ignored, as by nohup, wants the run to go on.
    mine = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
