"""Failure detection: paused processes are declared dead in time, and rejoin with their objects once they continue."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import testing
from hoplite.tools.cli.status import status as status_command
from programs import frozen, kill
from support import SOON, Later, eventually, numbers, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite import Client
    from hoplite.testing import NodeProcess

pytestmark = pytest.mark.faults("nodes are paused")

MIB = 2**20
DETECTION_S = 1.0


class Group:
    """Some nodes in separate processes, and a client of each."""

    def __init__(self, nodes: list[NodeProcess], clients: list[Client]) -> None:
        self.nodes = nodes
        self.clients = clients

    def members(self, number: int) -> list[str]:
        return [member["id"] for member in self.clients[number].status()["members"]]

    def have_members(self, *numbers: int) -> bool:
        """Returns whether the member list of each of these nodes is exactly these nodes."""
        ids = sorted(self.nodes[number].id for number in numbers)
        return all(sorted(self.members(number)) == ids for number in numbers)


@pytest.fixture
def group() -> Iterator[Group]:
    with contextlib.ExitStack() as stack:
        nodes: list[NodeProcess] = []
        for _ in range(4):
            join = ["--join", nodes[0].address] if nodes else []
            nodes.append(
                stack.enter_context(testing.node_process("--detection-timeout", str(DETECTION_S), *join)),
            )
        group = Group(nodes, [stack.enter_context(node.client()) for node in nodes])
        eventually(lambda: group.have_members(0, 1, 2, 3))
        yield group


def test_a_paused_node_is_declared_dead_and_rejoins_with_its_objects(group: Group) -> None:
    value = numbers(4 * MIB, "uint8", seed=1)
    small, large = group.clients[2].put(b"here", name="small/1"), group.clients[2].put(value, name="large/1")
    eventually(lambda: bool(group.clients[0].locations(large)))
    begun = time.monotonic()
    with frozen(group.nodes[2].process):
        eventually(lambda: group.have_members(0, 1, 3))
        # A busy machine may detect it later. Earlier would be a false detection.
        assert time.monotonic() - begun > DETECTION_S / 3
        (lost,) = group.clients[0].status()["lost"]
        assert lost["id"] == group.nodes[2].id
        assert "1.0 s" in lost["reason"]
        # The owners of small objects have their bytes.
        assert bytes(group.clients[0].get(small, timeout=SOON)) == b"here"
        with pytest.raises(hoplite.ObjectLost):
            group.clients[1].get(large, timeout=SOON)
        again = group.clients[3].put(b"meanwhile", name="other/1")
    eventually(lambda: group.have_members(0, 1, 2, 3))
    assert group.clients[0].status()["lost"] == []
    eventually(lambda: bool(group.clients[1].locations(large)))
    for client in group.clients:
        same(client.get(large, timeout=SOON), value)
        assert bytes(client.get(small, timeout=SOON)) == b"here"
        assert bytes(client.get(again, timeout=SOON)) == b"meanwhile"
    group.clients[1].delete([small, large, again], timeout=SOON)
    eventually(lambda: not any(client.objects() for client in group.clients))


def test_a_briefly_paused_node_stays_a_member(group: Group) -> None:
    with frozen(group.nodes[1].process):
        time.sleep(DETECTION_S / 4)
    time.sleep(2 * DETECTION_S)
    assert group.have_members(0, 1, 2, 3)
    assert all(client.status()["lost"] == [] for client in group.clients)


def test_receivers_of_a_paused_relay_fetch_the_rest_elsewhere(group: Group) -> None:
    """The object is still being written. It is relayed from node to node in the order of the gets."""
    value = numbers(32 * MIB, "uint8", seed=2)
    half = len(value) // 2
    buffer = group.clients[0].create(len(value), "uint8", name="growing/1")
    buffer[:half] = value[:half]
    gets = []
    for number in (1, 2, 3):
        gets.append(Later(group.clients[number].get, "growing/1", timeout=SOON))
        eventually(lambda number=number: has_begun(group.clients[number]))  # type: ignore[misc]
    with frozen(group.nodes[1].process):
        buffer[half:] = value[half:]
        buffer.seal()
        for get in gets[1:]:
            same(get.result(), value)
    same(gets[0].result(), value)


def has_begun(client: Client) -> bool:
    return any(copy["state"] == "flowing" for copy in client.objects())


def test_a_get_fails_soon_after_the_only_holder_was_paused(group: Group) -> None:
    buffer = group.clients[1].create(8 * MIB, "uint8", name="half/1")
    buffer[: 4 * MIB] = 1
    get = Later(group.clients[2].get, "half/1", timeout=SOON)
    eventually(lambda: has_begun(group.clients[2]))
    with frozen(group.nodes[1].process), pytest.raises(hoplite.ObjectLost, match="half/1"):
        get.result(SOON)
    buffer.discard()


def test_a_reduce_replaces_a_paused_contributor(group: Group) -> None:
    values = [numbers(4 * MIB, "float32", seed=seed) for seed in range(3)]
    growing = group.clients[1].create(4 * MIB, "float32", name="in/1")
    growing[: 2 * MIB] = values[1][: 2 * MIB]
    group.clients[2].put(values[2], name="in/2")
    ref = group.clients[0].reduce(["in/1", "in/2", "in/3"], count=2, timeout=SOON)
    get = Later(group.clients[3].get, ref, timeout=SOON)
    time.sleep(0.1)
    with frozen(group.nodes[1].process):
        group.clients[3].put(values[0], name="in/3")
        same(get.result(), values[2] + values[0])
        assert {str(made) for made in ref.inputs()} == {"in/2", "in/3"}
    growing.discard()


def test_a_reduce_without_a_spare_fails_if_a_contributor_is_paused(group: Group) -> None:
    group.clients[1].put(numbers(4 * MIB, seed=1), name="in/1")
    group.clients[2].put(numbers(4 * MIB, seed=2), name="in/2")
    eventually(lambda: len(group.clients[0].wait(["in/1", "in/2"], timeout=0)[0]) == 2)
    with frozen(group.nodes[1].process):
        ref = group.clients[0].reduce(["in/1", "in/2"], timeout=SOON)
        with pytest.raises(hoplite.ObjectLost, match="in/1"):
            group.clients[0].get(ref, timeout=SOON)


def test_status_lists_lost_nodes(group: Group) -> None:
    from click.testing import CliRunner

    with frozen(group.nodes[3].process):
        eventually(lambda: group.have_members(0, 1, 2))
        output = CliRunner().invoke(status_command, ["--socket", group.nodes[0].socket], catch_exceptions=False).output
    (line,) = [line for line in output.splitlines() if group.nodes[3].id in line]
    assert "failed" in line
    assert "replied to no node" in line
    assert sum("alive" in line for line in output.splitlines()) == 3


def test_a_lost_node_is_not_reconnected_once_another_has_its_address() -> None:
    """The new node does not see reconnects: its log has no line for each of them."""
    with testing.node_process() as other, other.client() as client:
        with testing.node_process("--join", other.address) as first:
            eventually(lambda: len(client.status()["members"]) == 2)
            kill(first.process)
            eventually(lambda: [lost["id"] for lost in client.status()["lost"]] == [first.id])
        with testing.node_process("--listen", first.address, "--join", other.address) as second:
            assert second.address == first.address
            eventually(lambda: client.status()["lost"] == [])
            assert [member["id"] for member in client.status()["members"] if member["id"] != other.id] == [second.id]
            logs = [(Path(node.socket).parent / "stderr").read_text() for node in (other, second)]
        assert logs[0].count("another node listens at the address of a failed member") == 1
        assert "refused a connection" not in logs[1]
