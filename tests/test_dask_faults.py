"""Faults under Hoplite on a Dask cluster: failed workers, nodes and ports are repaired, or reported clearly."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest

import hoplite
from hoplite.errors import AddressInUse, ObjectLost
from support import eventually

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs Dask; make test-dask has it", allow_module_level=True)

import dask_tasks
import hoplite.dask as hd
from dask_clusters import eventually_none_is_left, folders, hosts, node_clients, on_each, one_host, workers
from hoplite.dask import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distributed import Client

    from hoplite.dask import Installation

pytestmark = [pytest.mark.dask, pytest.mark.timeout(120)]

SIZE = 2**17


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A Dask client of two workers on two hosts with Hoplite."""
    with hosts(folders(tmp_path_factory.mktemp("h"), 2)) as client:
        hd.install(client, memory="256MiB")
        yield client


@pytest.fixture
def client(cluster: Client) -> Iterator[Client]:
    """The same client. A test leaves two workers and two nodes, as it found them."""
    yield cluster
    cluster.wait_for_workers(2, timeout=60)
    eventually(lambda: len(hd.install(cluster).nodes) == 2)


@pytest.mark.faults("a worker is killed")
def test_a_restarted_worker_uses_its_node_again(client: Client) -> None:
    installation = hd.install(client)
    before = installation.nodes
    future = hd.scatter(client, np.ones(SIZE))
    holder = (
        client.who_has(future)[future.key][0] if client.who_has(future)[future.key] else next(iter(workers(client)))
    )
    future.result()
    known = workers(client)
    os.kill(known[holder], signal.SIGKILL)
    # Its nanny restarts it. The node and the array have survived.
    eventually(lambda: holder not in workers(client) and len(workers(client)) == 2)
    eventually(lambda: all(isinstance(row, dict) for row in installation.run(tasks.where).values()))
    assert installation.nodes == before
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, future)] == [SIZE] * 2
    del future
    eventually_none_is_left(installation)


@pytest.mark.faults("a worker is killed")
def test_a_worker_killed_during_a_sum_loses_no_input(client: Client) -> None:
    installation = hd.install(client)
    first, second = workers(client)
    gate = client.submit(dask_tasks.wait_for, "gate/1", workers=[first], allow_other_workers=True, pure=False)
    made = client.submit(dask_tasks.make, 8, 1.0, workers=[second], allow_other_workers=True, pure=False)
    total = hd.reduce(client, [gate, made])
    made.result()
    os.kill(workers(client)[second], signal.SIGKILL)
    with node_clients(installation) as nodes:
        nodes[0].put(np.array(4.0), name="gate/1")
        assert total.result(timeout=90).tolist() == [5] * 8
        nodes[0].delete("gate/1")


@pytest.mark.faults("a node is killed")
def test_a_killed_node_is_restarted(client: Client) -> None:
    installation = hd.install(client)
    victim, other = installation.nodes
    kept = hd.scatter(client, np.ones(SIZE))
    os.kill(node_process(victim["socket"]), signal.SIGKILL)
    eventually(
        lambda: len(installation.nodes) == 2 and victim["node"] not in [row["node"] for row in installation.nodes]
    )
    assert other["node"] in [row["node"] for row in installation.nodes]
    # The other host had a copy, because a broadcast leaves one on every host.
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, kept)] == [SIZE] * 2
    # Later transfers use both nodes.
    later = hd.scatter(client, np.full(SIZE, 2.0))
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, later)] == [2 * SIZE] * 2


@pytest.mark.faults("a node is killed")
def test_an_array_on_a_killed_node_only_is_lost(client: Client) -> None:
    installation = hd.install(client)
    with node_clients(installation) as nodes:
        # Dask chooses the worker that holds the future. If it is on another host than the array, the array is copied to
        # it.
        for _ in range(30):
            future = hd.scatter(client, np.ones(SIZE), broadcast=False)
            future.result()
            holders = {location.node for location in nodes[0].locations(hd.ref(future))}
            if len(holders) == 1:
                break
        (holder,) = holders
        (victim,) = [row for row in installation.nodes if row["node"] == holder]
    os.kill(node_process(victim["socket"]), signal.SIGKILL)
    eventually_another(installation, holder)
    # Workers with a view keep using it. A worker without one can't get the array.
    client.restart_workers(list(client.who_has(future)[future.key]))
    with pytest.raises(ObjectLost):
        future.result(timeout=60)


@pytest.mark.faults("a node is taken away")
def test_a_worker_without_a_node_gets_bytes_through_dask(client: Client) -> None:
    installation = hd.install(client)
    first, second = workers(client)
    client.run(lose_node, workers=[second])
    assert isinstance(installation.run(tasks.where)[first], dict)
    future = client.submit(dask_tasks.make, SIZE, 3.0, workers=[first], pure=False)
    future.result()
    installation.run_on(first, tasks.lift, [future.key])
    row = client.submit(dask_tasks.facts, future, workers=[second]).result(timeout=60)
    assert row["sum"] == 3 * SIZE
    client.restart_workers([second])


async def lose_node(dask_worker: object) -> None:
    """Simulates a worker whose node could not start: the plugin is there, but no node."""
    from hoplite.dask import process

    plugin = dask_worker.plugins["hoplite"]  # type: ignore[attr-defined]
    plugin._watcher.cancel()
    # The handshake still announces that this worker reads refs.
    del process._members[plugin.installation]


def eventually_another(installation: Installation, gone: str) -> None:
    """Waits until another node has replaced a killed one."""

    def is_there() -> bool:
        found = [row["node"] for row in installation.nodes]
        return len(found) == 2 and gone not in found

    eventually(is_there)


def node_process(path: str) -> int:
    """Returns the process that serves a node's socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(path)
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], "little")


@pytest.mark.faults("a port is taken")
def test_a_taken_port_is_named_and_nothing_remains_installed(tmp_path: Path) -> None:
    with one_host(tmp_path, workers=2) as client, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=rf"host {socket.gethostname()} did not start.*{port}"):
            hd.install(client, port=port)
        assert client.run_on_scheduler(tasks.installed) is None
        taken.close()
        installation = hd.install(client, port=port)
        assert installation.nodes[0]["address"] == f"127.0.0.1:{port}"
        assert isinstance(installation.client, hoplite.Client)
