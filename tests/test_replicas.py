"""`replicas=`: objects that survive the failure of the node they were put on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, Array, Later, eventually, eventually_empty, numbers, same

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hoplite import Client
    from hoplite.testing import NodeProcess

SMALL, LARGE = 10, 300_000


@pytest.fixture
def processes() -> Iterator[list[NodeProcess]]:
    """Three nodes that can be killed."""
    with contextlib.ExitStack() as stack:
        nodes: list[NodeProcess] = []
        for _ in range(3):
            join = ["--join", nodes[0].address] if nodes else []
            nodes.append(stack.enter_context(testing.node_process(*join)))
        with nodes[0].client() as client:
            eventually(lambda: len(client.status()["members"]) == 3)
        yield nodes


def put(client: Client, value: Array, name: str | None, copies: int) -> hoplite.Ref:
    return client.put(value, name=name, replicas=copies)


def put_async(client: Client, value: Array, name: str | None, copies: int) -> hoplite.Ref:
    return asyncio.run(client.put_async(value, name=name, replicas=copies))


def fill(client: Client, value: Array, name: str | None, copies: int) -> hoplite.Ref:
    buffer = client.create(value.shape, value.dtype, name=name, replicas=copies)
    buffer[...] = value
    return buffer.seal()


def fill_async(client: Client, value: Array, name: str | None, copies: int) -> hoplite.Ref:
    async def filled() -> hoplite.Ref:
        buffer = await client.create_async(value.shape, value.dtype, name=name, replicas=copies)
        buffer[...] = value
        return await buffer.seal_async()

    return asyncio.run(filled())


@pytest.mark.faults("the node of the putter ends at once")
@pytest.mark.parametrize("verb", [put, put_async, fill, fill_async])
def test_two_replicas_survive_the_node_of_the_putter(
    processes: list[NodeProcess], verb: Callable[..., hoplite.Ref]
) -> None:
    """With and without a name, small and large, immediately after the call has returned."""
    with processes[0].client() as putter, processes[1].client() as reader:
        values = {}
        for number, size in enumerate((SMALL, LARGE)):
            value = numbers(size, seed=number)
            values[str(verb(putter, value, None, 2))] = value
            values[str(verb(putter, value, f"kept/{number}", 2))] = value
        processes[0].process.kill()
        for ref, value in values.items():
            same(reader.get(ref, timeout=SOON), value)


def test_a_ref_has_the_number_of_its_replicas() -> None:
    """It is below the requested number if the cluster has fewer nodes."""
    verbs: list[Callable[..., hoplite.Ref]] = [put, put_async, fill, fill_async]
    with testing.cluster(2) as nodes:
        client = nodes[0].client()
        for size in (SMALL, LARGE):
            for wanted, reached in [(1, 1), (2, 2), (3, 2)]:
                assert [verb(client, numbers(size), None, wanted).replicas for verb in verbs] == [reached] * 4
        assert hoplite.Ref("few/1").replicas is None


@pytest.mark.faults("a node is killed")
def test_a_single_copy_is_lost_with_its_node(processes: list[NodeProcess]) -> None:
    with processes[0].client() as putter, processes[1].client() as reader:
        ref = putter.put(numbers(LARGE))
        processes[0].process.kill()
        with pytest.raises(hoplite.ObjectLost):
            reader.get(ref, timeout=SOON)


def holders(client: Client, ref: hoplite.Ref | str) -> set[str]:
    return {location.node for location in client.locations(ref, timeout=SOON) if location.complete}


@pytest.mark.faults("the node of the putter ends at once")
def test_incomplete_objects_block_no_other_get_and_are_lost_with_their_node(processes: list[NodeProcess]) -> None:
    """Complete objects arrive while many incomplete ones are requested from the same node."""
    with processes[0].client() as getter, processes[1].client() as putter:
        begun = [putter.create(LARGE) for _ in range(60)]
        get = Later(getter.get, [buffer.ref for buffer in begun])
        eventually(lambda: getter.status()["waiting"] == 60)
        same(getter.get(putter.put(numbers(LARGE)), timeout=SOON), numbers(LARGE))
        processes[1].process.kill()
        with pytest.raises(hoplite.ObjectLost):
            get.result()
        assert getter.status()["waiting"] == 0
        for buffer in begun:
            buffer.discard()


@pytest.mark.faults("a node is killed")
def test_a_lost_replica_is_recreated(processes: list[NodeProcess]) -> None:
    with processes[0].client() as putter:
        ref = putter.put(numbers(LARGE), replicas=2)
        (keeper,) = holders(putter, ref) - {processes[0].id}
        lost, other = sorted(processes[1:], key=lambda node: node.id != keeper)
        lost.process.kill()
        eventually(lambda: holders(putter, ref) == {processes[0].id, other.id})


def test_replicas_are_pinned_until_the_object_is_deleted(nodes: list[Node]) -> None:
    clients = [node.client() for node in nodes]
    refs = [clients[0].put(numbers(size, seed=1), replicas=3) for size in (SMALL, LARGE)]
    for client in clients:
        assert {copy["ref"] for copy in client.objects() if copy["pinned"]} == {str(ref) for ref in refs}
    clients[1].delete(refs)
    for client in clients:
        eventually_empty(client)


def test_a_node_that_joins_later_gets_a_missing_replica() -> None:
    with testing.cluster(1) as (only,):
        client = only.client()
        ref = client.put(numbers(LARGE), replicas=3, timeout=SOON)
        with Node(listen="127.0.0.1:0", join=[only.address], cluster="default", socket=only.socket + "2") as other:
            eventually(lambda: holders(client, ref) == {only.id, other.id})


def test_a_deletion_ends_the_wait_for_replicas() -> None:
    """The object does not fit on the other nodes."""
    with testing.cluster(1) as (roomy,):
        small = Node(
            listen="127.0.0.1:0", join=[roomy.address], cluster="default", socket=roomy.socket + "2", capacity="1MiB"
        )
        with small, roomy.client() as client:
            testing.wait_for_members([roomy], 2)
            value = numbers(8 << 20, "uint8")
            with pytest.raises(hoplite.Timeout, match="it has 1 of 2 replicas"):
                client.put(value, name="late/1", replicas=2, timeout=0.3)
            same(client.get("late/1", timeout=SOON), value)
            again = Later(client.put, value, name="late/2", replicas=2)
            # A name that no client has put yet is free, and a deletion would have no effect.
            eventually(lambda: holders(client, "late/2") == {roomy.id})
            client.delete("late/2")
            with pytest.raises(hoplite.ObjectDeleted):
                again.result()


def test_a_buffer_deleted_before_its_seal_gets_no_replicas() -> None:
    with testing.cluster(2) as nodes:
        client = nodes[0].client()
        buffer = client.create(LARGE, name="late/1", replicas=2)
        nodes[1].client().delete("late/1")
        with pytest.raises(hoplite.ObjectDeleted):
            buffer.seal(timeout=SOON)


def is_closing(client: Client) -> bool:
    """Returns whether the client's node is closing."""
    try:
        client.put(b"")
    except hoplite.NodeDown:
        return True
    return False


def test_an_unsealed_object_of_a_closing_node_is_handed_over() -> None:
    with testing.cluster(2) as nodes:
        client, other = nodes[0].client(), nodes[1].client()
        value = numbers(LARGE)
        buffer = client.create(LARGE, "float32", name="late/1")
        get = Later(other.get, "late/1", timeout=SOON)
        closing = Later(nodes[0].close)
        eventually(lambda: is_closing(client))
        buffer[:] = value
        buffer.seal(timeout=SOON)
        closing.result()
        same(get.result(), value)
        same(other.get("late/1", timeout=0), value)


def test_an_unsealed_buffer_does_not_delay_the_close_of_its_node() -> None:
    with testing.cluster(2) as nodes:
        buffer = nodes[0].client().create(LARGE, name="late/1")
        nodes[0].close()
        with pytest.raises(hoplite.NodeDown):
            buffer.seal()


@pytest.mark.faults("a store is full")
def test_a_full_node_gets_no_replica() -> None:
    """The node with free capacity gets the replica, whichever node is selected first."""
    with testing.cluster(3, capacity="8MiB") as nodes:
        clients = [node.client() for node in nodes]
        for _ in range(16):
            clients[1].put(numbers(500 << 10, "uint8"))
        for number in range(8):
            ref = clients[0].put(numbers(400 << 10, "uint8"), name=f"copy{number}/1", replicas=2, timeout=SOON)
            # The keeper announces the copy to the putter and to the owner at once, so the owner may get it a moment
            # later.
            eventually(lambda ref=ref: holders(clients[0], ref) == {nodes[0].id, nodes[2].id})  # type: ignore[misc]


@pytest.mark.parametrize("copies", [0, -1, 2**40, 1.5, "two", None])
def test_an_invalid_number_of_replicas_is_rejected(nodes: list[Node], copies: int) -> None:
    client = nodes[0].client()
    for call in (lambda: client.put(b"x", replicas=copies), lambda: client.create(3, replicas=copies)):
        with pytest.raises(hoplite.InvalidArgument, match="replicas"):
            call()
    assert client.objects() == []


def pinned_copies(client: Client, prefix: str) -> int:
    """Returns the number of pinned copies under a prefix on a client's node."""
    return sum(copy["pinned"] and copy["ref"].startswith(prefix) for copy in client.objects())


def test_the_replicas_of_a_prefix_are_spread_evenly() -> None:
    """With eight nodes, each of the seven others keeps nine or ten of 64."""
    with testing.cluster(8, capacity="64MiB") as nodes, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in nodes]
        for number in range(64):
            clients[0].put(numbers(LARGE // 4, seed=number), name=f"p/{number}", replicas=2)
        kept = [pinned_copies(client, "p/") for client in clients]
        assert kept[0] == 64
        assert sorted(set(kept[1:])) == [9, 10]


def test_replicas_of_other_nodes_make_room_for_local_puts() -> None:
    """The replicas move to a node with free capacity; no object has fewer of them."""
    value = numbers(2**20)
    with testing.cluster(3, capacity="32MiB") as nodes, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in nodes]
        for number in range(4):
            clients[0].put(value, name=f"kept/{number}", replicas=2)
        for number in range(7):
            clients[1].put(value, name=f"own/{number}", timeout=SOON)
        assert pinned_copies(clients[1], "own/") == 7
        eventually(lambda: pinned_copies(clients[1], "kept/") + pinned_copies(clients[2], "kept/") == 4)
        assert pinned_copies(clients[0], "kept/") == 4
