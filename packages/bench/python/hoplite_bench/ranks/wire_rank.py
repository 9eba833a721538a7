"""One plain TCP stream with the bytes of an array from rank 0 to rank 1, and back for a round trip.

It is what a program without collectives would use: default socket buffers, TCP_NODELAY, blocking calls. It sends in one
call and receives into the array. The other ranks do nothing.
"""

from __future__ import annotations

import platform
import socket
import time

import numpy as np

from content import DTYPE, fill, wrong
from rank import Rank, Task, arguments, serve

CONNECT_TIMEOUT_S = 30.0
ROUND_TRIP = "round trip"


class WireRank(Rank):
    """One end of the connection; ranks above 1 have none."""

    leads = True

    def __init__(self, peer: str, number: int) -> None:
        host, _, port = peer.rpartition(":")
        self.connection: socket.socket | None = None
        self.sent = self.received = np.empty(0, DTYPE)
        if number == 0:
            with socket.create_server((host, int(port))) as listener:
                listener.settimeout(CONNECT_TIMEOUT_S)
                self.connection, _ = listener.accept()
        elif number == 1:
            self.connection = connect(host, int(port))
        if self.connection is not None:
            self.connection.settimeout(None)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def prepare(self, task: Task) -> str:
        """Creates the array that rank 0 sends, and touches the memory for received data."""
        if self.connection is not None:
            self.received = np.full(task.nbytes // DTYPE.itemsize, -1, DTYPE)
        if task.rank == 0:
            self.sent = np.empty_like(self.received)
            fill(self.sent, rank=0, seed=task.seed)
        return ""

    def run(self, task: Task, tokens: list[str], at: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Transfers the bytes, and back for a round trip."""
        if self.connection is None:
            return 0, 0
        back = task.variant == ROUND_TRIP
        if task.rank == 0:
            self.connection.sendall(self.sent.data.cast("B"))
            if back:
                receive(self.connection, self.received)
        else:
            receive(self.connection, self.received)
            if back:
                self.connection.sendall(self.received.data.cast("B"))
        return None

    def check(self, task: Task) -> str:
        """Compares the received array."""
        receives = task.rank == 1 or (task.rank == 0 and task.variant == ROUND_TRIP)
        return wrong(self.received, nbytes=task.nbytes, ranks=range(1), seed=task.seed) if receives else ""


def receive(connection: socket.socket, out: np.ndarray) -> None:
    """Fills an array from a connection."""
    view = out.data.cast("B")
    at = 0
    while at < len(view):
        got = connection.recv_into(view[at:])
        if not got:
            raise ConnectionResetError(f"the peer disconnected after {at} of {len(view)} bytes")
        at += got


def connect(host: str, port: int) -> socket.socket:
    """Connects to a listener that may start a little later."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        try:
            return socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main() -> None:
    """Takes part until the bench disconnects."""
    parser = arguments()
    parser.add_argument("--peer", required=True, help="address at which rank 0 listens, host:port")
    options = parser.parse_args()
    serve(
        WireRank(options.peer, options.rank),
        control=options.control,
        number=options.rank,
        ranks=options.ranks,
        version=platform.release(),
    )


if __name__ == "__main__":
    main()
