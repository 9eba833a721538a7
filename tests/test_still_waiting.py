"""The log lines of calls that wait long without a timeout: what is missing, and what bounds the wait."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

import hoplite
from commands import run
from hoplite import Client, Node, Timeout, _loop, log
from hoplite.tools.doctor import cluster
from support import Later, eventually
from test_log import logged_while

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

FULL = (
    r"the store, with a capacity of 1048576 bytes, can't fit 600000 bytes: .*the largest are holder/1 of 600000 bytes"
)
NOT_PUT = "no client has put"

# Calls that wait, by name: the call, its asyncio twin, and what its line states.
WAITS: dict[str, tuple[Callable[[Client], object], Callable[[Client], Coroutine[Any, Any, object]], str]] = {
    "get": (lambda hp: hp.get("late/1"), lambda hp: hp.get_async("late/1"), f"object late/1 .*: {NOT_PUT} it"),
    "get of a part": (
        lambda hp: hp.get("late/1", part=slice(0, 1)),
        lambda hp: hp.get_async("late/1", part=slice(0, 1)),
        f"a part of object late/1 .*: {NOT_PUT} it",
    ),
    "put": (lambda hp: hp.put(bytes(600_000)), lambda hp: hp.put_async(bytes(600_000)), f"memory for .*: {FULL}"),
    "put with replicas": (
        lambda hp: hp.put(bytes(600_000), name="big/1", replicas=2),
        lambda hp: hp.put_async(bytes(600_000), name="big/1", replicas=2),
        f"memory for big/1 .*: {FULL}",
    ),
    "create": (
        lambda hp: hp.create(600_000, "bytes", name="big/2"),
        lambda hp: hp.create_async(600_000, "bytes", name="big/2"),
        f"memory for big/2 .*: {FULL}",
    ),
    "wait": (
        lambda hp: hp.wait(["late/1", "late/2", "holder/1"]),
        lambda hp: hp.wait_async(["late/1", "late/2", "holder/1"]),
        "2 of the objects late/1, late/2 .*: no node has a complete copy",
    ),
    "latest": (
        lambda hp: hp.latest("late/", after=3),
        lambda hp: hp.latest_async("late/", after=3),
        f'a name under "late/" newer than 3 .*: {NOT_PUT} one',
    ),
    "inputs": (
        lambda hp: hp.reduce(["late/1"], name="sum/1").inputs(),
        lambda hp: hp.reduce(["late/1"], name="sum/2").inputs_async(),
        r"the inputs of sum/\d .*late/1",
    ),
    "watch_locations": (
        lambda hp: next(hp.watch_locations("late/1")),
        lambda hp: anext(hp.watch_locations_async("late/1")),  # type: ignore[arg-type]
        "a change of the holders of late/1 .*: they have not changed",
    ),
}


@pytest.fixture
def node() -> Iterator[Node]:
    with Node(capacity="1MiB") as node, node.client() as hp:
        hp.put(bytes(600_000), name="holder/1")
        yield node


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "hoplite"]


@pytest.mark.parametrize("verb", WAITS)
def test_an_asyncio_call_without_a_timeout_logs_what_is_missing(
    node: Node, verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 0.05)
    call, expected = WAITS[verb][1:]

    async def main() -> None:
        with hoplite.connect(node.socket) as hp:
            waiting = asyncio.ensure_future(call(hp))
            while not lines(caplog):  # noqa: ASYNC110 - the logger sets no event
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    with caplog.at_level(logging.WARNING, "hoplite"):
        asyncio.run(main())
    assert re.match(f"still waiting for {expected}", lines(caplog)[0])
    assert lines(caplog)[0].endswith(f"; {log.BOUNDS}")
    assert "timeout=" in log.BOUNDS
    assert "HOPLITE_TIMEOUT" in log.BOUNDS


@pytest.mark.parametrize("verb", ["get", "put", "put with replicas", "latest"])
def test_a_call_with_a_timeout_logs_nothing(
    node: Node, verb: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_loop, "FIRST_WORD_AFTER_S", 0.05)

    async def main() -> None:
        with hoplite.connect(node.socket, default_timeout=0.3) as hp:
            await asyncio.gather(WAITS[verb][1](hp), return_exceptions=True)

    with caplog.at_level(logging.WARNING, "hoplite"):
        asyncio.run(main())
    assert lines(caplog) == []


@pytest.mark.long
def test_a_thread_without_a_timeout_logs_what_is_missing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hoplite"), hoplite.connect(node.socket) as hp:
        calls = [Later(call, hp) for call, _, _ in WAITS.values()]
        eventually(lambda: len(lines(caplog)) >= len(calls))
    for _, _, expected in WAITS.values():
        assert any(re.match(f"still waiting for {expected}", line) for line in lines(caplog)), expected


def test_a_put_that_waits_for_memory_is_seen_by_every_tool(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is 57 % full."""
    monkeypatch.setattr(cluster, "FULL_AFTER_S", 1.0)
    with hoplite.connect(node.socket) as writer, node.client() as hp:
        put = Later(writer.put, bytes(600_000), name="big/1")

        def described() -> bool:
            waits = hp.inspect("activity")["waits"]
            return bool(waits) and waits[0]["state"] is not None

        eventually(described)
        (wait,) = hp.inspect("activity")["waits"]
        assert (wait["verb"], wait["what"]) == ("create", "memory for big/1")
        assert re.match(FULL, wait["state"] or "")
        (finding,) = cluster.waits(cluster.View.of(hp))
        assert finding.level == "warning"
        assert re.search(f"^create of process .* has waited .* for memory for big/1: {FULL}", finding.text)
        assert "hoplite objects --sort size" in (finding.fix or "")
        top = run("top", "--once", "--socket", node.socket)
        assert re.search(f"create big/1 .* {FULL}", top.stdout)
        eventually(lambda: "holder/1 of 600000 bytes" in run("status", "--socket", node.socket).stdout)
        hp.delete("holder/1")
        put.result()
        assert [finding.level for finding in cluster.waits(cluster.View.of(hp))] == ["ok"]


@pytest.mark.long
def test_a_node_logs_a_long_wait_once(tmp_path: Path) -> None:
    def use(hp: Client, address: str) -> None:
        del address
        with pytest.raises(Timeout):
            hp.get("late/1", timeout=35)

    found = [line for line in logged_while(use, tmp_path / "s") if "a request still waits" in line]
    assert len(found) == 1
    for words in ("get", "object late/1", NOT_PUT):
        assert words in found[0]
