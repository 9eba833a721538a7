"""The timeout of calls that pass none: `default_timeout` and HOPLITE_TIMEOUT."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Client, InvalidArgument, Node, Ref, StoreFull, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_S = 0.05

# Calls that wait, and the error of each at its timeout.
WAITS: dict[str, tuple[Callable[[Client], object], type[Exception]]] = {
    "get": (lambda hp: hp.get("late/1"), Timeout),
    "get of several": (lambda hp: hp.get(["late/1", "late/2"]), Timeout),
    "get of a part": (lambda hp: hp.get("late/1", part=slice(0, 1)), Timeout),
    "get into memory": (lambda hp: hp.get("late/1", out=bytearray(8)), Timeout),
    "latest": (lambda hp: hp.latest("late/"), Timeout),
    "watch_locations": (lambda hp: next(hp.watch_locations("late/1")), Timeout),
    "put": (lambda hp: hp.put(bytes(600_000)), StoreFull),
    "put with retain": (lambda hp: hp.put(bytes(600_000), name="big/1", retain=1), StoreFull),
    "create": (lambda hp: hp.create(600_000, "bytes"), StoreFull),
    "inputs": (lambda hp: hp.reduce(["late/1"], timeout=None).inputs(), Timeout),
    "reduce": (lambda hp: hp.get(hp.reduce(["late/1"]), timeout=None), Timeout),
}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(capacity="1MiB") as node, node.client() as hp:
        hp.put(bytes(600_000), name="holder/1")
        yield node


@pytest.mark.parametrize("verb", WAITS)
def test_a_call_without_a_timeout_takes_that_of_its_client(node: Node, verb: str) -> None:
    call, error = WAITS[verb]
    with hoplite.connect(node.socket, default_timeout=LIMIT_S) as hp, pytest.raises(error):
        call(hp)


def test_a_wait_returns_what_is_ready_at_the_default_timeout(node: Node) -> None:
    with hoplite.connect(node.socket, default_timeout=LIMIT_S) as hp:
        assert hp.wait(["holder/1", "late/1"]) == ([Ref("holder/1")], [Ref("late/1")])


def test_the_asyncio_twins_take_the_default_timeout(node: Node) -> None:
    async def main() -> None:
        with hoplite.connect(node.socket, default_timeout=LIMIT_S) as hp:
            for call in (hp.get_async("late/1"), hp.latest_async("late/"), hp.put_async(bytes(600_000))):
                with pytest.raises((Timeout, StoreFull)):
                    await call

    asyncio.run(main())


def test_an_explicit_timeout_replaces_the_default(node: Node) -> None:
    with hoplite.connect(node.socket, default_timeout=1000) as hp, pytest.raises(Timeout, match="after 0 s"):
        hp.get("late/1", timeout=0)
    # With the default it would raise at once.
    with hoplite.connect(node.socket, default_timeout=0) as hp, node.client() as other:

        async def main() -> bytes:
            waiting = asyncio.create_task(hp.get_async("explicit/1", timeout=None))
            await asyncio.sleep(0)
            await other.put_async(b"here", name="explicit/1")
            return bytes(await waiting)

        assert asyncio.run(main()) == b"here"


def test_the_variable_sets_the_default_of_every_client(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_TIMEOUT", str(LIMIT_S))
    for hp in (hoplite.connect(node.socket), node.client(), hoplite.init(f"unix:{node.socket}")):
        with hp, pytest.raises(Timeout):
            hp.get("late/1")
    # The argument has priority.
    with hoplite.connect(node.socket, default_timeout=0) as hp, pytest.raises(Timeout, match="after 0 s"):
        hp.get("late/1")


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_an_invalid_variable_is_named_with_what_to_set(node: Node, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_TIMEOUT", text)
    with pytest.raises(InvalidArgument, match=r"^HOPLITE_TIMEOUT: .*(set|write) a number of seconds"):
        hoplite.connect(node.socket)


@pytest.mark.parametrize("seconds", ["soon", -1, float("nan"), True])
def test_an_invalid_argument_is_named(node: Node, seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="default_timeout"):
        hoplite.connect(node.socket, default_timeout=seconds)


def test_infinity_is_no_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPLITE_TIMEOUT", "inf")
    with hoplite.connect(node.socket) as hp:
        assert hp._options.timeout is None
