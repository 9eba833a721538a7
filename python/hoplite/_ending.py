"""Signals that end this process: its nodes leave first. Does not know nodes."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# Python turns SIGINT into an exception, so the process ends normally.
ENDS = (signal.SIGTERM, signal.SIGHUP)

_leave: Callable[[], None] | None = None


def leave_first(leave: Callable[[], None]) -> None:
    """Makes SIGTERM and SIGHUP call a function before they end this process.

    Changes nothing for a signal that the program handles or ignores, nor outside the main thread, where Python sets
    no handlers.
    """
    global _leave
    _leave = leave
    if threading.current_thread() is threading.main_thread():
        for number in ENDS:
            if _is_default(number):
                signal.signal(number, _end)


def _is_default(number: signal.Signals) -> bool:
    """Whether a signal has no handler. `signal.getsignal` does not know handlers that native code has set."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return not any(int(fields[field], 16) >> (number - 1) & 1 for field in ("SigCgt", "SigIgn"))


def _end(number: int, _frame: FrameType | None) -> None:
    # From now on, a second signal ends the process immediately.
    _restore()
    try:
        if _leave is not None:
            _leave()
    finally:
        signal.raise_signal(number)


def _restore() -> None:
    for number in ENDS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


# The signals that a thread had blocked before its fork.
_blocked = threading.local()


def _before_fork() -> None:
    # Python forgets a signal that a handler received in the child before this module's turn.
    _blocked.signals = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.signals)


def _after_in_child() -> None:
    # The nodes are the parent's.
    _restore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_in_child)
