"""Blocking calls of coroutines, each in a thread of its own.

The executor of a loop, which `asyncio.to_thread` uses, belongs to the program: if it fills that with work of its own, a
call there never starts, and no timeout ends it. Does not know what the calls do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_own_thread(call: Callable[..., T], *args: Any) -> T:  # noqa: ANN401 - arguments of any call
    """Runs a call in a thread of its own and returns its result.

    Asyncio:
        If it is canceled, it waits for the end of the call before it raises: nothing of the call goes on after it.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    over = asyncio.Event()
    outcome: list[tuple[T, None] | tuple[None, BaseException]] = []

    def run() -> None:
        nonlocal args
        try:
            outcome.append((context.run(call, *args), None))
        except BaseException as error:  # noqa: BLE001 - raised in the coroutine
            outcome.append((None, error))
        # This thread may end after the coroutine.
        args = ()
        # A loop that was stopped and closed has no coroutine that waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(over.set)

    threading.Thread(target=run, name=f"hoplite-{getattr(call, '__name__', 'call')}").start()
    canceled: asyncio.CancelledError | None = None
    while not over.is_set():
        try:
            await over.wait()
        except asyncio.CancelledError as error:
            canceled = error
    result, failure = outcome.pop()
    try:
        if canceled is not None:
            raise canceled
        if failure is not None:
            raise failure
        return cast("T", result)
    finally:
        # No cycle of an error and its traceback: it would keep the arguments alive.
        del canceled, failure
