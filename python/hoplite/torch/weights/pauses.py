"""Pauses of the cyclic garbage collector, while thousands of small objects are created that have no cycles.

A collection of all generations takes about 100 ms in a process that has imported torch, longer than all work for 5000
tensors. Without a pause, every second fetch of such a model would cause one.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses the collector for a short block. Other threads, and hooks of a module in it, find it paused."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
