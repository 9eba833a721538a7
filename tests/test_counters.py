"""The counters of a node: each is documented, and the totals sent equal the totals received."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hoplite import testing
from support import SOON, eventually, fold, numbers, same

if TYPE_CHECKING:
    from hoplite import Client

PAGE = Path(__file__).parent.parent / "docs" / "counters.md"

MIB = 1 << 20


def total(clients: list[Client], *names: str) -> int:
    return sum(client.status()["counters"][name] for client in clients for name in names)


def test_the_page_documents_exactly_the_existing_counters(clients: list[Client]) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    # The last cell explains the counters of the others.
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row.rpartition("| ")[0])}
    status = clients[0].status()
    numbers_of_now = {name for name, value in status.items() if isinstance(value, int)}
    assert explained == {*numbers_of_now, *status["store"], *status["counters"]}


def test_the_bytes_sent_equal_the_bytes_received() -> None:
    """A broadcast, sums along a tree and around a ring, and small objects of both."""
    with testing.cluster(4, capacity="256MiB") as nodes:
        clients = [node.client() for node in nodes]
        for size in (100, 2 * MIB):
            ref = clients[1].put(numbers(size))
            for client in clients:
                same(client.get(ref, timeout=SOON), numbers(size))
            values = [numbers(size, "int32", seed=seed) for seed in range(4)]
            refs = [client.put(value) for client, value in zip(clients, values, strict=True)]
            for caller in clients[:2]:
                result = caller.reduce(refs)
                for client in clients:
                    same(client.get(result, timeout=SOON), fold("sum", values))
        eventually(lambda: total(clients, "bytes_direct", "bytes_relayed") == total(clients, "bytes_received") > 0)
        eventually(lambda: total(clients, "bytes_partial") == total(clients, "bytes_partial_received") > 0)
        eventually(lambda: total(clients, "fetches") == total(clients, "serves") > 0)


def test_a_sum_of_two_hosts_is_sent_by_one_and_received_by_the_other() -> None:
    with testing.cluster(2, capacity="64MiB") as nodes:
        caller, other = [node.client() for node in nodes]
        refs = [client.put(np.ones(MIB, np.int32)) for client in (caller, other)]
        same(caller.get(caller.reduce(refs), timeout=SOON), np.full(MIB, 2, np.int32))
        counters = ("bytes_partial", "bytes_partial_received")
        moved = [[0, 4 * MIB], [4 * MIB, 0]]
        # The sender counts bytes once they are sent, which may be after they have arrived.
        eventually(lambda: [[total([client], name) for name in counters] for client in (caller, other)] == moved)
