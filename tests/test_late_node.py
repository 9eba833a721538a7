"""Nodes that reply late because their host is busy: clients wait for the reply and do not treat them as stopped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import testing
from support import SOON, Later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GETS: dict[str, Callable[[hoplite.Client], object]] = {
    "get": lambda client: client.get("never/1", timeout=5),
    "short": lambda client: client.get("never/1", timeout=0.1),
    "several": lambda client: client.get(["never/1", "never/2"], timeout=5),
    "into": lambda client: client.get("never/1", out=bytearray(1), timeout=5),
    "in a loop": lambda client: asyncio.run(client.get_async("never/1", timeout=5)),
    "several in a loop": lambda client: asyncio.run(client.get_async(["never/1", "never/2"], timeout=5)),
    "into in a loop": lambda client: asyncio.run(client.get_async("never/1", out=bytearray(1), timeout=5)),
}


class LateNode:
    """A proxy between clients and a node: forwards requests at once, and holds replies back on demand."""

    def __init__(self, path: Path, node: str) -> None:
        self.address = f"unix:{path}"
        self._node = node
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen()
        self._is_released = threading.Event()
        self._is_released.set()
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def hold(self) -> None:
        self._is_released.clear()

    def release(self) -> None:
        self._is_released.set()

    def close(self) -> None:
        """Ends after its clients, which are closed by now."""
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SOON)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._pass_on, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as node:
            node.connect(self._node)
            answering = threading.Thread(target=self._answer, args=(node, client), daemon=True)
            answering.start()
            with contextlib.suppress(OSError):
                while data := client.recv(1 << 16):
                    node.sendall(data)
            node.shutdown(socket.SHUT_WR)
            answering.join(SOON)

    def _answer(self, node: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := node.recv(1 << 16):
                self._is_released.wait()
                client.sendall(data)


@pytest.fixture
def late(tmp_path: Path) -> Iterator[LateNode]:
    with testing.cluster(1) as (node,):
        late = LateNode(tmp_path / "late.sock", str(node.socket))
        try:
            yield late
        finally:
            late.close()


@pytest.mark.faults("the host of a node is busy")
def test_a_late_node_still_reports_the_missing_objects(late: LateNode) -> None:
    with hoplite.connect(late.address) as client:
        late.hold()
        waiting = [Later(get, client) for get in GETS.values()]
        # All timeouts have passed by a good margin: no call has treated the node as stopped.
        assert not waiting[0].done(within=6.5)
        assert not any(get.done() for get in waiting)
        late.release()
        for later in waiting:
            with pytest.raises(hoplite.Timeout, match=r"waiting for object never/[12]:"):
                later.result(SOON)
        assert client.get(client.put(b"x")) == b"x"
