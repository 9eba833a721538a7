"""Blocking calls of coroutines, in threads of their own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from pathlib import Path

import pytest

import hoplite
from hoplite._aside import in_own_thread
from support import SOON


def test_a_call_returns_its_result_or_raises_its_error() -> None:
    value = contextvars.ContextVar[int]("value")

    def divide(number: int) -> tuple[float, str]:
        return value.get() / number, threading.current_thread().name

    async def main() -> None:
        value.set(6)
        assert await in_own_thread(divide, 3) == (2.0, "hoplite-divide")
        with pytest.raises(ZeroDivisionError):
            await in_own_thread(divide, 0)

    asyncio.run(main())


def test_a_canceled_call_has_ended_when_it_raises() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert go_on.wait(SOON)
        ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(in_own_thread(call))
        await asyncio.to_thread(begun.wait, SOON)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_a_call_that_failed_keeps_none_of_its_arguments() -> None:
    class Large:
        pass

    def fail(_: Large) -> None:
        raise ValueError("failed")

    async def main() -> weakref.ref[Large]:
        large = Large()
        with pytest.raises(ValueError, match="failed"):
            await in_own_thread(fail, large)
        return weakref.ref(large)

    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()


def test_the_library_leaves_the_executors_of_loops_to_the_program() -> None:
    files = [*Path(hoplite.__file__).parent.rglob("*.py")]
    users = [
        file.name
        for file in files
        if any(f"{word}(" in file.read_text() for word in ("asyncio.to_thread", "run_in_executor"))
    ]
    assert len(files) > 100
    assert not users
