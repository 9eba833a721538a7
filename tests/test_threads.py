"""Threads: any number of them with one client or several, and signals during a wait."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contract import Crew
    from hoplite import Client

pytest_plugins = ["contract"]

SMALL, LARGE = 100, 50_000
THREADS = 8


def run_together(calls: list[Any]) -> None:
    """Runs each call in its own thread, and raises the first error."""
    for one in [Later(call) for call in calls]:
        one.result()


@pytest.mark.parametrize("clients", ["one", "many"])
def test_threads_put_and_get_different_objects(plain: Crew, clients: str) -> None:
    with contextlib.ExitStack() as stack:
        used = [plain.putter if clients == "one" else stack.enter_context(plain.another()) for _ in range(THREADS)]

        def one(thread: int) -> None:
            for turn in range(30):
                value = numbers(LARGE if turn % 10 == 0 else SMALL, seed=thread * 100 + turn)
                ref = used[thread].put(value, name=plain.name(f"{thread}/{turn}") if turn % 2 else None, timeout=SOON)
                same(plain.getter.get(ref, timeout=SOON), value)
                same(used[thread].get(ref, timeout=SOON), value)
                used[thread].delete(ref)

        run_together([lambda thread=thread: one(thread) for thread in range(THREADS)])


def test_threads_get_the_same_objects(plain: Crew) -> None:
    """All threads wait for each object before it is put, some with their own memory."""
    getters = [plain.getter, plain.reducer]

    def one(thread: int) -> None:
        for turn in range(20):
            out = np.zeros(LARGE, "float32") if thread % 4 == 0 else None
            got = getters[thread % 2].get(plain.name(turn), out=out, timeout=SOON)
            same(got, numbers(LARGE, seed=turn))

    def put() -> None:
        for turn in range(20):
            plain.putter.put(numbers(LARGE, seed=turn), name=plain.name(turn), timeout=SOON)

    run_together([*(lambda thread=thread: one(thread) for thread in range(THREADS)), put])


def test_one_of_several_threads_gets_a_name(plain: Crew) -> None:
    for turn in range(10):
        winners: list[int] = []

        def one(thread: int, turn: int = turn, winners: list[int] = winners) -> None:
            with contextlib.suppress(hoplite.NameTaken):
                plain.clients[thread % 3].put(numbers(SMALL, seed=thread), name=plain.name(turn))
                winners.append(thread)

        run_together([lambda thread=thread: one(thread) for thread in range(THREADS)])
        assert len(winners) == 1
        same(plain.getter.get(plain.name(turn), timeout=SOON), numbers(SMALL, seed=winners[0]))


@pytest.mark.parametrize("plain", ["attached", "cluster"], indirect=True)
def test_all_verbs_run_concurrently_for_a_second(plain: Crew) -> None:
    """Each thread checks every byte of its own objects and their sums, while other threads do the same."""
    end = time.monotonic() + 1.0

    def one(thread: int) -> None:
        chance = random.Random(thread)
        turn = 0
        while time.monotonic() < end:
            turn += 1
            putter, getter, reducer = (chance.choice(plain.clients) for _ in range(3))
            size = chance.choice([1, SMALL, 20_000])
            names = [plain.name(f"{thread}/{turn}-{number}") for number in range(3)]
            total = reducer.reduce(names, count=2)
            values = {name: numbers(size, seed=turn + place) for place, name in enumerate(names)}
            for name in chance.sample(names, 2):
                putter.put(values[name], name=name, timeout=SOON)
            folded = [str(ref) for ref in total.inputs(timeout=SOON)]
            same(getter.get(total, timeout=SOON), values[folded[0]] + values[folded[1]])
            assert set(reducer.wait(folded, timeout=SOON)[0]) == {hoplite.Ref(name) for name in folded}
            assert getter.locations(folded[0], timeout=SOON) != []
            got = getter.get(folded, copy=True, timeout=SOON)
            putter.delete([*folded, total])
            for value, name in zip(got, folded, strict=True):
                same(value, values[name])
        assert turn > 1

    run_together([lambda thread=thread: one(thread) for thread in range(4)])


@pytest.fixture
def alarm() -> Iterator[None]:
    """Restores the handler of SIGALRM."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("with_out", [False, True], ids=["view", "out"])
def test_a_signal_handler_can_put_the_awaited_object(plain: Crew, with_out: bool) -> None:
    """The handler runs during a get of the main thread, with the same client."""
    handled = []

    def handle(number: int, _frame: object) -> None:
        ref = plain.getter.put(numbers(SMALL))
        same(plain.getter.get(ref, timeout=SOON), numbers(SMALL))
        plain.getter.put(numbers(SMALL, seed=1), name=plain.name())
        handled.append(number)

    signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    out = np.zeros(SMALL, "float32") if with_out else None
    same(plain.getter.get(plain.name(), out=out, timeout=SOON), numbers(SMALL, seed=1))
    assert handled == [signal.SIGALRM]


def get_until_interrupted(client: Client, ref: str, out: object) -> None:
    """Gets an object that never exists, until a signal handler raises."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    main = threading.main_thread().ident
    assert main is not None

    def signal_when_it_waits() -> None:
        eventually(lambda: client.status()["waiting"] > 0)
        signal.pthread_kill(main, signal.SIGALRM)

    waits = Later(signal_when_it_waits)
    with pytest.raises(KeyboardInterrupt) as caught:
        client.get(ref, out=out, timeout=SOON)
    waits.result()
    # Although the exception, and with it the frames of the get, still exists.
    eventually(lambda: client.status()["waiting"] == 0)
    assert caught.value is not None


def test_a_waiting_thread_sleeps_until_the_reply(plain: Crew) -> None:
    """It does not wake up to check for signals, whose handlers run only on the main thread."""
    native: list[int] = []

    def get() -> np.ndarray[Any, Any]:
        native.append(threading.get_native_id())
        value: np.ndarray[Any, Any] = plain.getter.get(plain.name(), timeout=SOON)
        return value

    before = plain.getter.status()["waiting"]
    waiting = Later(get)
    eventually(lambda: plain.getter.status()["waiting"] > before)

    def sleeps() -> int:
        status = Path(f"/proc/self/task/{native[0]}/status").read_text()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    def is_asleep() -> bool:
        first = sleeps()
        time.sleep(0.2)
        return sleeps() == first

    eventually(is_asleep)
    plain.getter.put(numbers(SMALL), name=plain.name())
    same(waiting.result(), numbers(SMALL))


@pytest.mark.usefixtures("alarm")
def test_ctrl_c_cancels_a_get(plain: Crew) -> None:
    for out in (None, np.zeros(LARGE, "float32")):
        get_until_interrupted(plain.getter, plain.name(), out)
    plain.putter.put(numbers(LARGE), name=plain.name())
    same(plain.getter.get(plain.name(), timeout=SOON), numbers(LARGE))


@pytest.mark.usefixtures("alarm")
def test_ctrl_c_cancels_a_get_of_several(plain: Crew) -> None:
    plain.putter.put(numbers(LARGE), name=plain.name("there"))

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    for out in (None, [np.zeros(LARGE, "float32") for _ in range(3)]):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt) as caught:
            plain.getter.get([plain.name("there"), plain.name(1), plain.name(2)], out=out, timeout=SOON)
        eventually(lambda: plain.getter.status()["waiting"] == 0)
        assert caught.value is not None
