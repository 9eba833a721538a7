"""ProxyStore with Hoplite as its connector, and its Dask client on real workers."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

import pytest

from hoplite.errors import InvalidArgument, NameTaken
from hoplite.proxystore import HopliteConnector, HopliteKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import hoplite

pytestmark = [pytest.mark.dask, pytest.mark.timeout(120)]

if importlib.util.find_spec("proxystore") is None:
    pytest.skip("needs ProxyStore; make test-dask has it", allow_module_level=True)


def as_bytes(found: memoryview | None) -> bytes | None:
    """Returns a result as bytes."""
    return None if found is None else bytes(found)


@pytest.fixture
def connector(node: hoplite.Node) -> Iterator[HopliteConnector]:
    with HopliteConnector(f"unix:{node.socket}") as connector:
        yield connector


def test_the_connector_implements_both_protocols(connector: HopliteConnector) -> None:
    from proxystore.connectors.protocols import Connector, DeferrableConnector

    assert isinstance(connector, Connector)
    assert isinstance(connector, DeferrableConnector)


@pytest.mark.parametrize("size", [0, 5, 2**20])
def test_bytes_are_returned_in_shared_memory(connector: HopliteConnector, size: int) -> None:
    data = os.urandom(size)
    key = connector.put(data)
    found = connector.get(key)
    assert isinstance(found, memoryview)
    assert found.readonly
    assert found == data
    connector.evict(key)
    # The result stays valid.
    assert found == data
    assert connector.get(key) is None
    assert not connector.exists(key)


def test_a_get_of_an_unknown_key_returns_at_once(connector: HopliteConnector) -> None:
    key = connector.new_key()
    assert connector.get(key) is None
    assert connector.get_batch([key, HopliteKey("proxystore/none")]) == [None, None]
    connector.evict(key)
    connector.set(key, b"now")
    assert as_bytes(connector.get(key)) == b"now"


def test_a_key_has_one_value(connector: HopliteConnector) -> None:
    key = connector.new_key()
    connector.set(key, b"x" * 2**20)
    connector.set(key, bytearray(b"x" * 2**20))
    with pytest.raises(NameTaken, match="already holds different bytes: evict it"):
        connector.set(key, b"y")
    connector.evict(key)
    connector.set(key, b"y")
    assert as_bytes(connector.get(key)) == b"y"


def test_other_nodes_get_the_values(nodes: list[hoplite.Node]) -> None:
    connectors = [HopliteConnector(f"unix:{node.socket}") for node in nodes]
    for data in (b"small", os.urandom(2**20)):
        keys = connectors[0].put_batch([data, data])
        assert all(one.exists(key) for one in connectors for key in keys)
        assert [as_bytes(one.get(keys[0])) for one in connectors] == [data] * 3
        deferred = connectors[1].new_key()
        assert connectors[2].get(deferred) is None
        connectors[1].set(deferred, data)
        assert as_bytes(connectors[2].get(deferred)) == data
        for key in (*keys, deferred):
            connectors[2].evict(key)
            assert connectors[0].get(key) is None
    for connector in connectors:
        connector.close()
        connector.close()


def test_a_connector_deletes_its_objects_on_close(node: hoplite.Node) -> None:
    with HopliteConnector(f"unix:{node.socket}", clear=True) as connector:
        connector.put(b"x" * 2**20)
        connector.set(connector.new_key(), b"y")
    with node.client() as client:
        assert client.objects() == []


def test_an_invalid_prefix_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="prefix '@1' is not valid"):
        HopliteConnector(prefix="@1")


def test_the_connector_can_be_created_from_a_configuration(node: hoplite.Node) -> None:
    from proxystore.store.config import ConnectorConfig

    configured = ConnectorConfig(kind="hoplite.proxystore.HopliteConnector", options={"address": f"unix:{node.socket}"})
    with configured.get_connector() as connector:
        key = connector.put(b"x")
        # In another process, a store creates its connector from these.
        with type(connector).from_config(connector.config()) as other:
            assert other.get(key) == b"x"


@pytest.mark.filterwarnings("ignore")
def test_the_client_of_proxystore_runs_on_dask_workers(tmp_path: Path) -> None:
    import numpy as np
    from distributed import LocalCluster
    from proxystore.store import Store
    from proxystore_ex.plugins.distributed import Client

    import dask_tasks
    import hoplite.dask as hd
    from dask_clusters import eventually_none_is_left

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            memory_limit=0,
            env={"XDG_RUNTIME_DIR": str(tmp_path)},
        ) as cluster,
        Client(cluster) as plain,
    ):
        installation = hd.install(plain, memory="256MiB")
        (node,) = installation.nodes
        connector = HopliteConnector(f"unix:{node['socket']}")
        with Store("hoplite", connector, register=True) as store, Client(cluster, ps_store=store) as client:
            arrays = [np.full(2**17, float(value)) for value in range(3)]
            assert client.submit(np.sum, arrays[1]).result() == 2**17
            assert client.gather(client.map(np.sum, arrays)) == [0.0, 2.0**17, 2.0**18]
            large = client.submit(dask_tasks.make, 2**17, 2.0, pure=False)
            # The result is a proxy too, which is resolved here. A worker put its bytes through the node of its host.
            assert large.result().sum() == 2**18
        # Arguments are deleted after their tasks, and results of impure tasks once they are resolved.
        eventually_none_is_left(installation)
