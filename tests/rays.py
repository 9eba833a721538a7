"""Ray clusters on this machine for tests: several raylets, each of which is a node to Ray. Needs Ray.

This is a pytest plugin that conftest loads where Ray is installed. A test that leaves a process of Ray behind fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
import ray.util.collective
from ray.cluster_utils import Cluster

import hoplite
import hoplite.ray
from hoplite.tools import peace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Ray's processes start in seconds, but take many seconds on a busy machine.
RAY_SOON = 60.0
STORE_BYTES = 100_000_000
HOPLITE_BYTES = 256 * 1024 * 1024

# Workers start on demand, because a start takes seconds of a core, and then wait for the next task. A hanging transfer
# fails its test early.
QUIET = {
    "RAY_enable_worker_prestart": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    # Otherwise Ray creates a token in the user's home folder.
    "RAY_AUTH_MODE": "disabled",
    "RAY_rdt_fetch_fail_timeout_milliseconds": "30000",
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}


@contextlib.contextmanager
def raylets(count: int, *, connect: bool = True) -> Iterator[Cluster]:
    """Runs a cluster of `count` raylets. The first is the head and has the resource "r0", the next "r1".

    Args:
        count: number of raylets.
        connect: whether this process becomes the driver.
    """
    # Ray adds long socket paths below this folder.
    folder = Path(tempfile.mkdtemp(prefix="hray-", dir="/tmp"))
    (folder / "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("RAY_TMPDIR", str(folder))
        # Workers import functions of test modules by name.
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        for name in ("RAY_ADDRESS", "RAY_RAYLET_PID"):
            patch.delenv(name, raising=False)
        patch.setattr(ray._private.services, "get_node", _patient(ray._private.services.get_node))
        cluster = Cluster(
            initialize_head=True,
            head_node_args={**_options(0), "include_dashboard": False},
        )
        try:
            for number in range(1, count):
                add(cluster, number)
            if connect:
                ray.init(address=cluster.address, log_to_driver=False, namespace="tests")
            yield cluster
        finally:
            if connect:
                hoplite.ray.stop()
                ray.shutdown()
            cluster.shutdown()
            wait_until(lambda: not _processes(folder), "the processes of Ray end")
            shutil.rmtree(folder, ignore_errors=True)


def add(cluster: Cluster, number: int) -> Any:
    """Adds a raylet with the resource "r" and its number."""
    return cluster.add_node(**_options(number))


def wait_until(holds: Callable[[], Any], what: str, timeout: float = RAY_SOON) -> None:
    """Polls a condition.

    Args:
        holds: the condition.
        what: description of the condition for the error.
        timeout: seconds.
    """
    until = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < until, f"it took more than {timeout:g} s until {what}"
        time.sleep(0.05)


def node_id(number: int) -> str:
    """Returns the id of the Ray node with the resource "r" and this number."""
    found = [node["NodeID"] for node in ray.nodes() if node["Alive"] and f"r{number}" in node["Resources"]]
    assert len(found) == 1, f"{len(found)} Ray nodes have the resource r{number}"
    return str(found[0])


def on(number: int, **options: Any) -> dict[str, Any]:
    """Returns the options of a task or actor that runs on a Ray node."""
    return {"resources": {f"r{number}": 0.001}, "num_cpus": 0, **options}


def objects() -> dict[str, int]:
    """Returns all Hoplite objects and how many nodes hold each."""
    return {each["ref"]: each["copies"] for each in hoplite.ray.client().directory(timeout=RAY_SOON)}


def members(count: int) -> list[Any]:
    """Starts actors that run programs with their rank and Ray's collective module."""

    @ray.remote(max_concurrency=2)
    class Member:
        def __init__(self, rank: int) -> None:
            self.rank = rank
            hoplite.ray.register()

        def pid(self) -> int:
            import os

            return os.getpid()

        def run(self, program: Callable[[Any, int], Any]) -> Any:
            return program(ray.util.collective, self.rank)

    return [Member.options(**on(rank % 3)).remote(rank) for rank in range(count)]


def end(found: list[Any]) -> None:
    """Kills actors, and waits until their objects are gone."""
    for member in found:
        ray.kill(member)
    wait_until(lambda: not objects(), "the objects of the group are gone")


def everywhere(found: list[Any], program: Callable[[Any, int], Any]) -> list[Any]:
    """Runs a program in all members at once."""
    return list(ray.get([member.run.remote(program) for member in found], timeout=2 * RAY_SOON))


def _patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Makes Ray wait for a raylet that starts. Ray itself gives up after 30 s, which a busy machine may need."""

    def waits(*args: Any) -> Any:
        until = time.monotonic() + 2 * RAY_SOON
        while True:
            try:
                return get_node(*args)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    return waits


def _options(number: int) -> dict[str, Any]:
    return {"num_cpus": 2, "object_store_memory": STORE_BYTES, "resources": {f"r{number}": 100}}


def _processes(folder: Path) -> list[str]:
    """Lists the processes with this folder on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if str(folder) in words and int(process.name) != os.getpid():
                found.append(words)
    return found


def _counters() -> dict[str, dict[str, int]]:
    counters = {}
    for node in hoplite.ray.status()["nodes"].values():
        with hoplite.connect(f"unix:{node['socket']}") as hp:
            counters[node["id"]] = hp.status()["counters"]
    return counters


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Cluster]:
    """Three raylets. This process is the driver, on the first one."""
    with raylets(3) as cluster:
        hoplite.ray.register()
        yield cluster


@pytest.fixture
def started(ray_cluster: Cluster) -> Cluster:
    """The same cluster with Hoplite running. A test may break it."""
    hoplite.ray.start(HOPLITE_BYTES)
    return ray_cluster


@pytest.fixture
def peaceful(started: Cluster) -> Iterator[Cluster]:
    """The same cluster.

    Nothing may restart, fail or be rejected in the test, and the store must be empty at the end.
    """
    before = _counters()
    yield started
    try:
        wait_until(lambda: not objects(), "the store is empty", timeout=20)
    finally:
        # Objects that are left must not affect the next test.
        hoplite.ray.client().delete(list(objects()))
    after = _counters()
    assert after.keys() == before.keys(), "a node was replaced"
    moved = [line for node in after for line in peace.disturbances(after[node], before[node])]
    assert not moved, f"{'; '.join(moved)}: unexpected without a fault"
