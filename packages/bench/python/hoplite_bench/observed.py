"""Measures what an open page and a scrape per second cost: `python -m hoplite_bench.observed`.

Three nodes on this host broadcast an object again and again. In every other block of time, a viewer reads the frames of
the first node and its metrics, as a browser and Prometheus do. Every result is verified. Needs the extra `http` of
hoplite-collectives.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

import hoplite
from hoplite.viewers import viewer_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from hoplite import Client

NODES = 3
# Rounds after the viewer came or left that do not count.
SETTLE = 1


@contextlib.contextmanager
def cluster(folder: str, token: str) -> Iterator[tuple[list[Client], str]]:
    """Starts nodes in processes of their own; the first serves HTTP.

    Yields:
        A client of each node, and the address of the page.
    """
    environment = {**os.environ, "HOPLITE_TOKEN": token, "HOPLITE_LOG_LEVEL": "warn"}
    with contextlib.ExitStack() as stack:
        clients: list[Client] = []
        first: dict[str, str] = {}
        for number in range(NODES):
            own = ["--http", "0"] if number == 0 else ["--join", first["address"]]
            arguments = [
                "--listen",
                "127.0.0.1:0",
                "--socket",
                f"{folder}/{number}.sock",
                "--capacity",
                "1GiB",
                "--json",
            ]
            command = [sys.executable, "-m", "hoplite.tools.cli", "node", *arguments, *own]
            node = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
            stack.callback(node.terminate)
            assert node.stdout is not None
            ready = json.loads(node.stdout.readline())
            first = first or ready
            clients.append(stack.enter_context(hoplite.connect(f"unix:{ready['socket']}")))
        yield clients, first["http"].removeprefix("http://")


class Viewer:
    """Reads frames, and the metrics once per second, while it is open."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {key}"}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=call) for call in (self._stream, self._scrape)]
        self.frames = self.scrapes = self.bytes = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def _get(self, path: str) -> Iterator[http.client.HTTPResponse]:
        with contextlib.closing(http.client.HTTPConnection(self._address, timeout=10)) as connection:
            connection.request("GET", path, headers=self._headers)
            reply = connection.getresponse()
            assert reply.status == 200
            with reply:
                yield reply

    def _stream(self) -> None:
        with self._get("/api/stream") as reply:
            while not self._over.is_set():
                line = reply.readline()
                self.frames += line.startswith(b"data: ")
                self.bytes += len(line)

    def _scrape(self) -> None:
        while not self._over.wait(1.0):
            with self._get("/metrics") as reply:
                self.scrapes += len(reply.read()) > 0


def rounds(clients: list[Client], value: np.ndarray[tuple[int], np.dtype[np.uint8]], seconds: float) -> list[float]:
    """Broadcasts for some seconds; returns the seconds of each round."""
    found: list[float] = []
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(NODES) as pool:
        while time.monotonic() < end or len(found) <= SETTLE:
            begun = time.perf_counter()
            ref = clients[0].put(value)
            got = list(pool.map(lambda client, ref=ref: client.get(ref, timeout=60), clients[1:]))
            found.append(time.perf_counter() - begun)
            assert all(each[0] == each[-1] == value[0] for each in got)
            del got
            clients[0].delete(ref)
    return found[SETTLE:]


def measure(size: int, blocks: int, seconds: float) -> dict[str, float]:
    """Returns the median seconds of a round with and without a viewer, and the relative cost.

    The cost is the median over pairs of neighboring blocks, whose order alternates.
    """
    token = hoplite.new_token()
    value = np.full(size, 7, np.uint8)
    every: dict[bool, list[float]] = {False: [], True: []}
    costs = []
    frames = sent = 0
    with tempfile.TemporaryDirectory() as folder, cluster(folder, token) as (clients, address):
        rounds(clients, value, seconds)
        for block in range(blocks):
            medians = {}
            for is_watched in (False, True) if block % 2 else (True, False):
                viewer = Viewer(address, viewer_key(token))
                with viewer if is_watched else contextlib.nullcontext():
                    found = rounds(clients, value, seconds)
                frames, sent = frames + viewer.frames, sent + viewer.bytes
                every[is_watched] += found
                medians[is_watched] = statistics.median(found)
            costs.append(medians[True] / medians[False] - 1)
    return {
        "bytes": size,
        "alone_s": statistics.median(every[False]),
        "watched_s": statistics.median(every[True]),
        "cost": statistics.median(costs),
        "rounds": len(every[False]) + len(every[True]),
        "frames": frames,
        "frame_bytes": sent / max(frames, 1),
    }


def main() -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(description="Measure the cost of an open page.")
    parser.add_argument("--mib", type=int, default=64, help="size of the object")
    parser.add_argument("--blocks", type=int, default=10, help="pairs of blocks with and without a viewer")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a block")
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.mib << 20, given.blocks, given.seconds)) + "\n")


if __name__ == "__main__":
    main()
