"""Clusters do not merge once they have lost a member: another process can have its address by then."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import testing
from programs import frozen, kill
from support import SOON, eventually

if TYPE_CHECKING:
    from hoplite import Client
    from hoplite.testing import NodeProcess

DETECTION = ("--detection-timeout", "1")


def members(client: Client) -> set[str]:
    return {member["id"] for member in client.status()["members"]}


def has_members(client: Client, *nodes: NodeProcess) -> bool:
    return members(client) == {node.id for node in nodes}


def warnings(node: NodeProcess) -> list[str]:
    """Returns the lines of a node's log about other clusters."""
    log = (Path(node.socket).parent / "stderr").read_text()
    return [line for line in log.splitlines() if "another cluster" in line]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@pytest.mark.faults("a node is killed, and a node of another cluster takes its address")
def test_a_node_does_not_join_the_cluster_that_took_the_address_of_its_lost_seed() -> None:
    with contextlib.ExitStack() as stack:
        seed = stack.enter_context(testing.node_process())
        node = stack.enter_context(testing.node_process("--join", seed.address))
        client = stack.enter_context(node.client())
        eventually(lambda: has_members(client, seed, node))
        client.put(b"of the first job", name="policy/1")
        kill(seed.process)
        eventually(lambda: has_members(client, node))

        other = stack.enter_context(testing.node_process("--listen", seed.address))
        third = stack.enter_context(testing.node_process("--join", other.address))
        stranger = stack.enter_context(other.client())
        stranger.put(b"of the second job", name="policy/1")
        eventually(lambda: bool(warnings(node) and warnings(other)))
        assert has_members(client, node)
        assert has_members(stranger, other, third)
        assert bytes(client.get("policy/1", timeout=SOON)) == b"of the first job"
        assert bytes(stranger.get("policy/1", timeout=SOON)) == b"of the second job"
        for one, peer in ((node, other), (other, node)):
            (line,) = warnings(one)
            assert f"{peer.id} at {peer.address}" in line
            assert "with join set to" in line
        # The id of the other cluster may have changed when the third node joined it.
        mine = client.status()["cluster_id"]
        assert f"this node is of cluster {mine}" in warnings(node)[0]
        assert f"is of cluster {mine}, but this node" in warnings(other)[0]

        # The advice of the log.
        third.stop()
        with testing.node_process("--listen", third.address, "--join", node.address) as moved, moved.client() as far:
            eventually(lambda: has_members(client, node, moved))
            assert bytes(far.get("policy/1", timeout=SOON)) == b"of the first job"


@pytest.mark.faults("nodes are paused")
def test_two_halves_that_have_lost_each_other_meet_again() -> None:
    with (
        testing.node_process(*DETECTION) as one,
        testing.node_process(*DETECTION, "--join", one.address) as two,
        one.client() as near,
        two.client() as far,
    ):
        eventually(lambda: has_members(near, one, two) and has_members(far, one, two))
        with frozen(two.process):
            eventually(lambda: has_members(near, one))
            near.put(b"near", name="half/1")
            paused = contextlib.ExitStack()
            paused.enter_context(frozen(one.process))
        with paused:
            eventually(lambda: has_members(far, two))
            far.put(b"far", name="half/2")
        eventually(lambda: has_members(near, one, two) and has_members(far, one, two))
        for client in (near, far):
            assert bytes(client.get("half/1", timeout=SOON)) == b"near"
            assert bytes(client.get("half/2", timeout=SOON)) == b"far"


def test_nodes_that_start_together_with_each_others_addresses_form_one_cluster() -> None:
    """They first find each other in pairs. A node that restarts joins them again."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]

    def start(number: int) -> hoplite.Node:
        # The other node of its pair comes first.
        order = [number ^ bit for bit in (1, 2, 3)]
        return hoplite.Node(listen=addresses[number], join=[addresses[other] for other in order], cluster="together")

    with ThreadPoolExecutor(len(addresses)) as pool:
        nodes = list(pool.map(start, range(len(addresses))))
    try:
        testing.wait_for_members(nodes, 4, timeout=SOON)
        for number in (0, 3):
            nodes[number].close()
            nodes[number] = start(number)
        testing.wait_for_members(nodes, 4, timeout=SOON)
        assert len({node.client().status()["cluster_id"] for node in nodes}) == 1
    finally:
        for node in nodes:
            node.close(0)


def test_a_node_starts_without_its_seeds_if_another_has_joined_it_meanwhile() -> None:
    """Otherwise it would end, and the other one would have lost its cluster before that was complete."""
    address, nowhere = (f"127.0.0.1:{port}" for port in free_ports(2))
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(hoplite.Node, listen=address, join=[nowhere], cluster="meanwhile")
        with hoplite.Node(join=[address], cluster="meanwhile") as other, starting.result(SOON) as node:
            testing.wait_for_members([node, other], 2, timeout=SOON)
