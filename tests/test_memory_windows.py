"""Memory of sums and gets in addition to the objects: windows of a few MiB, and no second copy."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hoplite import Node, testing
from support import SOON, Watching

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.testing import NodeProcess

MIB = 1 << 20
# More than a position of a tree needs: its window and its children's, data being sent, and spare frames.
WINDOWS = 40 * MIB


def anonymous(pid: int) -> int:
    """Returns the anonymous memory of a process in bytes, without shared and file-backed memory."""
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("RssAnon:"))


class Most(Watching):
    """The maximum growth of nodes while the context is entered: anonymous memory, and mapped store memory."""

    def __init__(self, nodes: list[NodeProcess], clients: list[Client]) -> None:
        self._pids = [node.process.pid for node in nodes]
        self._clients = clients
        self._before = self._now()
        self._most = self._before
        super().__init__()

    @property
    def anonymous(self) -> list[int]:
        return [most[0] - before[0] for most, before in zip(self._most, self._before, strict=True)]

    @property
    def mapped(self) -> list[int]:
        return [most[1] - before[1] for most, before in zip(self._most, self._before, strict=True)]

    def _now(self) -> list[tuple[int, int]]:
        return [
            (anonymous(pid), client.status()["store"]["mapped"])
            for pid, client in zip(self._pids, self._clients, strict=True)
        ]

    def look(self) -> None:
        while not self.is_over.wait(0.01):
            found = zip(self._most, self._now(), strict=True)
            self._most = [(max(most[0], now[0]), max(most[1], now[1])) for most, now in found]


@pytest.mark.parametrize(
    ("hosts", "size"),
    [
        (3, 64 * MIB),
        pytest.param(8, 256 * MIB, marks=[pytest.mark.long, pytest.mark.timeout(400)]),
    ],
)
def test_a_sum_needs_only_windows_on_hosts_other_than_the_callers(hosts: int, size: int) -> None:
    capacity = str(2 * size + 64 * MIB)
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(testing.node_process("--capacity", capacity))]
        join = nodes[0].address
        others = [testing.node_process("--capacity", capacity, "--join", join) for _ in range(hosts - 1)]
        nodes += [stack.enter_context(other) for other in others]
        clients = [stack.enter_context(node.client()) for node in nodes]
        refs = []
        for number, client in enumerate(clients):
            with client.create(size // 4, "float32") as buffer:
                buffer[...] = number
            refs.append(buffer.ref)
        with Most(nodes, clients) as most:
            total = clients[0].get(clients[0].reduce(refs), timeout=10 * SOON)
        assert (total == hosts * (hosts - 1) / 2).all()
        assert max(most.anonymous) < WINDOWS, [one // MIB for one in most.anonymous]
        assert most.mapped[1:] == [0] * (hosts - 1), [one // MIB for one in most.mapped]
        assert most.mapped[0] <= size + size // 8


def test_concurrent_sums_share_the_memory_of_windows() -> None:
    """Fifty at a time, with one position on every host. Each alone may use some 4.5 MiB there."""
    size, count = 4 * MIB, 50
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(testing.node_process("--capacity", "1GiB"))]
        join = nodes[0].address
        nodes += [stack.enter_context(testing.node_process("--capacity", "64MiB", "--join", join)) for _ in range(2)]
        clients = [stack.enter_context(node.client()) for node in nodes]
        refs = [client.put(np.full(size // 4, number, np.float32)) for number, client in enumerate(clients)]
        with Most(nodes, clients) as most:
            sums = [clients[0].reduce(refs, timeout=SOON) for _ in range(count)]
            assert all((total == 3).all() for total in clients[0].get(sums, timeout=SOON))
        assert max(most.anonymous[1:]) < 180 * MIB, [one // MIB for one in most.anonymous]


@pytest.mark.parametrize("how", ["embedded", "attached"])
def test_copies_fetched_into_out_are_evicted_first(how: str) -> None:
    size = 20 * MIB
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(testing.cluster(1, capacity="1GiB"))
        far = nodes[0].client()
        refs = [far.put(np.full(size, number, np.uint8)) for number in range(5)]
        if how == "attached":
            near = stack.enter_context(
                testing.node_process("--capacity", str(5 * size), "--join", nodes[0].address)
            ).client()
        else:
            near = stack.enter_context(Node(listen="127.0.0.1:0", join=[nodes[0].address], capacity=5 * size)).client()
        stack.enter_context(near)

        def read(number: int) -> None:
            assert near.get(refs[number], timeout=SOON)[-1] == number

        read(0)
        out = np.zeros(size, np.uint8)
        assert near.get(refs[1], out=out, timeout=SOON) is out
        assert out[0] == out[-1] == 1
        for number in (2, 3, 4):
            read(number)
        here = {each["ref"] for each in near.objects()}
        assert here == {str(refs[number]) for number in (0, 2, 3, 4)}
