"""Waiting by commands: after a moment of silence a person is told what for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# After so long without an answer, a person wants to know what the command is doing.
SILENCE_S = 2.0


def patiently(call: Callable[[float | None], T], what: str, timeout: float | None) -> T:
    """Calls with the time that it may take; says on stderr what it waits for, if that is long.

    Args:
        call: takes seconds or None, and raises `Timeout` when they are over.
        what: is waited for.
        timeout: seconds in all, None for no limit.
    """
    said = threading.Timer(SILENCE_S, click.echo, [f"waiting for {what}; Ctrl-C ends it"], {"err": True})
    said.daemon = True
    said.start()
    try:
        return call(timeout)
    finally:
        said.cancel()
