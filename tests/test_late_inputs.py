"""Sums whose inputs arrive after the request, several from each node: exact, and never restarted.

The simulation has its own shell and can't test how real nodes handle two inputs of one node. So random sums run here on
real nodes, embedded and as processes: any placement, size, count and order of arrival.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Client, testing
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Inline, one frame, a few frames, more than the window of a position.
SIZES = (500, 20_000, 75_000, 160_000, 1_000_000)
# Counters that must stay zero unless something fails or is deleted.
QUIET = ("reduces_restarted", "fetches_failed", "blocks_corrupt", "copies_corrupt", "refusals")


def disturbances(clients: list[Client]) -> dict[str, int]:
    """Adds up the counters of restarts and rejections over all nodes."""
    counters = [client.status()["counters"] for client in clients]
    return {counter: sum(each[counter] for each in counters) for counter in QUIET}


@contextmanager
def embedded(size: int, folder: Path) -> Iterator[list[Client]]:
    """Starts nodes in this process, with one client each."""
    with ExitStack() as stack:
        nodes: list[hoplite.Node] = []
        for number in range(size):
            node = hoplite.Node(
                listen="127.0.0.1:0",
                join=[node.address for node in nodes[:1]],
                capacity="1GiB",
                socket=folder / f"{number}.sock",
            )
            stack.callback(node.close, 0)
            nodes.append(node)
        testing.wait_for_members(nodes, size)
        yield [node.client() for node in nodes]


@contextmanager
def processes(size: int, _folder: Path) -> Iterator[list[Client]]:
    """Starts node processes, with two clients attached to the socket of each."""
    with ExitStack() as stack:
        started: list[testing.NodeProcess] = []
        for _ in range(size):
            join = ["--join", started[0].address] if started else []
            started.append(stack.enter_context(testing.node_process(*join, "--capacity", "1GiB")))
        clients = [stack.enter_context(hoplite.connect(f"unix:{node.socket}")) for node in started for _ in range(2)]
        eventually(lambda: all(len(client.status()["members"]) == size for client in clients))
        yield clients


class Sum:
    """One random sum: its inputs, their putters and times, and its callers."""

    def __init__(self, dice: random.Random, number: int, clients: list[Client]) -> None:
        self.clients = clients
        self.caller = dice.choice(clients)
        count = dice.randrange(1, 3 * len(clients))
        everywhere = [dice.choice(clients) for _ in range(count)]
        self.putters = dice.choice([everywhere, [dice.choice(clients)] * count, (clients * 3)[:count]])
        self.size = dice.choice(SIZES)
        self.count = dice.choice([count, dice.randint(1, count)])
        self.names = [f"late-{number}/{index}" for index in range(count)]
        self.delays = [dice.choice([0, 0, dice.random() * 0.01]) for _ in range(count)]
        self.before = {index for index in range(count) if dice.random() < 0.25}
        self.order = dice.sample(range(count), count)
        self.result = dice.choice([None, f"late-{number}-sum/1"])
        self.readers = dice.sample(clients, dice.randrange(len(clients)))

    def put(self, index: int) -> None:
        """Puts one input: ones, threes, fives, ..., so that every subset of them has an exact sum."""
        if self.delays[index]:
            # The time is part of the load; no result depends on it.
            time.sleep(self.delays[index])
        value = np.full(self.size, 2 * index + 1, np.float32)
        self.putters[index].put(value, name=self.names[index], timeout=SOON)

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Requests the sum, puts the missing inputs, and checks every element on every reader."""
        for index in self.before:
            self.put(index)
        total = self.caller.reduce(self.names, count=self.count, name=self.result, timeout=SOON)
        puts = [pool.submit(self.put, index) for index in self.order if index not in self.before]
        gets = [pool.submit(client.get, total, timeout=SOON) for client in [self.caller, *self.readers]]
        folded = [self.names.index(str(ref)) for ref in total.inputs(timeout=SOON)]
        assert len(set(folded)) == len(folded) == self.count
        expected = sum(2 * index + 1 for index in folded)
        for get in gets:
            got = get.result(SOON)
            assert got.shape == (self.size,)
            assert (got == expected).all()
        for put in puts:
            put.result(SOON)
        del got, get, gets
        self.caller.delete([*self.names, total], timeout=SOON)


@pytest.mark.parametrize(("cluster", "seed"), [(embedded, 0), (processes, 1)])
def test_random_sums_are_exact_and_never_restart(cluster: object, seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with cluster(4, tmp_path) as clients, ThreadPoolExecutor(64) as pool:  # type: ignore[operator]
        for number in range(40):
            case = Sum(dice, number, clients)
            case.run(pool)
            assert disturbances(clients) == dict.fromkeys(QUIET, 0), f"sum {number}: {vars(case)}"
