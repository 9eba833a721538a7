"""The asyncio verbs: cancellation at any moment leaves nothing behind, and loops and clients can be shared.

The contract cases test that they behave like the synchronous verbs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import logging
import random
import re
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from hoplite import Client, _loop, _waits, log, testing
from programs import descriptors
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from contract import Crew

pytest_plugins = ["contract"]

# Elements of float32: one object that is sent inside messages, and one in its own memory.
SMALL, LARGE = 100, 50_000


async def until(what: Callable[[], bool]) -> None:
    """Runs the loop until a condition holds."""
    async with asyncio.timeout(SOON):
        while not what():  # noqa: ASYNC110 - no event signals it
            await asyncio.sleep(0.005)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a pending task and checks that it ends with `CancelledError`."""
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def waits(client: Client) -> bool:
    return client.status()["waiting"] > 0


def is_idle(client: Client) -> bool:
    return not waits(client)


async def _iterate(client: Client, ref: str) -> None:
    async for _ in client.watch_locations_async(ref):
        pass


ABSENT: dict[str, Callable[[Client, str], Any]] = {
    "get": lambda client, name: client.get_async(name),
    "get with timeout": lambda client, name: client.get_async(name, timeout=SOON),
    "get of several": lambda client, name: client.get_async([name, f"{name}/2", f"{name}/3"]),
    "get into": lambda client, name: client.get_async(name, out=np.zeros(LARGE, "float32")),
    "get of several into": lambda client, name: client.get_async([name, f"{name}/2"], out=[bytearray(3), bytearray(4)]),
    "wait": lambda client, name: client.wait_async([name, f"{name}/2"]),
    "latest": lambda client, name: client.latest_async(f"{name}/"),
    "watch": lambda client, name: _iterate(client, name),
}


@pytest.mark.parametrize("verb", ABSENT.values(), ids=ABSENT.keys())
def test_cancelling_a_wait_for_a_missing_object_leaves_nothing(plain: Crew, verb: Any) -> None:  # noqa: ANN401 - a verb of ABSENT
    async def main() -> None:
        for client in (plain.getter, plain.putter):
            task = asyncio.ensure_future(verb(client, plain.name()))
            await until(functools.partial(waits, client))
            await cancelled(task)
            await until(functools.partial(is_idle, client))

    asyncio.run(main())
    # The client and the name are still usable.
    plain.putter.put(numbers(LARGE), name=plain.name())
    same(plain.getter.get(plain.name(), timeout=SOON), numbers(LARGE))


def test_cancelling_a_wait_for_a_reduce_leaves_nothing(plain: Crew) -> None:
    async def main() -> None:
        total = await plain.reducer.reduce_async([plain.name("never")])
        for verb in (total.inputs_async(), plain.getter.get_async(total)):
            await cancelled(await begun(verb))
        assert plain.reducer.status()["reduces"] == 1
        await plain.reducer.delete_async(total)

    async def begun(verb: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(verb)
        await until(lambda: waits(plain.reducer) or waits(plain.getter))
        return task

    asyncio.run(main())
    plain.settled()


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_cancelling_a_wait_for_capacity_leaves_nothing(how: str) -> None:
    value = numbers(5 << 20, "uint8")
    with testing.cluster(1, capacity="8MiB") as nodes:
        client = nodes[0].client() if how == "embedded" else hoplite.connect(f"unix:{nodes[0].socket}")
        full = client.put(value)
        before = client.status()["store"]["used"]

        async def main() -> None:
            for verb in (
                client.put_async(value, name="a/1"),
                client.create_async(5 << 20, "uint8", name="a/1"),
                client.put_async(value),
            ):
                task = asyncio.ensure_future(verb)
                await until(lambda: waits(client))
                await cancelled(task)
                await until(lambda: not waits(client))

        asyncio.run(main())
        assert client.status()["store"]["used"] == before
        client.delete(full)
        # Neither the capacity nor the name is taken.
        client.put(value, name="a/1", timeout=SOON)
        assert len(client.objects()) == 1


def test_a_put_cancelled_while_it_copies_leaves_no_object(plain: Crew) -> None:
    value = numbers(24 << 20, "uint8")

    async def main() -> None:
        for turn in range(12):
            name = plain.name() if turn % 2 else None
            task = asyncio.ensure_future(plain.putter.put_async(value, name=name))
            await asyncio.sleep(random.Random(turn).random() * 0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await plain.putter.delete_async(await task)
            await until(lambda: plain.putter.objects() == [])

    asyncio.run(main())
    eventually(lambda: plain.putter.status()["store"]["used"] == 0)


@pytest.mark.parametrize("plain", ["embedded", "attached"], indirect=True)
def test_a_put_whose_loop_ends_while_it_copies_leaves_no_object(plain: Crew) -> None:
    async def main(value: Any) -> asyncio.Future[hoplite.Ref]:  # noqa: ANN401 - an array
        task = asyncio.ensure_future(plain.putter.put_async(value))
        await until(lambda: plain.putter.status()["store"]["used"] > 0)
        return task

    # The writing thread has just started, or has just sealed.
    for size in (24 << 20, 100_000):
        for _ in range(5):
            task = asyncio.run(main(numbers(size, "uint8")))
            if not task.cancelled():
                # The put finished before its loop ended, and the caller has the ref.
                plain.putter.delete(task.result())
            eventually(lambda: plain.putter.objects() == [])


@pytest.mark.parametrize("plain", ["attached", "cluster"], indirect=True)
def test_a_cancelled_get_writes_nothing_more_into_out(plain: Crew) -> None:
    """The task is cancelled while the object arrives or is copied."""
    value = numbers(16 << 20, "uint8") | 1
    ref = plain.putter.put(value)
    out = np.zeros_like(value)

    async def main() -> None:
        for turn in range(12):
            task = asyncio.ensure_future(plain.getter.get_async(ref, out=out, timeout=SOON))
            await asyncio.sleep(random.Random(turn).random() * 0.01)
            task.cancel()
            try:
                await task
                same(out, value)
            except asyncio.CancelledError:
                pass
            out[:] = 0
            await asyncio.sleep(0.01)
            assert not out.any()

    asyncio.run(main())
    plain.settled()


def test_cancelling_after_the_reply_has_arrived_leaves_nothing(plain: Crew) -> None:
    """The loop is blocked until the reply has arrived, and the task is cancelled before it can process it."""
    client = plain.putter

    async def one(verb: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(verb)
        await asyncio.sleep(0)
        # Not asyncio.sleep: nothing else may run. A reply that came earlier is fine too.
        time.sleep(0.05)  # noqa: ASYNC251
        task.cancel()
        try:
            buffer = await task
            if isinstance(buffer, hoplite.Buffer):
                buffer.discard()
            elif isinstance(buffer, hoplite.Ref):
                await client.delete_async(buffer)
        except asyncio.CancelledError:
            pass

    async def main() -> None:
        held = await client.put_async(numbers(LARGE), name=plain.name("held"))
        await one(client.put_async(numbers(SMALL)))
        await one(client.put_async(numbers(SMALL), name=plain.name("small")))
        await one(client.reduce_async([plain.name("never")]))
        await one(client.reduce_async([plain.name("never")], name=plain.name("total")))
        await one(client.create_async(LARGE, name=plain.name("large")))
        for verb in (client.get_async(held), client.get_async([held, held]), client.wait_async([held])):
            await one(verb)
        with client.create(SMALL) as buffer:
            buffer[...] = 1
            await one(buffer.seal_async())
        await client.delete_async(held)

    asyncio.run(main())
    eventually(lambda: client.objects() == [] and client.status()["reduces"] == 0)
    assert client.status()["store"]["used"] == 0


@pytest.mark.parametrize(
    "place",
    [
        # Here a reply takes only a microsecond.
        "embedded",
        "attached",
    ],
)
def test_cancelling_while_the_reply_is_in_transit_leaves_nothing(place: str) -> None:
    with testing.cluster(3) as nodes:
        client = nodes[0].client() if place == "embedded" else hoplite.connect(f"unix:{nodes[0].socket}")

        async def main() -> None:
            for turn in range(600):
                verb = client.reduce_async(["never/1"]) if turn % 2 else client.put_async(b"x", name=f"{turn}/1")
                task = asyncio.ensure_future(verb)
                await asyncio.sleep(0)
                until = time.perf_counter() + random.Random(turn).random() * 3e-4
                while time.perf_counter() < until:
                    pass
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await client.delete_async(await task)

        asyncio.run(main())
        eventually(lambda: client.status()["objects"] + client.status()["reduces"] == 0)


def test_asyncio_timeouts_cancel_a_get(plain: Crew) -> None:
    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await plain.getter.get_async(plain.name())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(plain.getter.get_async([plain.name()]), 0.02)
        await until(lambda: not waits(plain.getter))
        await plain.putter.put_async(numbers(LARGE), name=plain.name())
        same(await asyncio.wait_for(plain.getter.get_async(plain.name()), SOON), numbers(LARGE))

    asyncio.run(main())


def test_a_failure_in_a_task_group_cancels_the_other_gets(plain: Crew) -> None:
    async def together() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(plain.getter.get_async(plain.name(number)))
            group.create_task(plain.getter.get_async(plain.name("short"), timeout=0.05))

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await together()
        assert isinstance(caught.value.exceptions[0], hoplite.Timeout)
        await until(lambda: not waits(plain.getter))

    asyncio.run(main())


@pytest.mark.parametrize("plain", ["attached"], indirect=True)
def test_ten_thousand_gets_at_once(plain: Crew) -> None:
    count = 10_000

    async def main() -> None:
        refs = [plain.putter.put(number.to_bytes(4, "big")) for number in range(0, count, 100)]
        late = [plain.name(number) for number in range(100)]
        wanted = [late[number // 100] if number % 100 == 0 else refs[number % 100] for number in range(count)]
        gets = [asyncio.ensure_future(plain.getter.get_async(ref, timeout=SOON)) for ref in wanted]
        await asyncio.sleep(0)
        for number, name in enumerate(late):
            await plain.putter.put_async(number, name=name)
        for number, value in enumerate(await asyncio.gather(*gets)):
            expected = number // 100 if number % 100 == 0 else (number % 100 * 100).to_bytes(4, "big")
            assert value == expected

    asyncio.run(main())


def test_two_loops_share_a_client(plain: Crew) -> None:
    """Each runs in its own thread and gets what the other one puts."""

    async def side(mine: str, other: str) -> None:
        async def one(number: int) -> None:
            await plain.putter.put_async(numbers(SMALL, seed=number), name=plain.name(f"{mine}{number}"))
            value = await plain.getter.get_async(plain.name(f"{other}{number}"), timeout=SOON)
            same(value, numbers(SMALL, seed=number))

        await asyncio.gather(*(one(number) for number in range(100)))

    sides = [Later(asyncio.run, side(*names)) for names in (("a", "b"), ("b", "a"))]
    for one in sides:
        one.result()


def test_consecutive_loops_use_one_client(plain: Crew) -> None:
    async def main(turn: int) -> None:
        get = asyncio.ensure_future(plain.getter.get_async(plain.name(turn), timeout=SOON))
        await until(lambda: waits(plain.getter))
        await plain.putter.put_async(turn, name=plain.name(turn))
        assert await get == turn

    for turn in range(5):
        asyncio.run(main(turn))


def test_a_loop_may_end_with_pending_requests(plain: Crew) -> None:
    """Its requests are cancelled, and replies that still arrive have no effect."""

    async def ends_at_once() -> None:
        for number in range(10):
            asyncio.ensure_future(plain.getter.get_async(plain.name(number)))  # noqa: RUF006 - on purpose
        await until(lambda: waits(plain.getter))

    asyncio.run(ends_at_once())
    plain.settled()
    # Without the cleanup of asyncio.run, the loop is closed before its tasks have ended.
    loop = asyncio.new_event_loop()
    task = loop.create_task(plain.getter.get_async(plain.name(1)))
    loop.run_until_complete(until(lambda: waits(plain.getter)))
    loop.close()
    plain.putter.put(b"1", name=plain.name(1))
    assert plain.getter.get(plain.name(1), timeout=SOON) == b"1"
    assert asyncio.run(plain.getter.get_async(plain.name(1), timeout=SOON)) == b"1"
    # asyncio logs a message when such a task is garbage-collected.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, loop


def test_a_coroutine_that_is_never_awaited_sends_no_request(plain: Crew) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        verbs: list[object] = [
            plain.getter.get_async(plain.name()),
            plain.getter.get_async([plain.name()], out=[bytearray(1)]),
            plain.getter.put_async(numbers(LARGE)),
            plain.getter.wait_async([plain.name()]),
            plain.getter.reduce_async([plain.name()]),
            plain.getter.create_async(LARGE),
            plain.getter.locations_async(plain.name()),
            plain.getter.watch_locations_async(plain.name()),
        ]
        verbs.clear()
        gc.collect()
    status = plain.getter.status()
    assert status["waiting"] == status["reduces"] == status["store"]["used"] == status["objects"] == 0


@pytest.mark.parametrize("plain", ["attached"], indirect=True)
def test_loops_leave_no_descriptors(plain: Crew) -> None:
    async def main() -> None:
        ref = await plain.putter.put_async(b"x")
        assert await plain.getter.get_async(ref, timeout=SOON) == b"x"
        with pytest.raises(hoplite.Timeout):
            await plain.getter.get_async(plain.name(), timeout=0.001)

    asyncio.run(main())
    gc.collect()
    before = descriptors()
    for _ in range(50):
        asyncio.run(main())
    gc.collect()
    assert descriptors() <= before


@pytest.mark.parametrize("plain", ["embedded", "attached"], indirect=True)
def test_a_loop_keeps_running_while_large_values_are_copied(plain: Crew) -> None:
    # Copying takes some 10 ms, so that even on a busy machine the loop runs during it.
    value = numbers(96 << 20, "uint8")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        counting = asyncio.ensure_future(count())
        ref = await plain.putter.put_async(value)
        put_turns = turns
        out = np.zeros_like(value)
        await plain.getter.get_async(ref, out=out, timeout=SOON)
        assert put_turns > 5
        assert turns > put_turns + 5
        same(out, value)
        await cancelled(counting)

    asyncio.run(main())


def test_a_long_wait_is_logged(plain: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Only waits without a timeout are logged, repeatedly and with the reason."""
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 0.05)

    async def main() -> None:
        silent = asyncio.ensure_future(plain.getter.get_async(plain.name("silent"), timeout=SOON))
        late = asyncio.ensure_future(plain.getter.get_async(plain.name("late")))
        into = asyncio.ensure_future(plain.getter.get_async(plain.name("into"), out=bytearray(1)))
        with caplog.at_level(logging.WARNING, "hoplite"):
            await until(lambda: len(caplog.records) >= 4)
            for name in ("late", "into", "silent"):
                await plain.putter.put_async(b"x", name=plain.name(name))
            assert await late == await into == await silent == b"x"

    asyncio.run(main())
    messages = [record.getMessage() for record in caplog.records]
    assert all(record.name == "hoplite" and record.levelno == logging.WARNING for record in caplog.records)
    both = f"still waiting for object {plain.name('late')} and 1 more after 0 s: no client has put it; "
    assert any(text.startswith(both) for text in messages)
    assert not any(plain.name("silent") in text for text in messages)


@pytest.mark.parametrize("plain", ["attached"], indirect=True)
def test_many_long_waits_take_one_line(
    plain: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 0.2)
    count = 2000

    async def main() -> None:
        gets = [asyncio.ensure_future(plain.getter.get_async(plain.name(number))) for number in range(count)]
        with caplog.at_level(logging.WARNING, "hoplite"):
            # The gets start one after another, so the first line may count only a few.
            await until(lambda: any(waits_in(record) > count // 2 for record in caplog.records))
        for get in gets:
            get.cancel()
        await asyncio.gather(*gets, return_exceptions=True)

    def waits_in(record: logging.LogRecord) -> int:
        found = re.search(
            r"still waiting for object .* and (\d+) more after \d+ s: no client has put it", record.getMessage()
        )
        return int(found[1]) if found else 0

    asyncio.run(main())
    assert len(caplog.records) < 20


def test_waits_that_start_shortly_after_another_share_a_log_line(
    plain: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 1.0)

    async def main() -> None:
        gets = []
        for number in range(3):
            gets.append(asyncio.ensure_future(plain.getter.get_async(plain.name(number))))
            # Later tasks of a loop start later, but within the interval of one log line.
            await asyncio.sleep(0)
        with caplog.at_level(logging.WARNING, "hoplite"):
            await until(lambda: caplog.records != [])
        for get in gets:
            get.cancel()
        await asyncio.gather(*gets, return_exceptions=True)

    asyncio.run(main())
    assert " and 2 more after " in caplog.records[0].getMessage()


def test_an_object_that_has_arrived_is_not_logged_as_missing(
    plain: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop is busy with other work and processes its replies late."""
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 0.5)
    names = [plain.name(number) for number in range(20)]

    def keep_busy() -> None:
        for name in names:
            plain.putter.put(b"x", name=name)
        eventually(lambda: plain.getter.status()["waiting"] == 0)
        time.sleep(2 * _loop.FIRST_WORD_AFTER_S)

    async def main() -> None:
        gets = [asyncio.ensure_future(plain.getter.get_async(name)) for name in names]
        await asyncio.sleep(0)
        keep_busy()
        assert await asyncio.gather(*gets) == [b"x"] * len(names)

    with caplog.at_level(logging.WARNING, "hoplite"):
        asyncio.run(main())
    assert caplog.records == []


@pytest.mark.long
def test_a_long_wait_of_a_thread_is_logged(plain: Crew, caplog: pytest.LogCaptureFixture) -> None:
    get = Later(plain.getter.get, plain.name())
    into = Later(plain.getter.get, plain.name(), out=bytearray(1))
    with caplog.at_level(logging.WARNING, "hoplite"):
        eventually(lambda: len(caplog.records) >= 2)
    plain.putter.put(b"x", name=plain.name())
    assert get.result() == into.result() == b"x"
    for record in caplog.records:
        # With `out=`, the call waits for the first bytes too.
        message = record.getMessage().replace("the first bytes of ", "object ")
        assert message == f"still waiting for object {plain.name()} after 10 s: no client has put it; {log.BOUNDS}"


def test_the_verbs_run_on_uvloop(plain: Crew) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main(turn: int) -> None:
        names = [plain.name(f"{turn}/{number}") for number in range(50)]
        gets = [asyncio.ensure_future(plain.getter.get_async(name, timeout=SOON)) for name in names]
        never = asyncio.ensure_future(plain.getter.get_async(plain.name("never")))
        into = asyncio.ensure_future(plain.getter.get_async(names[0], out=np.zeros(LARGE, "float32")))
        await until(lambda: waits(plain.getter))
        for number, name in enumerate(names):
            await plain.putter.put_async(numbers(SMALL if number else LARGE, seed=number), name=name)
        for number, value in enumerate(await asyncio.gather(*gets)):
            same(value, numbers(SMALL if number else LARGE, seed=number))
        same(await into, numbers(LARGE))
        await cancelled(never)

    for turn in range(2):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main(turn))
    plain.settled()


def test_waits_on_a_loop_start_no_threads(plain: Crew) -> None:
    """All verbs wait on one loop at the same time, without threads."""

    async def main() -> None:
        before = threading.active_count()
        tasks = [asyncio.ensure_future(verb(plain.getter, plain.name(text))) for text, verb in ABSENT.items()]
        await until(lambda: plain.getter.status()["waiting"] >= len(ABSENT))
        assert threading.active_count() == before
        for task in tasks:
            await cancelled(task)

    asyncio.run(main())


def test_a_process_can_receive_its_own_put_in_place() -> None:
    """One task of an attached process receives in place what another task of it puts."""
    with testing.cluster(1) as nodes, hoplite.connect(f"unix:{nodes[0].socket}") as client:

        async def main() -> None:
            out = np.zeros(LARGE, "float32")
            get = asyncio.ensure_future(client.get_async("late/1", out=out, timeout=SOON))
            await until(lambda: waits(client))
            await client.put_async(numbers(LARGE), name="late/1")
            same(await get, numbers(LARGE))

        asyncio.run(main())


def test_a_failure_in_a_list_ends_the_wait_for_the_others() -> None:
    """The failed ref comes after one that never arrives."""
    with testing.cluster(1) as nodes, nodes[0].client() as client:
        gone = client.put(b"x")
        client.delete(gone)
        with pytest.raises(hoplite.ObjectDeleted):
            client.get(["never/1", gone], timeout=SOON)
        with pytest.raises(hoplite.ObjectDeleted):
            asyncio.run(client.get_async(["never/1", gone], timeout=SOON))
        assert client.status()["waiting"] == 0


def test_a_finished_loop_that_waited_without_a_timeout_is_freed() -> None:
    with testing.cluster(2) as nodes:
        putter, getter = (node.client() for node in nodes)

        async def main() -> None:
            value = asyncio.ensure_future(getter.get_async(f"late/{turn}"))
            await asyncio.sleep(0.001)
            putter.put(b"x", name=f"late/{turn}")
            assert bytes(await value) == b"x"

        for turn in range(40):
            asyncio.run(main())
            if turn == 19:
                gc.collect()
                before = descriptors()
        gc.collect()
        assert descriptors() <= before + 3


BLOCKING: dict[str, Callable[[Client], object]] = {
    "get": lambda client: client.get("never/1", timeout=0.01),
    "several": lambda client: client.get(["never/1", "never/2"], timeout=0.01),
    "into": lambda client: client.get("never/1", out=bytearray(1), timeout=0.01),
    "latest": lambda client: client.latest("never/", timeout=0.01),
}
AWAITED: dict[str, Callable[[Client], Awaitable[object]]] = {
    "get": lambda client: client.get_async("never/1", timeout=0.01),
    "several": lambda client: client.get_async(["never/1", "never/2"], timeout=0.01),
    "into": lambda client: client.get_async("never/1", out=bytearray(1), timeout=0.01),
    "latest": lambda client: client.latest_async("never/", timeout=0.01),
}


@pytest.mark.parametrize("verb", BLOCKING)
def test_a_timeout_that_blocked_a_loop_recommends_the_async_verb(plain: Crew, verb: str) -> None:
    """Nothing else changes: in a notebook a loop always runs, and the call works as without one."""

    async def blocking() -> object:
        return BLOCKING[verb](plain.getter)

    async def awaited() -> object:
        return await AWAITED[verb](plain.getter)

    with pytest.raises(hoplite.Timeout) as blocked:
        asyncio.run(blocking())
    (note,) = blocked.value.__notes__
    assert "await the client's method with the suffix _async" in note
    with pytest.raises(hoplite.Timeout) as waited:
        asyncio.run(awaited())
    assert not hasattr(waited.value, "__notes__")
    with pytest.raises(hoplite.Timeout) as plainly:
        BLOCKING[verb](plain.getter)
    assert not hasattr(plainly.value, "__notes__")


def test_the_log_recommends_the_async_verb_if_a_wait_blocks_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        _waits.still_waiting("never/1", 10.0, "no client has put it")

    with caplog.at_level(logging.WARNING, logger="hoplite"):
        asyncio.run(main())
        _waits.still_waiting("never/2", 10.0, "no client has put it")
    lines = [record.getMessage() for record in caplog.records]
    assert ["_async" in line for line in lines] == [True, False], lines


@pytest.mark.parametrize("kind", [hoplite.Buffer, Client, hoplite.Ref])
def test_async_verbs_have_the_signatures_of_the_synchronous_ones(kind: type) -> None:
    twins = [name for name in dir(kind) if name.endswith("_async") and not name.startswith("_")]
    assert twins
    for name in twins:
        verb, twin = (inspect.signature(getattr(kind, each)) for each in (name.removesuffix("_async"), name))
        assert twin.parameters == verb.parameters, name
