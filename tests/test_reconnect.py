"""A client reconnects to the node that replaces a stopped one."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import testing
from programs import line
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextlib.contextmanager
def node_at(socket: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a node process with a given socket, and waits until it is ready."""
    command = [
        sys.executable,
        "-m",
        "hoplite.tools.cli",
        "node",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--socket",
        str(socket),
    ]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line(process)
            yield process
        finally:
            process.kill()


def kill_and_wait(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


def test_a_client_reconnects_to_the_restarted_node(socket: Path) -> None:
    """Pending calls fail; objects on other nodes still exist."""
    with testing.cluster(1) as (other,), node_at(socket, "--join", other.address) as first:
        value = numbers(300_000)
        kept = other.client().put(value, name="kept/1")
        with hoplite.connect(f"unix:{socket}") as client:
            mine = client.get(kept, timeout=SOON)
            own = client.put(numbers(300_000, seed=1))
            waiting = Later(client.get, "never/1")
            eventually(lambda: client.status()["waiting"] == 1)
            kill_and_wait(first)
            with pytest.raises(hoplite.NodeDown, match=r"the next call attaches .*reconnect=False"):
                waiting.result()
            with node_at(socket, "--join", other.address):
                same(client.get(kept, timeout=SOON), value)
                same(mine, value)
                with pytest.raises(hoplite.ObjectLost):
                    client.get(own, timeout=SOON)
                client.put(b"new", name="new/1")
                assert bytes(other.client().get("new/1", timeout=SOON)) == b"new"


def test_a_call_waits_for_a_restarting_node(socket: Path) -> None:
    with node_at(socket) as first:
        client = hoplite.connect(f"unix:{socket}")
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        calls = [Later(client.put, b"x", name=f"early/{number}") for number in range(8)]
        assert not calls[0].done(within=0.2)
        with node_at(socket):
            for call in calls:
                call.result()
            assert len(client.objects()) == 8


@pytest.mark.parametrize("attach", [hoplite.connect, hoplite.init])
def test_a_client_that_does_not_reconnect_names_the_option(attach: Callable[..., hoplite.Client], socket: Path) -> None:
    with node_at(socket) as first:
        client = attach(f"unix:{socket}", reconnect=False)
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        with node_at(socket), pytest.raises(hoplite.NodeDown, match="reconnect=False"):
            client.put(b"x")
        hoplite.shutdown()


def test_init_shares_a_client_that_reconnects(socket: Path) -> None:
    with node_at(socket) as first:
        client = hoplite.init(f"unix:{socket}")
        try:
            hoplite.client().put(b"old")
            kill_and_wait(first)
            with node_at(socket):
                eventually(lambda: client._native.is_node_gone())
                assert str(hoplite.client().put(b"new", name="new/1")) == "new/1"
        finally:
            hoplite.shutdown()


def test_calls_fail_if_no_node_replaces_the_stopped_one(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls fail sooner, but still find a node that starts late."""
    monkeypatch.setattr("hoplite._attachment.RECONNECT_S", 0.2)
    with node_at(socket) as first:
        client = hoplite.connect(f"unix:{socket}")
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        with pytest.raises(hoplite.NodeDown, match=str(socket)):
            client.status()
        monkeypatch.setattr("hoplite._attachment.LATER_S", 0.0)
        monkeypatch.setattr("hoplite._attachment.RECONNECT_S", 0.0)
        looks: list[float | None] = []
        connect = hoplite._native.connect

        def look(path: str, timeout: float | None, capability: str | None) -> hoplite._native.Client:
            looks.append(timeout)
            return connect(path, SOON if looks[1:] else timeout, capability)

        monkeypatch.setattr("hoplite._native.connect", look)
        with pytest.raises(hoplite.NodeDown, match=str(socket)):
            client.status()
        assert len(looks) == 1
        with node_at(socket):
            client.put(b"x")


# Every verb with a timeout, except those of a buffer or ref.
CALLS: dict[str, Callable[[hoplite.Client, float], object]] = {
    "put": lambda client, timeout: client.put(b"x", timeout=timeout),
    "put with options": lambda client, timeout: client.put(b"x", name="x/1", exist_ok=True, timeout=timeout),
    "create": lambda client, timeout: client.create(100_000, timeout=timeout),
    "reserve": lambda client, timeout: client.reserve(name="x/3", timeout=timeout),
    "reduce": lambda client, timeout: client.reduce(["x/1"], timeout=timeout),
    "get": lambda client, timeout: client.get("x/1", timeout=timeout),
    "several": lambda client, timeout: client.get(["x/1", "x/2"], timeout=timeout),
    "into": lambda client, timeout: client.get("x/1", out=bytearray(1), timeout=timeout),
    "part": lambda client, timeout: client.get("x/1", part=slice(1), timeout=timeout),
    "wait": lambda client, timeout: client.wait(["x/1"], timeout=timeout),
    "latest": lambda client, timeout: client.latest("x/", timeout=timeout),
    "lease": lambda client, timeout: client.lease("x/1", timeout=timeout),
    "delete": lambda client, timeout: client.delete("x/1", timeout=timeout),
    "locations": lambda client, timeout: client.locations("x/1", timeout=timeout),
    "watch": lambda client, timeout: next(client.watch_locations("x/1", timeout=timeout)),
    "objects": lambda client, timeout: client.objects(timeout=timeout),
    "directory": lambda client, timeout: client.directory(timeout=timeout),
}


def test_calls_wait_for_the_next_node_until_their_timeout(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite._attachment.RECONNECT_S", 10 * SOON)
    with node_at(socket) as first:
        client = hoplite.connect(f"unix:{socket}")
        buffer, ref = client.create(3), client._refs(["sum/1"])[0]
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        calls = {
            **CALLS,
            "seal": lambda _, timeout: buffer.seal(timeout=timeout),
            "inputs": lambda _, timeout: ref.inputs(timeout=timeout),
            "lost": lambda _, timeout: ref.lost(timeout=timeout),
        }
        for call in calls.values():
            with pytest.raises(hoplite.NodeDown, match=str(socket)):
                Later(call, client, 0.05).result(SOON)
        with node_at(socket):
            # The reconnect is a part of the call's time.
            _, rest = client._open_within(SOON)
            assert rest is not None
            assert rest < SOON
            buffer.seal(timeout=SOON)


def test_a_node_that_ends_while_a_process_attaches_is_waited_for_again(socket: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as ending:
        ending.bind(str(socket))
        socket.chmod(0o600)
        ending.listen()
        connecting = Later(hoplite.connect, f"unix:{socket}", timeout=SOON)
        # Two that only look whether a node listens.
        for _ in range(2):
            ending.accept()[0].close()
        attaching, _ = ending.accept()
    attaching.close()
    with node_at(socket), connecting.result(SOON) as client:
        assert client.get(client.put(b"x")) == b"x"


def test_a_timeout_of_0_limits_the_wait_for_objects_not_for_the_next_node(socket: Path) -> None:
    with node_at(socket) as first:
        client = hoplite.connect(f"unix:{socket}")
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        calls = {name: Later(call, client, 0) for name, call in CALLS.items()}
        assert not calls["latest"].done(within=0.2)
        with node_at(socket):
            for name, call in calls.items():
                assert call.done(SOON), name
                assert not isinstance(call.error, hoplite.NodeDown), name


def test_reconnecting_does_not_block_an_event_loop(socket: Path) -> None:
    async def first_calls(client: hoplite.Client) -> None:
        with pytest.raises(hoplite.NodeDown):
            await client.put_async(b"x")
        with node_at(socket):
            assert bytes(await client.get_async(await client.put_async(b"y"))) == b"y"

    with node_at(socket) as first:
        client = hoplite.connect(f"unix:{socket}")
        kill_and_wait(first)
        eventually(lambda: client._native.is_node_gone())
        asyncio.run(first_calls(client))
