"""Ray in the bench: the start of its nodes, errors of the start, and one run of every operation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench_smoke import smoke
from hoplite_bench.environments import Environments
from hoplite_bench.systems import OPS, Host, Launch, Unavailable
from hoplite_bench.systems.ray import PATIENCE, Ray
from labs import needs_lab

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Spawns(Launch):
    """Records what would be started, and where."""

    def __init__(self, folder: str = "/tmp/group", memory_bytes: int = 2**30) -> None:
        self.hosts = [Host(number, f"host{number}", f"10.0.0.{number + 1}") for number in range(3)]
        self.control = "unix:/tmp/control"
        self.rsh = Path("/bin/rsh")
        self.folder = Path(folder)
        self.network = "10.0.0.0/24"
        self.memory_bytes = memory_bytes
        self.shared_clock = True
        self.spawned: list[tuple[int, list[str], dict[str, str]]] = []

    def spawn(self, host: Host, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> None:
        self.spawned.append((host.number, [str(word) for word in argv], dict(env or {})))


class Installed(Environments):
    """Environments in which everything is installed."""

    def python(self, name: str, requirements: Sequence[str]) -> Path:
        assert all("==" in one for one in requirements)
        return Path(f"/envs/{name}/bin/python")


def prepared() -> Ray:
    ray = Ray()
    ray.prepare(Installed())
    return ray


def test_each_host_has_a_node_and_the_first_also_the_head_and_the_driver() -> None:
    launch = Spawns()
    prepared().start(launch, "default")
    assert [number for number, _, _ in launch.spawned] == [0, 1, 2, 0]
    *nodes, driver = [command for _, command, _ in launch.spawned]
    assert ["--head" in node for node in nodes] == [True, False, False]
    for number, node in enumerate(nodes):
        assert node[node.index("--node-ip-address") + 1] == launch.hosts[number].address
        assert node[node.index("--temp-dir") + 1] == f"/tmp/group/{number}"
        assert number == 0 or node[node.index("--address") + 1] == "10.0.0.1:6389"
    assert driver[1].endswith("ray_driver.py")
    assert "--shared-clock" in driver
    assert "--rank" not in driver, "a driver speaks for all"


def test_nobody_is_taken_for_dead_while_all_are_frozen() -> None:
    launch = Spawns()
    prepared().start(launch, "default")
    for _, _, environment in launch.spawned:
        assert environment["RAY_health_check_timeout_ms"] == str(24 * 60 * 60 * 1000)
        assert environment.items() >= {name: str(value) for name, value in PATIENCE.items()}.items()


def test_a_folder_too_long_for_its_sockets_is_rejected_before_the_start() -> None:
    launch = Spawns("/tmp/" + "long" * 20)
    with pytest.raises(Unavailable, match=r"more than 107 bytes: set TMPDIR"):
        prepared().start(launch, "default")
    assert not launch.spawned


def test_a_store_smaller_than_ray_allows_is_rejected_before_the_start() -> None:
    launch = Spawns(memory_bytes=2**20)
    with pytest.raises(Unavailable, match=r"1048576"):
        prepared().start(launch, "default")
    assert not launch.spawned


@pytest.mark.parametrize("op", OPS)
def test_a_round_takes_at_least_its_inputs_and_results(op: str) -> None:
    inputs = {"rtt": 1, "broadcast": 1, "gather": 8, "reduce": 8, "allreduce": 8}
    results = {"rtt": 2, "broadcast": 7, "gather": 7, "reduce": 1, "allreduce": 8}
    assert Ray().memory(op, 8, 2**28) >= (inputs[op] + results[op]) * 2**28


@needs_lab
# The first installation takes longer than the tests' minute; otherwise the test takes sixteen seconds.
@pytest.mark.peers
@pytest.mark.timeout(600)
def test_every_operation_between_two_hosts() -> None:
    smoke(Ray())
