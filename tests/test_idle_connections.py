"""A host on the path that forgets idle connections, as firewalls do: what it then receives on them is lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hoplite import Node, testing
from support import eventually, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

# Shorter than the 30 s after which a transfer that moves nothing ends.
WITHIN = 15.0
COUNT = 300_000

# Time without a byte after which a connection is idle. Members exchange probes several times in it.
IDLE_S = 2.0


class Firewall:
    """Forwards connections to a node. It can forget idle ones: it still acknowledges their bytes, but drops them."""

    def __init__(self, target: str) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        # By the number of the connection: when a byte was last forwarded, None once it is forgotten; and all bytes.
        self._last: list[float | None] = []
        self._bytes: list[int] = []
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
            number = len(self._last)
            self._last.append(time.monotonic())
            self._bytes.append(0)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(number, *ends), daemon=True).start()

    def _pass(self, number: int, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._last[number] is not None:
                    self._last[number] = time.monotonic()
                    self._bytes[number] += len(data)
                    target.sendall(data)
        if self._last[number] is not None:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

    def forget(self) -> int:
        """Forgets the idle connections that objects have crossed. Returns their number."""
        now = time.monotonic()
        idle = [
            number
            for number, last in enumerate(self._last)
            if last is not None and now - last > IDLE_S and self._bytes[number] > COUNT
        ]
        for number in idle:
            self._last[number] = None
        return len(idle)

    def close(self) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def behind() -> Iterator[tuple[Client, Client, Firewall]]:
    """Clients of two nodes, the first of which is reached only through a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    firewall = Firewall(listen)
    try:
        with (
            Node(listen=listen, advertise=firewall.address) as one,
            Node(join=[firewall.address]) as two,
        ):
            testing.wait_for_members([one, two], 2)
            with one.client() as near, two.client() as far:
                yield near, far, firewall
    finally:
        firewall.close()


def array(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.arange(COUNT, dtype=np.float32) + seed


@pytest.mark.faults("a firewall forgets connections")
def test_an_object_is_received_after_a_firewall_forgot_the_idle_connections(
    behind: tuple[Client, Client, Firewall],
) -> None:
    near, far, firewall = behind
    same(far.get(near.put(array(0)), timeout=WITHIN), array(0))
    eventually(lambda: firewall.forget() > 0)
    same(far.get(near.put(array(1)), timeout=WITHIN), array(1))
    counters = far.status()["counters"]
    assert (counters["connections_silent"], counters["fetches_failed"], counters["transfers_slow"]) == (1, 0, 0)


@pytest.mark.faults("a firewall forgets connections")
def test_a_reduce_ends_after_a_firewall_forgot_the_idle_connections(behind: tuple[Client, Client, Firewall]) -> None:
    near, far, firewall = behind
    same(far.get(near.put(array(0)), timeout=WITHIN), array(0))
    eventually(lambda: firewall.forget() > 0)
    total = far.reduce([near.put(array(seed)) for seed in (1, 2)], op="sum")
    same(far.get(total, timeout=WITHIN), array(1) + array(2))
    counters = far.status()["counters"]
    assert (counters["connections_silent"], counters["reduces_restarted"]) == (1, 0)
