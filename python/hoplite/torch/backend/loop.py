"""The event loop in which a process runs asynchronous operations, and the two ways to wait for a client's verbs.

Each algorithm is written once, as a coroutine that calls the client through a `Run`. In a thread of the caller the
verbs block and the coroutine never suspends; in the loop their asyncio twins are awaited. Does not know tensors or
groups.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    import hoplite

# Timeout of waits in the background, longer than any program: a wait without one would be logged.
FOREVER_S = 1e8

T = TypeVar("T")


class Run(Protocol):
    """Calls a verb of the client, such as `await run("get", name, timeout=5)`."""

    async def __call__(self, verb: str, *args: Any, **options: Any) -> Any:
        """Calls the verb and waits for its result."""


def in_thread(client: hoplite.Client) -> Run:
    """Returns a `Run` that blocks the calling thread."""

    async def run(verb: str, *args: Any, **options: Any) -> Any:
        return getattr(client, verb)(*args, **options)

    return run


def in_loop(client: hoplite.Client) -> Run:
    """Returns a `Run` for coroutines in the loop."""

    async def run(verb: str, *args: Any, **options: Any) -> Any:
        return await getattr(client, f"{verb}_async")(*args, **options)

    return run


def finish(steps: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits only with `in_thread`."""
    try:
        steps.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine was suspended")


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pid = 0


def submit(steps: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts a coroutine in the loop of this process. A child made by fork starts a loop of its own."""
    global _loop, _pid
    with _lock:
        if _loop is None or _pid != os.getpid():
            _loop, _pid = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="hoplite-torch", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(steps, _loop)
