"""Small objects are stored at their owners within a limit; others are fetched from the node on which they were put."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, Later, eventually, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client

# Capacity of the owner: a quarter holds 16 of the largest small objects, and an eighth holds 8 of one member.
CAPACITY = 2 << 20
LARGEST = 32 * 1024
SHARE_OF_ONE = CAPACITY // 8


@pytest.fixture
def trio() -> Iterator[list[Node]]:
    """A node with little capacity, one that puts, and one that reads."""
    with contextlib.ExitStack() as stack:
        nodes: list[Node] = []
        for capacity in (CAPACITY, 256 << 20, 256 << 20):
            join = [nodes[0].address] if nodes else []
            listen = "127.0.0.1:0"
            nodes.append(stack.enter_context(Node(listen=listen, join=join, capacity=capacity)))
        testing.wait_for_members(nodes, 3)
        yield nodes


def owned_by(node: Node, client: Client) -> str:
    """Returns a prefix of names whose primary owner is the node."""
    prefixes = (f"owned{number}" for number in range(1000))
    return next(prefix for prefix in prefixes if client._open().start_owners(f"{prefix}/0").result()[0] == node.id)


def small(client: Client) -> tuple[int, int]:
    store = client.status()["store"]
    return store["small"], store["small_capacity"]


def test_an_owner_stores_small_objects_up_to_its_limit_and_all_can_be_read(trio: list[Node]) -> None:
    """Memory stays within its limit, no put fails, no value is lost, and deletions free the capacity."""
    owner, putter, reader = clients = [node.client() for node in trio]
    prefix = owned_by(trio[0], reader)
    values = {
        f"{prefix}/{number}": np.full(LARGEST // 8, number, np.int64) for number in range(3 * CAPACITY // LARGEST)
    }
    late = Later(reader.get, f"{prefix}/{len(values) - 1}", timeout=SOON)
    for name, value in values.items():
        putter.put(value, name=name, timeout=SOON)
    same(late.result(), values[f"{prefix}/{len(values) - 1}"])
    used, most = small(owner)
    assert most == CAPACITY // 4
    assert SHARE_OF_ONE - LARGEST <= used <= SHARE_OF_ONE
    rows = owner.status()["limits"]
    assert [(row["member"], row["process"], row["limit"]) for row in rows] == [(trio[1].id, None, "INLINE_SHARE")]
    assert rows[0]["count"] >= len(values) - SHARE_OF_ONE // LARGEST
    for client in clients:
        for got, value in zip(client.get(list(values), timeout=SOON), values.values(), strict=True):
            same(got, value)
    ready, missing = reader.wait(list(values), count=len(values), timeout=SOON)
    assert (len(ready), missing) == (len(values), [])
    total = reader.reduce(list(values), timeout=SOON)
    same(reader.get(total, timeout=SOON), sum(values.values(), np.zeros(LARGEST // 8, np.int64)))
    # Another member created the sum, and this node may be its backup owner.
    assert small(owner)[0] <= SHARE_OF_ONE + LARGEST
    putter.delete([*values, total])
    eventually(lambda: small(owner)[0] == 0)
    putter.put(b"again", name=f"{prefix}/again")
    assert reader.get(f"{prefix}/again", timeout=SOON) == b"again"
    assert small(owner)[0] > 0


def test_every_member_has_its_own_share_of_an_owners_cache(trio: list[Node]) -> None:
    owner, first, second = (node.client() for node in trio)
    prefix = owned_by(trio[0], owner)
    for number in range(2 * SHARE_OF_ONE // LARGEST):
        first.put(b"x" * LARGEST, name=f"{prefix}/first{number}", timeout=SOON)
    before = small(owner)[0]
    second.put(b"y" * 1000, name=f"{prefix}/second", timeout=SOON)
    assert small(owner)[0] >= before + 1000
    assert {row["member"] for row in owner.status()["limits"]} == {trio[1].id}


@pytest.mark.faults("the node of the putter ends at once")
def test_small_objects_beyond_the_limit_are_lost_with_their_node_unless_replicated(trio: list[Node]) -> None:
    """See docs/memory.md. Objects at owners survive the node, and so do replicas."""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(testing.node_process("--join", trio[0].address))
        testing.wait_for_members(trio, 4)
        owner, _, reader = (node.client() for node in trio)
        putter = stack.enter_context(process.client())
        # The backup owner must be the node that is killed.
        prefixes = (f"two{number}" for number in range(1000))
        owners = [trio[0].id, process.id]
        prefix = next(each for each in prefixes if reader._open().start_owners(f"{each}/0").result() == owners)
        kept = putter.put(b"k" * 1000, name=f"{prefix}/kept", timeout=SOON)
        for number in range(SHARE_OF_ONE // LARGEST + 1):
            putter.put(b"x" * LARGEST, name=f"{prefix}/filler{number}", timeout=SOON)
        lost = putter.put(b"l" * LARGEST, name=f"{prefix}/lost", timeout=SOON)
        both = putter.put(b"b" * LARGEST, name=f"{prefix}/both", replicas=2, timeout=SOON)
        assert bytes(reader.get(lost, timeout=SOON)) == b"l" * LARGEST
        process.process.kill()
        testing.wait_for_members(trio, 3)
        assert bytes(reader.get(kept, timeout=SOON)) == b"k" * 1000
        assert bytes(reader.get(both, timeout=SOON)) == b"b" * LARGEST
        with pytest.raises(hoplite.HopliteError):
            reader.get(lost, timeout=2)
        # Objects that the keeper announces count as its own.
        used, most = small(owner)
        assert used <= most
