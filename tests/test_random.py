"""Random traffic: four threads put, get, reduce and delete on four nodes, and check every byte they read."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Client, testing
from support import SOON, Array, Later, eventually_empty, fold, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable

# Empty, inline, around a block, several blocks.
SIZES = (0, 1, 100, 16_384, 16_385, 50_000, 300_000, 1_500_000)


class User:
    """The objects of one thread, and their expected values."""

    def __init__(self, clients: list[Client], name: str) -> None:
        self.clients = clients
        self.name = name
        self.random = random.Random(name)
        self.values: dict[str, Array] = {}
        self.serial = 0

    def client(self) -> Client:
        """Returns the client of a random node."""
        return self.random.choice(self.clients)

    def put(self, size: int | None = None, name: str | None = None) -> None:
        """Puts an array, with or without a name."""
        self.serial += 1
        value = numbers(self.random.choice(SIZES) if size is None else size, seed=self.serial)
        if name is None and self.random.random() < 0.5:
            name = f"{self.name}/{self.serial}"
        self.values[str(self.client().put(value, name=name, timeout=SOON))] = value

    def get(self) -> None:
        """Gets one of the objects on a random node."""
        ref = self.random.choice(list(self.values))
        same(self.client().get(ref, timeout=SOON), self.values[ref])

    def reduce(self) -> None:
        """Reduces the first `count` of several objects of one size; some are put only afterwards."""
        by_size = defaultdict(list)
        for ref, value in self.values.items():
            by_size[value.size].append(ref)
        size, inputs = self.random.choice(list(by_size.items()))
        self.serial += 1
        late = [f"{self.name}-late-{self.serial}/{number}" for number in range(self.random.randrange(3))]
        inputs = self.random.sample(inputs + late, len(inputs) + len(late))
        count = self.random.randint(1, len(inputs))
        op = self.random.choice(["sum", "min", "max"])
        total = self.client().reduce(inputs, op, count=count)
        for name in late:
            self.put(size, name)
        got = self.client().get(total, timeout=SOON)
        folded = [str(ref) for ref in total.inputs(timeout=SOON)]
        assert len(set(folded)) == len(folded) == count
        assert set(folded) <= set(inputs)
        expected = fold(op, [self.values[ref] for ref in folded])
        same(got, expected)
        self.values[str(total)] = np.array(expected)

    def delete(self) -> None:
        """Deletes a few objects. They have no copies afterwards, and a get by id fails."""
        refs = self.random.sample(list(self.values), min(3, len(self.values)))
        self.client().delete(refs, timeout=SOON)
        for ref in refs:
            del self.values[ref]
        if refs[0].startswith("@"):
            with pytest.raises(hoplite.ObjectDeleted):
                self.client().get(refs[0], timeout=SOON)
        else:
            assert self.client().locations(refs[0], timeout=SOON) == []

    def run(self, seconds: float) -> int:
        """Runs random verbs for `seconds`, then deletes everything; returns the number of verbs."""
        verbs: list[tuple[Callable[[], None], float]] = [
            (self.put, 0.4),
            (self.get, 0.25),
            (self.reduce, 0.2),
            (self.delete, 0.15),
        ]
        done = 0
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (verb,) = self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])
            if self.values or verb == self.put:
                verb()
                done += 1
        self.client().delete(self.values, timeout=SOON)
        return done


@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(300)])])
def test_every_byte_is_right_and_nothing_is_left(seconds: float) -> None:
    with testing.cluster(4, capacity="2GiB") as nodes:
        clients = [node.client() for node in nodes]
        users = [Later(User(clients, f"user{number}").run, seconds) for number in range(4)]
        for user in users:
            assert user.result(seconds + SOON) > 0
        for client in clients:
            eventually_empty(client)
            assert client.status()["store"]["used"] == 0
