"""`as_completed`: each object when it is ready, with one request for each."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

import pytest

import hoplite
from support import SOON, Later, eventually, numbers

if TYPE_CHECKING:
    from contract import Crew

pytest_plugins = ["contract"]

SMALL, LARGE = 10, 50_000
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])


@SIZES
def test_refs_come_in_the_order_in_which_they_are_ready(plain: Crew, size: int) -> None:
    names = [plain.name(number) for number in range(4)]
    arriving = plain.getter.as_completed(names, timeout=SOON)
    for number in (3, 0, 2, 1):
        plain.putter.put(numbers(size), name=names[number])
        assert str(next(arriving)) == names[number]
    assert list(arriving) == []


@SIZES
def test_loop_gets_refs_while_others_are_missing(plain: Crew, size: int) -> None:
    async def steps() -> None:
        names = [plain.name(number) for number in range(3)]
        arriving = plain.getter.as_completed_async(names, timeout=SOON)
        for number in (1, 0, 2):
            soon = asyncio.ensure_future(anext(arriving))
            await plain.putter.put_async(numbers(size), name=names[number])
            assert str(await soon) == names[number]
        assert [ref async for ref in arriving] == []

    asyncio.run(steps())


def test_many_ready_refs_each_come_once(plain: Crew) -> None:
    refs = [plain.putter.put(number) for number in range(500)]
    assert sorted(plain.getter.get(ref) for ref in plain.getter.as_completed(refs, timeout=SOON)) == list(range(500))


def test_ready_refs_come_before_the_timeout_of_the_others(plain: Crew) -> None:
    names = [plain.name(number) for number in range(3)]
    plain.putter.put(b"here", name=names[1])
    for timeout in (0, 0.2):
        arriving = plain.getter.as_completed(names, timeout=timeout)
        assert str(next(arriving)) == names[1]
        with pytest.raises(
            hoplite.Timeout, match=re.escape(f"2 of 3 objects, including {names[0]}: no client has put it")
        ):
            next(arriving)


def test_loop_gets_a_timeout_that_names_a_missing_object(plain: Crew) -> None:
    async def steps() -> None:
        name = plain.name(1)
        with pytest.raises(hoplite.Timeout, match=re.escape(f"object {name}: no client has put it")):
            await anext(plain.getter.as_completed_async([name], timeout=0.1))

    asyncio.run(steps())


def test_client_s_default_timeout_applies(plain: Crew) -> None:
    with plain.nodes[0].client(default_timeout=0.1) as client, pytest.raises(hoplite.Timeout):
        next(client.as_completed([plain.name(1)]))


def test_lost_and_deleted_objects_are_ready(plain: Crew) -> None:
    lost, kept = plain.name(1), plain.name(2)
    with plain.another() as producer:
        producer.reserve(name=lost)
        plain.putter.put(b"kept", name=kept)
        arriving = plain.getter.as_completed([lost, kept], timeout=SOON)
        assert str(next(arriving)) == kept
        rest = Later(next, arriving)
    assert str(rest.result()) == lost
    with pytest.raises(hoplite.ObjectLost):
        plain.getter.get(lost, timeout=SOON)


def test_closing_it_early_ends_the_waits(plain: Crew) -> None:
    names = [plain.name(number) for number in range(5)]
    plain.putter.put(b"here", name=names[0])
    before = plain.getter.status()["waiting"]
    arriving = plain.getter.as_completed(names, timeout=SOON)
    assert str(next(arriving)) == names[0]
    assert plain.getter.status()["waiting"] > before
    arriving.close()
    eventually(lambda: plain.getter.status()["waiting"] == before)


def test_leaving_a_loop_early_ends_the_waits(plain: Crew) -> None:
    async def steps() -> None:
        names = [plain.name(number) for number in range(5)]
        plain.putter.put(b"here", name=names[0])
        before = plain.getter.status()["waiting"]
        async with contextlib.aclosing(plain.getter.as_completed_async(names, timeout=SOON)) as arriving:
            async for ref in arriving:
                assert str(ref) == names[0]
                break
        eventually(lambda: plain.getter.status()["waiting"] == before)

    asyncio.run(steps())


def test_bad_refs_are_rejected_at_the_call(plain: Crew) -> None:
    with pytest.raises(hoplite.InvalidArgument, match="listed twice"):
        plain.getter.as_completed(["a/1", "a/1"])
    with pytest.raises(hoplite.InvalidArgument):
        plain.getter.as_completed_async("a/1")
    assert list(plain.getter.as_completed([])) == []
