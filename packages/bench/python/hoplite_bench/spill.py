"""Measures the cost of spilling to a disk: `python -m hoplite_bench.spill FOLDER`.

Puts a set of four times the capacity and reads it back at random. Plain reads of the same number of bytes from the same
folder are interleaved, with the files in the same state: in the page cache or not. Also measures a set that fits into
memory, with and without a disk. Every result is verified.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import hoplite
from hoplite.sizes import check_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite import Client, Ref

# Size of the set as a multiple of the capacity.
TIMES = 4


class Files:
    """Plain files of the same length, and the time to read them."""

    def __init__(self, folder: Path, size: int, count: int) -> None:
        self._paths = [folder / f"plain-{number}" for number in range(count)]
        self._buffer = bytearray(size)
        for number, path in enumerate(self._paths):
            with path.open("wb") as file:
                file.write(bytes([number % 256]) * size)
                file.flush()
                os.fsync(file.fileno())

    def read(self, number: int, *, cold: bool) -> float:
        """Reads a whole file; returns the seconds."""
        path = self._paths[number]
        if cold:
            forget(path)
        begun = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            read = file.readinto(self._buffer)
        seconds = time.perf_counter() - begun
        assert read == len(self._buffer)
        assert self._buffer[-1] == number % 256
        return seconds


class Store:
    """A set of objects of four times a node's capacity, and the time to read them."""

    def __init__(self, client: Client, folder: Path, size: int, count: int) -> None:
        self._client, self._folder = client, folder
        begun = time.perf_counter()
        self._refs = put_all(client, size, count)
        self.put_seconds = time.perf_counter() - begun
        instances = {row["ref"]: row["instance"].replace("#", "-") for row in client.objects()}
        self._names = [f"{instances[str(ref)]}.*.spill" for ref in self._refs]

    def is_on_disk(self, number: int) -> bool:
        """Whether an object is not in memory."""
        rows = self._client.objects(str(self._refs[number]))
        return bool(rows[0]["state"] == "spilled")

    def read(self, number: int, *, cold: bool) -> float:
        """Gets an object; returns the seconds."""
        if cold:
            for path in self._folder.glob(self._names[number]):
                forget(path)
        begun = time.perf_counter()
        value = self._client.get(self._refs[number])
        seconds = time.perf_counter() - begun
        assert value[0] == value[-1] == number % 256
        return seconds


def forget(path: Path) -> None:
    """Removes a file, which was written to the disk already, from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def put_all(client: Client, size: int, count: int) -> list[Ref]:
    """Puts objects with different contents."""
    return [client.put(np.full(size, number % 256, np.uint8)) for number in range(count)]


def beyond_memory(folder: Path, capacity: int, size: int, *, rounds: int, seed: int) -> dict[str, float]:
    """Bytes per second of random reads, of the disk alone and of a node."""
    count = TIMES * capacity // size
    dice = random.Random(seed)
    figures: dict[str, float] = {}
    with hoplite.Node(capacity=capacity, spill=folder / "spill", socket=folder / "node.sock") as node:
        store = Store(node.client(), folder / "spill", size, count)
        figures["put"] = count * size / store.put_seconds
        plain = Files(folder, size, count)
        for state in ("cold", "cached"):
            from_disk: list[float] = []
            reads: list[float] = []
            gets: list[float] = []
            for number in dice.choices(range(count), k=rounds):
                is_cold = state == "cold"
                reads.append(plain.read(number, cold=is_cold))
                was_on_disk = store.is_on_disk(number)
                gets.append(store.read(number, cold=is_cold))
                if was_on_disk:
                    from_disk.append(gets[-1])
            figures[f"{state} plain"] = len(reads) * size / sum(reads)
            figures[f"{state} get"] = len(gets) * size / sum(gets)
            figures[f"{state} get from disk"] = len(from_disk) * size / sum(from_disk)
    return figures


def within_memory(folder: Path, capacity: int, size: int, *, rounds: int) -> dict[str, float]:
    """Seconds of a put and of a get if everything fits, with and without a disk, interleaved."""
    count = capacity // size // 2
    seconds: dict[str, list[float]] = {}
    with (
        hoplite.Node(capacity=capacity, spill=folder / "fits", socket=folder / "with.sock") as with_disk,
        hoplite.Node(capacity=capacity, socket=folder / "without.sock") as without,
    ):
        clients = {"with": with_disk.client(), "without": without.client()}
        refs = {name: put_all(client, size, count) for name, client in clients.items()}
        value = np.ones(size, np.uint8)
        for turn in range(rounds):
            for name, client in sorted(clients.items(), reverse=turn % 2 == 1):
                begun = time.perf_counter()
                ref = client.put(value)
                put = time.perf_counter()
                got = client.get(refs[name][turn % count])
                end = time.perf_counter()
                assert got[-1] == turn % count % 256
                client.delete(ref)
                seconds.setdefault(f"put {name}", []).append(put - begun)
                seconds.setdefault(f"get {name}", []).append(end - put)
        counters = clients["with"].status()["counters"]
        assert counters["spills"] == counters["unspills"] == 0
    return {name: statistics.median(all_of) for name, all_of in seconds.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the measurement, and prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder on the disk to measure")
    parser.add_argument("--capacity", default="256MiB")
    parser.add_argument("--size", default="16MiB", help="size of an object")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        sizes = (check_size("--capacity", options.capacity), check_size("--size", options.size))
        beyond = beyond_memory(folder, *sizes, rounds=options.rounds, seed=options.seed)
        within = within_memory(folder, *sizes, rounds=options.rounds)
    sys.stdout.write(json.dumps({"bytes per second": beyond, "seconds": within}, indent=2) + "\n")


if __name__ == "__main__":
    main()
