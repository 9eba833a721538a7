"""Round trips of small objects between two processes with embedded nodes, next to a plain TCP echo of the same bytes.

`python -m gate.small ADDRESS` is the other process: it sends back what it gets, over TCP and as objects.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING

import hoplite
from gate.figures import ECHO, Figure, Group, start
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

SIZES = {"1KiB": 1 << 10, "64KiB": 1 << 16}
# Blocks of round trips alternate between the two; each block is a repeat.
BLOCKS, TRIPS, TIMEOUT_S = 30, 40, 30.0


def measure(cells: Collection[str]) -> Iterator[Figure]:  # noqa: ARG001 - it has one
    """Measures a put and a get in each direction, as a multiple of an echo."""
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(hoplite.Node(listen="127.0.0.1:0", no_auth=True))
        client = stack.enter_context(node.client())
        port = int(start(stack, "gate.small", node.address))
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        names = (f"{number}" for number in range(sys.maxsize))
        for size, nbytes in SIZES.items():
            echoes, objects = [], []
            # The first block warms memory and connections.
            for _ in range(1 + BLOCKS):
                echoes.append(_block(lambda value: _echo(connection, value), nbytes))
                objects.append(_block(lambda value: _objects(client, next(names), value), nbytes))
            ratios = [ours / echo for ours, echo in zip(objects[1:], echoes[1:], strict=True)]
            shown = f"{1e6 * statistics.median(objects[1:]):.0f} us"
            yield Figure(f"small-objects/{size}", ratios, ECHO, shown=shown)


def _block(trip: Callable[[bytes], float], nbytes: int) -> float:
    """The median of some round trips, each with other bytes."""
    return statistics.median(trip(os.urandom(nbytes)) for _ in range(TRIPS))


def _echo(connection: socket.socket, value: bytes) -> float:
    begun = time.perf_counter()
    connection.sendall(value)
    back = _receive(connection, len(value))
    took = time.perf_counter() - begun
    return _checked(back, value, took)


def _objects(client: hoplite.Client, name: str, value: bytes) -> float:
    begun = time.perf_counter()
    client.put(value, name=f"there/{name}", timeout=TIMEOUT_S)
    back = client.get(f"back/{name}", timeout=TIMEOUT_S)
    took = time.perf_counter() - begun
    _checked(bytes(back), value, took)
    client.delete([f"there/{name}", f"back/{name}"], timeout=TIMEOUT_S)
    return took


def _checked(back: bytes, value: bytes, took: float) -> float:
    if back != value:
        raise HopliteError(f"a round trip of {len(value)} bytes returned other bytes")
    return took


def _receive(connection: socket.socket, nbytes: int) -> bytes:
    received = bytearray(nbytes)
    view = memoryview(received)
    while view:
        if not (count := connection.recv_into(view)):
            raise ConnectionResetError("the other process closed the connection")
        view = view[count:]
    return bytes(received)


def _serve_echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while received := connection.recv(max(SIZES.values())):
        connection.sendall(received)


def main(address: str) -> None:
    """Joins the node at an address, and sends everything back until it is killed."""
    with (
        hoplite.Node(listen="127.0.0.1:0", join=[address], no_auth=True) as node,
        node.client() as client,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        threading.Thread(target=_serve_echo, args=(listener,), daemon=True).start()
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        for number in range(sys.maxsize):
            client.put(bytes(client.get(f"there/{number}")), name=f"back/{number}")


GROUP = Group(["small-objects"], measure, needs_root=False)

if __name__ == "__main__":
    main(sys.argv[1])
