"""`hoplite.ray.start` and `stop`: a node for each Ray node, including ones that join, fail and restart; and errors."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import ray

import hoplite
import hoplite.ray
from hoplite.ray import place
from rays import HOPLITE_BYTES, RAY_SOON, STORE_BYTES, add, node_id, objects, on, wait_until

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

SIZE = 300_000

OTHER = """
import ray
import hoplite.ray
from rays import HOPLITE_BYTES, raylets

@ray.remote(num_cpus=0)
def where():
    with hoplite.init() as hp:
        return hp.status()["id"]

with raylets(1):
    nodes = hoplite.ray.start(HOPLITE_BYTES).nodes
    (node,) = nodes.values()
    members = hoplite.ray.client().status()["members"]
    assert [member["id"] for member in members] == [node["id"]], members
    assert ray.get(where.remote()) == node["id"]
    print(node["id"], hoplite.ray.status()["cluster"])
"""


@ray.remote(num_cpus=0)
def put(number: int, name: str) -> Any:
    """Puts an array under a name."""
    return [hoplite.ray.put(np.full(SIZE, float(number)), name=name)]


@pytest.mark.usefixtures("peaceful")
def test_each_ray_node_has_a_node_of_one_cluster() -> None:
    nodes = hoplite.ray.status()["nodes"]
    assert set(nodes) == {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    hp = hoplite.ray.client()
    members = {member["id"]: member["address"] for member in hp.status()["members"]}
    assert members == {node["id"]: node["address"] for node in nodes.values()}
    # On the addresses of the Ray nodes.
    for each in ray.nodes():
        if each["Alive"]:
            assert nodes[each["NodeID"]]["address"].startswith(each["NodeManagerAddress"] + ":")
    assert hp.status()["store"]["capacity"] == HOPLITE_BYTES
    assert hp.status()["admission"] == "a token"


@pytest.mark.usefixtures("peaceful")
def test_a_second_start_returns_the_running_cluster() -> None:
    before = hoplite.ray.status()
    assert hoplite.ray.start().nodes == before["nodes"]
    assert hoplite.ray.start(HOPLITE_BYTES).nodes == before["nodes"]

    @ray.remote(num_cpus=0)
    def again() -> Any:
        return hoplite.ray.start().nodes

    assert ray.get(again.options(**on(2)).remote(), timeout=RAY_SOON) == before["nodes"]
    with pytest.raises(hoplite.InvalidArgument, match="memory 1048576 would have no effect"):
        hoplite.ray.start(1 << 20)
    with pytest.raises(hoplite.InvalidArgument, match="port 7420 would have no effect"):
        hoplite.ray.start(port=7420)
    assert hoplite.ray.status() == before


def test_invalid_arguments_are_rejected(started: Cluster) -> None:
    del started
    for wrong in ({"memory": "much"}, {"memory": 5}, {"port": -1}, {"port": 70000}):
        with pytest.raises(hoplite.InvalidArgument):
            hoplite.ray.start(**wrong)


@pytest.mark.usefixtures("peaceful")
def test_the_secret_appears_in_no_command_line_environment_or_log() -> None:
    keeper = ray.get_actor(f"node-{node_id(1)}", namespace=place.NAMESPACE)
    secret = ray.get(keeper.secret.remote())
    assert secret.text.encode() not in repr(secret).encode()
    looked = 0
    for process in Path("/proc").glob("[0-9]*"):
        for what in ("cmdline", "environ"):
            try:
                assert secret.text.encode() not in (process / what).read_bytes()
            except OSError:
                continue
            looked += 1
    assert looked > 10
    logs = Path(ray._private.worker.global_worker.node.get_session_dir_path()) / "logs"
    files = [file for file in logs.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert secret.text.encode() not in file.read_bytes(), file


def test_joining_ray_nodes_get_a_node_and_dead_ones_are_removed(started: Cluster) -> None:
    added = add(started, 3)
    wait_until(lambda: node_id(3) in hoplite.ray.status()["nodes"], "the new Ray node has its node")
    new = node_id(3)
    kept = [put.options(**on(1)).remote(1, "grad/1"), put.options(**on(2)).remote(2, "grad/2")]
    lost = put.options(**on(3)).remote(4, "grad/3")
    ray.get([*kept, lost], timeout=RAY_SOON)
    assert (hoplite.ray.get("grad/3", timeout=RAY_SOON) == 4).all()
    hoplite.ray.client().delete("grad/3")
    lost = put.options(**on(3)).remote(4, "grad/3")
    ray.get(lost, timeout=RAY_SOON)
    total = hoplite.ray.reduce(["grad/1", "grad/2", "grad/3", "late/1", "spare/1"], count=4)
    started.remove_node(added, allow_graceful=False)
    wait_until(lambda: new not in hoplite.ray.status()["nodes"], "the dead Ray node is forgotten")
    wait_until(lambda: len(hoplite.ray.client().status()["members"]) == 3, "the members know")
    # Its object is put again elsewhere under the same name, and the pending sum uses it.
    again = [put.options(**on(2)).remote(8, "grad/3"), put.options(**on(1)).remote(16, "late/1")]
    assert (hoplite.ray.get(total, timeout=RAY_SOON) == 27).all()
    del kept, again, lost, total
    wait_until(lambda: not objects(), "the store is empty")


def test_a_failed_node_is_replaced_and_clients_continue(started: Cluster) -> None:
    del started

    @ray.remote(num_cpus=0)
    class Worker:
        def put(self, number: int) -> Any:
            return [hoplite.ray.put(np.full(SIZE, float(number)))]

    worker = Worker.options(**on(1)).remote()
    (ref,) = ray.get(worker.put.remote(1), timeout=RAY_SOON)
    before = hoplite.ray.status()["nodes"][node_id(1)]
    ray.kill(ray.get_actor(f"node-{node_id(1)}", namespace=place.NAMESPACE))
    with pytest.raises(hoplite.ObjectLost):
        hoplite.ray.get(ref, timeout=RAY_SOON)
    wait_until(
        lambda: hoplite.ray.status()["nodes"].get(node_id(1), before)["id"] != before["id"], "there is another node"
    )
    # The same process, with its existing client.
    (again,) = ray.get(worker.put.remote(2), timeout=RAY_SOON)
    assert (ray.get(again) == 2).all()
    wait_until(lambda: len(hoplite.ray.client().status()["members"]) == 3, "it is a member")
    ray.kill(worker)


def test_a_restarted_supervisor_finds_the_nodes(started: Cluster) -> None:
    del started
    before = hoplite.ray.status()
    ref = hoplite.ray.put(np.full(SIZE, 3.0))
    ray.kill(place.supervisor(), no_restart=False)
    wait_until(lambda: _nodes() == before["nodes"], "it lists all nodes again")
    assert (ray.get(ref) == 3).all()
    assert hoplite.ray.start().nodes == before["nodes"]
    del ref
    wait_until(lambda: not objects(), "the store is empty")


def _nodes() -> Any:
    try:
        return hoplite.ray.status()["nodes"]
    except hoplite.ConnectError:
        return None


def test_two_clusters_on_one_host_are_separate(started: Cluster) -> None:
    del started
    done = subprocess.run(
        [sys.executable, "-c", OTHER],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=2 * RAY_SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    node, cluster = done.stdout.split()[-2:]
    status = hoplite.ray.status()
    assert cluster != status["cluster"]
    assert node not in {each["id"] for each in status["nodes"].values()}
    assert len(hoplite.ray.client().status()["members"]) == 3


@ray.remote(num_cpus=0)
class Requester:
    """Needs a node."""

    def ask(self) -> str:
        try:
            return str(hoplite.ray.client(timeout=0.1).status()["admission"])
        except hoplite.ConnectError as error:
            return str(error)


def test_stop_ends_all_nodes_and_start_creates_a_new_cluster(started: Cluster) -> None:
    del started
    # One process has used a node before, the other one has not.
    used, new = Requester.options(**on(1)).remote(), Requester.options(**on(2)).remote()
    assert ray.get(used.ask.remote(), timeout=RAY_SOON) == "a token"
    ref = hoplite.ray.put(np.ones(SIZE))
    view = ray.get(ref)
    before = hoplite.ray.status()
    hoplite.ray.stop()
    hoplite.ray.stop()
    assert view.sum() == SIZE
    assert not [node for node in before["nodes"].values() if Path(node["socket"]).exists()]
    processes = [Path(f"/proc/{node['pid']}") for node in before["nodes"].values()]
    wait_until(lambda: not any(process.exists() for process in processes), "the keepers have ended")
    for call in (hoplite.ray.status, hoplite.ray.client, lambda: hoplite.ray.put(1)):
        with pytest.raises(hoplite.ConnectError, match=r"call hoplite\.ray\.start"):
            call()
    for requester in (used, new):
        assert "call hoplite.ray.start()" in ray.get(requester.ask.remote(), timeout=RAY_SOON)
    with hoplite.ray.start() as cluster:
        # Ray's own store size, because no size was set.
        assert hoplite.ray.client().status()["store"]["capacity"] == STORE_BYTES
        assert cluster.nodes.keys() == before["nodes"].keys()
        assert hoplite.ray.status()["cluster"] != before["cluster"]
        with pytest.raises(ray.exceptions.RaySystemError):
            ray.get(ref)
        del ref
        for requester in (used, new):
            assert ray.get(requester.ask.remote(), timeout=RAY_SOON) == "a token"
            ray.kill(requester)
    with pytest.raises(hoplite.ConnectError):
        hoplite.ray.status()


def test_a_taken_port_names_the_ray_node_and_leaves_nothing(ray_cluster: Cluster) -> None:
    del ray_cluster
    hoplite.ray.stop()
    host = next(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(hoplite.AddressInUse, match=rf"Ray node \w+ \({host}\).*{port}"):
            hoplite.ray.start(HOPLITE_BYTES, port=port)
    with pytest.raises(hoplite.ConnectError):
        hoplite.ray.status()


def test_status_lists_ray_nodes_whose_node_can_not_start(ray_cluster: Cluster) -> None:
    """With one port for all, a second Ray node of the same host can't start a node; here the second one joins later."""
    hoplite.ray.stop()
    for number in (1, 2):
        ray_cluster.remove_node(next(node for node in ray_cluster.worker_nodes if f"r{number}" in _resources(node)))
    wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1, "one Ray node is left")
    with socket.create_server((ray.nodes()[0]["NodeManagerAddress"], 0)) as free:
        port = free.getsockname()[1]
    hoplite.ray.start(HOPLITE_BYTES, port=port)
    for number in (1, 2):
        add(ray_cluster, number)
    wait_until(lambda: len(hoplite.ray.status()["problems"]) == 2, "the others can't have a node")

    @ray.remote(num_cpus=0)
    def request() -> str:
        try:
            hoplite.ray.client(timeout=0.1)
        except hoplite.ConnectError as error:
            return str(error)
        return "it is there"

    error = ray.get(request.options(**on(1)).remote(), timeout=RAY_SOON)
    assert f"no Hoplite node serves Ray node {node_id(1)}" in error
    assert str(port) in error
    hoplite.ray.stop()


def _resources(node: Any) -> Any:
    return node._ray_params.resources


def test_start_needs_a_connection_to_ray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import hoplite.ray; hoplite.ray.start()"],
        capture_output=True,
        text=True,
        timeout=RAY_SOON,
        check=False,
    )
    assert done.returncode == 1
    assert "call ray.init() first" in done.stderr
