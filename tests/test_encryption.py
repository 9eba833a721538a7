"""A process on the path between two nodes: what it can read, and what happens to bytes that it changes."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, same

if TYPE_CHECKING:
    from collections.abc import Iterator

PATTERN = b"a pattern that random bytes do not hold"
COUNT = 40_000


class Path:
    """A proxy between clients of its port and a node. It records all bytes and may change some of them."""

    def __init__(self, target: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        self.seen = bytearray()
        # The number of long runs of bytes still to change.
        self.to_change = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target.rpartition(":")
            far = socket.create_connection((host, int(port)))
            self._sockets += [near, far]
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    if self.to_change and len(data) > 10_000:
                        self.to_change -= 1
                        data = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
                    self.seen += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def watched(*, plain: bool) -> Iterator[tuple[Node, Node, Path]]:
    """Starts two nodes, the first of which is reached only through a recording proxy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    path = Path(listen)
    try:
        with (
            Node(listen=listen, advertise=path.address, no_encryption=plain) as one,
            Node(join=[path.address], no_encryption=plain) as two,
        ):
            testing.wait_for_members([one, two], 2)
            yield one, two, path
    finally:
        path.close()


@pytest.mark.parametrize("plain", [False, True], ids=["encrypted", "plain"])
def test_objects_and_names_are_encrypted_on_the_network(plain: bool) -> None:
    with watched(plain=plain) as (one, two, path), one.client() as near, two.client() as far:
        for value in (PATTERN * COUNT, PATTERN * 10):
            ref = near.put(value, name=f"secret-name/{len(value)}")
            assert far.get(ref, timeout=SOON) == value
        back = far.put(PATTERN * COUNT)
        assert near.get(back, timeout=SOON) == PATTERN * COUNT
        assert len(path.seen) > len(PATTERN) * COUNT
        # Without encryption the bytes are visible, which shows that the proxy sees them.
        assert (PATTERN in path.seen) == (b"secret-name" in path.seen) == plain


@pytest.mark.faults("bytes are changed on the network")
def test_a_byte_changed_on_the_network_is_detected_and_refetched() -> None:
    value = np.arange(1 << 20, dtype=np.int32)
    with watched(plain=False) as (one, two, path), one.client() as near, two.client() as far:
        ref = near.put(value)
        path.to_change = 1
        same(far.get(ref, timeout=SOON), value)
        assert path.to_change == 0
        assert far.status()["counters"]["blocks_corrupt"] == 1
        assert near.status()["members"]


def test_a_node_with_encryption_does_not_join_one_without() -> None:
    with Node(no_encryption=True) as node, pytest.raises(hoplite.JoinError, match="without encryption"):
        Node(join=[node.address])
