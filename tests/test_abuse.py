"""Nodes under attack by processes without the token: transfers and joins succeed, and no resource grows.

`make abuse` measures the cost of each attack, in a lab. Here each attack lasts as long as one transfer and one join.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import hoplite
from faults import abuse
from faults.attacker import ATTACKS, LOCAL
from hoplite import testing
from hoplite_bench.lab import Lab
from labs import needs_lab
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite.testing import NodeProcess

pytestmark = pytest.mark.faults("processes without the token connect, and an honest handshake is cut off")

COUNT = 1 << 21
# Growth of a node's private memory that an attack may leave. The allocator retains up to 40 MiB of ten thousand
# handshakes on a busy machine, and does not grow further in the next attack.
GROWTH_MAX = 64 << 20


def memory(node: NodeProcess) -> int:
    """Returns the bytes of a node's private memory, without its store."""
    lines = Path(f"/proc/{node.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def descriptors(node: NodeProcess) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def secret() -> str:
    """The token of these nodes, which the attacker does not have."""
    return hoplite.new_token()


@pytest.fixture
def token(secret: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The token, also in this test's environment."""
    monkeypatch.setenv("HOPLITE_TOKEN", secret)
    return secret


@pytest.fixture(scope="module")
def victims(secret: str) -> Iterator[list[NodeProcess]]:
    """Two nodes in separate processes, which one attack after the other must leave as they were."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOPLITE_TOKEN", secret)
        with testing.node_process() as first, testing.node_process("--join", first.address) as second:
            yield [first, second]


def transfer(clients: list[hoplite.Client], seed: int) -> None:
    """Transfers an object from the first node to the second, and checks every byte."""
    value = np.arange(COUNT, dtype=np.int32) + seed
    ref = clients[0].put(value)
    assert np.array_equal(clients[1].get(ref, timeout=SOON), value)
    clients[0].delete([ref])


@pytest.mark.parametrize("attack", ATTACKS)
def test_transfers_and_joins_succeed_during_an_attack_and_nothing_grows(
    token: str, victims: list[NodeProcess], attack: str
) -> None:
    with hoplite.connect(victims[0].socket) as near, hoplite.connect(victims[1].socket) as far:
        clients = [near, far]
        kept = near.put(np.zeros(1 << 20), name=abuse.KEPT, exist_ok=True)
        transfer(clients, 0)
        before = [(memory(node), descriptors(node)) for node in victims]
        ids = members(near)
        assert len(ids) == 2
        strangers = [client.status()["counters"]["strangers"] for client in clients]
        is_local = attack in LOCAL
        path = str(victims[0].socket)
        targets = abuse.local_targets(path, token) if is_local else [node.address for node in victims]

        def lure(address: str) -> None:
            hoplite.Node(join=[address]).close()

        with abuse.attacking(attack, targets, lure, subprocess.Popen) as report:
            transfer(clients, 1)
            if is_local:
                assert len(hoplite.connect(path).get(kept, timeout=SOON)) == 1 << 20
            with hoplite.Node(join=[victims[0].address]) as honest:
                testing.wait_for_members([honest], 3)
                assert {member["id"] for member in near.status()["members"]} == ids | {honest.id}
        assert report["tries"] > 0
        assert report["joined"] == 0
        assert report["kept"] == 0
        eventually(lambda: members(near) == members(far) == ids)
        for node, (bytes_before, count) in zip(victims, before, strict=True):
            eventually(lambda node=node, count=count: descriptors(node) <= count)  # type: ignore[misc]
            assert memory(node) < bytes_before + GROWTH_MAX
        if not is_local:
            # A node counts a rejected connection after closing it.
            for client, then in zip(clients, strangers, strict=True):
                eventually(lambda client=client, then=then: client.status()["counters"]["strangers"] > then)  # type: ignore[misc]
        transfer(clients, 2)


def members(client: hoplite.Client) -> set[str]:
    return {member["id"] for member in client.status()["members"]}


@needs_lab
@pytest.mark.lab
def test_an_attack_from_another_host_leaks_no_descriptor_and_does_not_join(token: str) -> None:
    assert token
    with Lab(hosts=4, rate=abuse.RATE) as lab:
        figure: Any = abuse.measure(lab, "half", 16 << 20, rounds=1)
    assert figure.tries > 0
    assert figure.refused > 0
    assert figure.descriptors <= 0
