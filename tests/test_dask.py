"""Hoplite on a Dask cluster of real processes: one node per host, arrays as refs, sums on the hosts that hold them."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from hoplite import sockets
from hoplite.errors import InvalidArgument, ShapeMismatch, UnknownOp, UnsupportedDtype
from support import eventually

if importlib.util.find_spec("distributed") is None:
    pytest.skip("needs Dask; make test-dask has it", allow_module_level=True)

import dask_tasks
import hoplite.dask as hd
from dask_clusters import (
    at_peace,
    eventually_none_is_left,
    folders,
    hosts,
    node_clients,
    on_each,
    one_host,
    workers,
)
from hoplite.dask import tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Client

    from hoplite.dask import Installation

pytestmark = [pytest.mark.dask, pytest.mark.timeout(120)]

BLOCK = re.compile(r"^<!-- example: dask -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SIZE = 2**17  # of float64: 1 MiB, too large for an inline object


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A Dask client of three workers on three hosts with Hoplite."""
    with hosts(folders(tmp_path_factory.mktemp("h"), 3)) as client:
        hd.install(client, memory="256MiB")
        # The memory manager drops copies, which one test covers.
        client.amm.stop()
        yield client


@pytest.fixture
def installed(client: Client) -> Iterator[Installation]:
    """The installation. A test must leave it empty and undisturbed."""
    found = hd.install(client)
    yield found
    eventually_none_is_left(found)
    at_peace(found)


def test_workers_of_a_host_share_one_node_that_ends_with_them(tmp_path: Any) -> None:  # noqa: ANN401
    with one_host(tmp_path) as client:
        installation = hd.install(client, memory="64MiB")
        (node,) = installation.nodes
        assert installation.client is not None
        assert installation.client.status()["store"]["capacity"] == 64 * 2**20
        # Each worker finds the node without configuration.
        found = client.run(dask_tasks.node_id)
        assert len(found) == 3
        assert set(found.values()) == {node["node"]}
        again = hd.install(client)
        assert again is installation
        with pytest.raises(InvalidArgument, match="memory='64MiB', not '1GiB'"):
            hd.install(client, memory="1GiB")
        # A worker that joins later finds it too.
        client.cluster.scale(4)
        client.wait_for_workers(4, timeout=60)
        eventually(lambda: set(client.run(dask_tasks.node_id).values()) == {node["node"]})
        # All workers map the same memory, at different addresses.
        future = hd.scatter(client, np.arange(float(SIZE)))
        seen = on_each(client, dask_tasks.facts, future)
        assert {row["sum"] for row in seen} == {SIZE * (SIZE - 1) / 2}
        at_peace(installation)
        hd.uninstall(client)
        eventually(lambda: not Path(node["socket"]).exists() or not sockets.is_served(node["socket"]))
        assert client.submit(dask_tasks.make, 3, 1.0).result().tolist() == [1, 1, 1]
        with pytest.raises(InvalidArgument, match="install"):
            hd.scatter(client, np.ones(3))
        # It can be installed again.
        assert hd.install(client, memory="64MiB").id != installation.id


def test_the_secret_appears_in_no_command_line_environment_or_log(client: Client, installed: Installation) -> None:
    plugin = pickle.loads(client.run_on_scheduler(tasks.installed))
    token = plugin._token
    assert token.startswith("hpt1_")
    assert token not in repr(plugin) + str(installed.__dict__) + repr(installed.nodes)
    processes = psutil.pids()
    looked = 0
    for process in processes:
        try:
            text = dask_tasks.files_of(process)
        except OSError:
            continue
        looked += "host.py" in text
        assert token not in text
    assert looked >= 3
    logs = str(client.get_worker_logs()) + str(client.get_scheduler_logs())
    assert token not in logs


def test_a_task_gets_a_plain_read_only_array_on_every_host(client: Client, installed: Installation) -> None:
    array = np.arange(float(SIZE)).reshape(2, -1)
    future = hd.scatter(client, array)
    # The array is on every host before any task needs it.
    with node_clients(installed) as nodes:
        assert [len(node.objects(str(hd.ref(future)))) for node in nodes] == [1, 1, 1]
    for row in on_each(client, dask_tasks.facts, future):
        assert (row["type"], row["sum"], row["shape"]) == ("ndarray", array.sum(), array.shape)
        assert not row["writeable"]
    assert np.array_equal(future.result(), array)


def test_dask_moves_the_ref_and_not_the_bytes(client: Client, installed: Installation) -> None:
    future = hd.scatter(client, np.ones(8 * SIZE), broadcast=False)
    client.run(dask_tasks.watch_sent)
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, future)] == [8 * SIZE] * 3
    # Two workers received it from a third.
    sent = [nbytes for each in client.run(dask_tasks.sent).values() for nbytes in each]
    assert sent == [0, 0]
    # The scheduler forwards the request of a client, which may have no node.
    assert future.result().sum() == 8 * SIZE
    sent = [nbytes for each in client.run(dask_tasks.sent).values() for nbytes in each]
    assert sorted(sent) == [0, 0, 8 * 8 * SIZE]
    client.run(dask_tasks.end_watching)
    del installed


def test_lists_and_dicts_keep_their_type(client: Client, installed: Installation) -> None:
    pair = hd.scatter(client, [np.ones(3), np.zeros(SIZE)])
    assert [future.result().sum() for future in pair] == [3, 0]
    named = hd.scatter(client, {"a": np.ones(5)}, broadcast=False)
    assert named["a"].result().tolist() == [1] * 5
    assert hd.scatter(client, ()) == ()
    del installed


def test_a_value_that_is_no_array_is_rejected(client: Client, installed: Installation) -> None:
    with pytest.raises(UnsupportedDtype, match="not a str: use client"):
        hd.scatter(client, ["text"])
    with pytest.raises(UnsupportedDtype, match="not a MaskedArray"):
        hd.scatter(client, np.ma.masked_array([1.0], [True]))
    with pytest.raises(InvalidArgument, match="Client, not a str"):
        hd.install("tcp://127.0.0.1:8786")
    del installed


def test_a_copy_dropped_by_the_memory_manager_is_found_again(client: Client, installed: Installation) -> None:
    future = hd.scatter(client, np.ones(SIZE))
    on_each(client, dask_tasks.facts, future)
    eventually(lambda: len(client.who_has(future)[future.key]) == 3)
    client.amm.run_once()
    eventually(lambda: len(client.who_has(future)[future.key]) == 1)
    with node_clients(installed) as nodes:
        assert [len(node.objects(str(hd.ref(future)))) for node in nodes] == [1, 1, 1]
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, future)] == [SIZE] * 3


def test_a_result_of_any_task_is_replicated_as_a_ref(client: Client, installed: Installation) -> None:
    first, *_ = workers(client)
    future = client.submit(dask_tasks.make, SIZE, 2.0, workers=[first], pure=False)
    hd.replicate(client, future)
    assert len(client.who_has(future)[future.key]) == 3
    assert {row["writeable"] for row in on_each(client, dask_tasks.facts, future)} == {False}
    with node_clients(installed) as nodes:
        assert [len(node.objects()) for node in nodes] == [1, 1, 1]


def test_a_failed_task_is_not_replicated(client: Client, installed: Installation) -> None:
    with pytest.raises(RuntimeError, match="no array"):
        hd.replicate(client, [client.submit(dask_tasks.fail, "no array", pure=False)])
    del installed


def test_an_array_that_a_task_returns_outlives_its_object(client: Client, installed: Installation) -> None:
    first, second, _ = workers(client)
    future = hd.scatter(client, np.ones(SIZE))
    other = client.submit(dask_tasks.same, future, workers=[first], pure=False)
    assert other.result().sum() == SIZE
    del future
    with node_clients(installed) as nodes:
        eventually(lambda: nodes[0].directory(timeout=30) == [])
    # The worker still has its view; another one gets the bytes through Dask.
    assert client.submit(dask_tasks.facts, other, workers=[second]).result()["sum"] == SIZE


@pytest.mark.parametrize("op", ["sum", "max", "mean"])
def test_arrays_of_tasks_can_be_reduced(client: Client, installed: Installation, op: str) -> None:
    made = [client.submit(dask_tasks.make, SIZE, float(value), pure=False) for value in (1, 2, 6)]
    total = hd.reduce(client, made, op)
    expected = {"sum": 9, "max": 6, "mean": 3}[op]
    assert [row["sum"] for row in on_each(client, dask_tasks.facts, total)] == [expected * SIZE] * 3
    assert total.result().tolist() == [expected] * SIZE
    del installed


def test_scattered_arrays_are_reduced_without_another_put(client: Client, installed: Installation) -> None:
    inputs = hd.scatter(client, [np.full(SIZE, value) for value in (1.0, 2.0)], broadcast=False)
    total = hd.reduce(client, inputs)
    assert total.result()[0] == 3
    assert sorted(map(str, hoplite_refs(installed))) == sorted(str(hd.ref(one)) for one in [*inputs, total])
    # A sum can be an input too.
    assert hd.reduce(client, [total, inputs[0]], "max").result()[0] == 3


def hoplite_refs(installed: Installation) -> list[str]:
    with node_clients(installed) as nodes:
        return [row["ref"] for row in nodes[0].directory(timeout=30)]


def test_the_first_inputs_are_reduced_without_the_rest(client: Client, installed: Installation) -> None:
    gate = "gate/1"
    here, *_ = workers(client)
    late = client.submit(dask_tasks.wait_for, gate, workers=[here], pure=False)
    others = [client.submit(dask_tasks.make, 8, value, pure=False) for value in (1.0, 2.0)]
    total = hd.reduce(client, [late, *others], count=2)
    assert total.result(timeout=60).tolist() == [3] * 8
    assert late.status == "pending"
    with node_clients(installed) as nodes:
        nodes[0].put(np.array(4.0), name=gate)
        assert late.result(timeout=60).tolist() == [4] * 8
        nodes[0].delete(gate)


def test_failed_inputs_are_left_out_while_enough_remain(client: Client, installed: Installation) -> None:
    def inputs() -> list[Any]:
        return [
            client.submit(dask_tasks.fail, "no gradient", pure=False),
            *(client.submit(dask_tasks.make, SIZE, value, pure=False) for value in (1.0, 2.0)),
        ]

    assert hd.reduce(client, inputs(), count=2).result(timeout=60)[0] == 3
    with pytest.raises(RuntimeError, match="no gradient"):
        hd.reduce(client, inputs()).result(timeout=60)
    del installed


def test_an_invalid_sum_reports_why(client: Client, installed: Installation) -> None:
    made = client.submit(dask_tasks.make, SIZE, 1.0, pure=False)
    longer = client.submit(dask_tasks.make, 2 * SIZE, 1.0, pure=False)
    with pytest.raises(InvalidArgument, match="no inputs"):
        hd.reduce(client, [])
    with pytest.raises(InvalidArgument, match="twice"):
        hd.reduce(client, [made, made])
    with pytest.raises(InvalidArgument, match="count 3 is not valid: use a number from 1 to 2"):
        hd.reduce(client, [made, longer], count=3)
    with pytest.raises(UnknownOp):
        hd.reduce(client, [made], "median").result(timeout=60)
    with pytest.raises(ShapeMismatch):
        hd.reduce(client, [made, longer]).result(timeout=60)
    with pytest.raises(InvalidArgument, match="was not created by hoplite"):
        hd.ref(made)
    del installed


def test_a_client_without_a_node_scatters_through_a_worker(client: Client, installed: Installation) -> None:
    # As on a host without workers: the client has no node, and Dask sends its bytes to one.
    own, installed.client = installed.client, None
    try:
        future = hd.scatter(client, np.arange(float(SIZE)))
        assert {row["sum"] for row in on_each(client, dask_tasks.facts, future)} == {SIZE * (SIZE - 1) / 2}
        assert future.result()[-1] == SIZE - 1
    finally:
        installed.client = own


def test_the_verbs_of_hoplite_take_the_ref_of_a_future(client: Client, installed: Installation) -> None:
    future = hd.scatter(client, np.ones(SIZE))
    assert installed.client is not None
    assert installed.client.get(hd.ref(future), timeout=30).sum() == SIZE
    assert pickle.loads(pickle.dumps(hd.ref(future))) == hd.ref(future)
    del client


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent / "docs" / "dask.md"
    blocks = BLOCK.findall(page.read_text())
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        # In a file, because the workers import it.
        script = tmp_path / f"program_{number}.py"
        script.write_text(block)
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", script],
            cwd=tmp_path,
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
