"""Waiting in commands: after two seconds, a line on stderr shows what the command waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A person expects a sign of life after this time.
QUIET_S = 2.0


def waiting_for(call: Callable[[float | None], T], what: str, timeout: float | None) -> T:
    """Makes a call with a timeout, and prints to stderr what it waits for if that takes long.

    Args:
        call: takes a timeout in seconds or None, and raises `Timeout` after it.
        what: what the call waits for, in words.
        timeout: seconds; None for no limit.
    """
    notice = threading.Timer(QUIET_S, click.echo, [f"waiting for {what}; press Ctrl-C to stop"], {"err": True})
    notice.daemon = True
    notice.start()
    try:
        return call(timeout)
    finally:
        notice.cancel()
