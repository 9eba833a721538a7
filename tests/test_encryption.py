"""What a process on the path between two nodes sees of their bytes, and what becomes of those that it changes."""

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
    """Passes bytes on between the callers of its port and a node, keeps what it sees, and may change some of it."""

    def __init__(self, target: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        self.seen = bytearray()
        # How many of the long runs of bytes to change still.
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
    """Two nodes, the first of which is reached only by way of a path that is watched."""
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
def test_what_is_on_the_network_shows_no_byte_of_an_object_and_no_name(plain: bool) -> None:
    with watched(plain=plain) as (one, two, path), one.client() as near, two.client() as far:
        for value in (PATTERN * COUNT, PATTERN * 10):
            ref = near.put(value, name=f"secret-name/{len(value)}")
            assert far.get(ref, timeout=SOON) == value
        back = far.put(PATTERN * COUNT)
        assert near.get(back, timeout=SOON) == PATTERN * COUNT
        assert len(path.seen) > len(PATTERN) * COUNT
        # That it is seen without encryption shows that this looks in the right place.
        assert (PATTERN in path.seen) == (b"secret-name" in path.seen) == plain


@pytest.mark.faults("bytes are changed on the network")
def test_a_byte_that_is_changed_on_the_network_is_found_and_fetched_again() -> None:
    value = np.arange(1 << 20, dtype=np.int32)
    with watched(plain=False) as (one, two, path), one.client() as near, two.client() as far:
        ref = near.put(value)
        path.to_change = 1
        same(far.get(ref, timeout=SOON), value)
        assert path.to_change == 0
        assert far.status()["counters"]["blocks_corrupt"] == 1
        assert near.status()["members"]


def test_nodes_of_which_one_encrypts_and_the_other_does_not_say_so() -> None:
    with Node(no_encryption=True) as node, pytest.raises(hoplite.JoinError, match="without encryption"):
        Node(join=[node.address])
