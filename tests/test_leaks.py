"""Repeated collectives: no resource grows from round to round."""

from __future__ import annotations

import contextlib
import gc
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hoplite import testing
from programs import descriptors
from support import SOON, Array, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

NODES = 3
KIB = 1024
SIZES = {"1KiB": KIB, "128KiB": 128 * KIB, "4MiB": 4 * KIB * KIB}

# An allocator may retain this much freed memory, and every thread has its own arena.
SLACK_BYTES = 48 * KIB * KIB


# Connections kept for the next transfer: half of the maximum of all nodes, counted at both ends in this process.
IDLE_DESCRIPTORS = NODES * (NODES - 1) * 8


@dataclass(frozen=True)
class Use:
    """Resources of this process with all nodes in it: private bytes, files, threads, and memory mapped for stores."""

    memory: int
    descriptors: int
    threads: int
    mapped: int


def use(clients: list[Client]) -> Use:
    # The descriptors of a list of gets are in a cycle of objects, until Python collects it.
    gc.collect()
    rollup = Path("/proc/self/smaps_rollup").read_text().splitlines()
    dirty = next(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty"))
    return Use(
        dirty * KIB,
        descriptors(),
        len(list(Path("/proc/self/task").iterdir())),
        sum(client.status()["store"]["mapped"] for client in clients),
    )


def is_empty(client: Client) -> bool:
    status = client.status()
    return not status["objects"] and not status["owned"] and not status["reduces"]


def broadcast(clients: list[Client], value: Array, number: int) -> None:
    name = f"{number}/x"
    clients[number % NODES].put(value, name=name)
    for client in clients:
        assert client.get(name, timeout=SOON)[-1] == value[-1]
    clients[0].delete(name)


def reduce(clients: list[Client], value: Array, number: int, *, wanted: int = 1) -> None:
    names = [f"{number}/{node}" for node in range(NODES)]
    for client, name in zip(clients, names, strict=True):
        client.put(value, name=name)
    total = clients[number % NODES].reduce(names, op="sum")
    for client in clients[:wanted]:
        assert client.get(total, timeout=SOON)[-1] == NODES * value[-1]
    clients[0].delete([total, *names])


def allreduce(clients: list[Client], value: Array, number: int) -> None:
    reduce(clients, value, number, wanted=NODES)


def gather(clients: list[Client], value: Array, number: int) -> None:
    names = [f"{number}/{node}" for node in range(NODES)]
    for client, name in zip(clients, names, strict=True):
        client.put(value, name=name)
    assert all(got[-1] == value[-1] for got in clients[0].get(names, timeout=SOON))
    clients[0].delete(names)


@contextlib.contextmanager
def cluster() -> Iterator[list[Client]]:
    with testing.cluster(NODES) as nodes:
        yield [node.client() for node in nodes]


COLLECTIVES = {"broadcast": broadcast, "reduce": reduce, "allreduce": allreduce, "gather": gather}
# Every size of each way that objects travel: to all, and in sums.
PAIRS = {("broadcast", "1KiB"), ("broadcast", "4MiB"), ("reduce", "128KiB"), ("allreduce", "1KiB")}
PAIRS |= {("allreduce", "4MiB"), ("gather", "128KiB")}
ROUNDS = [pytest.param(*pair, 100) for pair in sorted(PAIRS)]
ROUNDS += [pytest.param(*pair, 10_000, marks=pytest.mark.long) for pair in itertools.product(COLLECTIVES, SIZES)]


@pytest.mark.parametrize(("collective", "kib", "rounds"), ROUNDS)
def test_rounds_leak_nothing(collective: str, kib: str, rounds: int) -> None:
    """The first tenth of the rounds fills caches and pools."""
    size = SIZES[kib]
    value = np.arange(size // 8, dtype=np.int64)
    with cluster() as clients:
        before = None
        for number in range(rounds):
            COLLECTIVES[collective](clients, value, number)
            if number == rounds // 10:
                before = use(clients)
        for client in clients:
            eventually(lambda client=client: is_empty(client))  # type: ignore[misc]
        after = use(clients)
    assert before is not None
    assert after.memory < before.memory + SLACK_BYTES, (before, after)
    assert after.descriptors <= before.descriptors + IDLE_DESCRIPTORS, (before, after)
    assert after.threads <= before.threads + 4, (before, after)
    assert after.mapped <= before.mapped + 8 * size + SLACK_BYTES, (before, after)


@pytest.mark.long
def test_memory_is_flat_once_deletions_are_forgotten() -> None:
    """An owner remembers a limited number of deletions; half of the rounds make as many."""
    value = np.arange(KIB // 8, dtype=np.int64)
    rounds = 10_000
    with cluster() as clients:
        for number in range(rounds):
            broadcast(clients, value, number)
            reduce(clients, value, number)
            if number == rounds // 2:
                before = use(clients)
        for client in clients:
            eventually(lambda client=client: is_empty(client))  # type: ignore[misc]
        after = use(clients)
    assert after.memory < before.memory + 4 * KIB * KIB, (before, after)
