"""Systems between processes of one machine, with their own transports: how they start, and one run of each."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import bench_machine
from bench_pair import Written, prepared
from hoplite_bench import plan
from hoplite_bench.systems import OPS, Host, System
from hoplite_bench.systems.base import ALLGATHER, COLLECTIVES
from hoplite_bench.systems.gloo import STORE_PORT, Gloo
from hoplite_bench.systems.hoplite import OWN, Hoplite
from hoplite_bench.systems.mpi import Mpi, Mpich, OpenMpi
from test_bench_mpi import after, installed, launched

if TYPE_CHECKING:
    from pathlib import Path

of_both = pytest.mark.parametrize("kind", [OpenMpi, Mpich], ids=lambda kind: kind.name)


def on_one_machine(folder: Path) -> Written:
    """A launch of three ranks at one address, which may use their own transports."""
    launch = Written(folder)
    launch.hosts = [Host(number, f"rank{number}", "127.0.0.1", "lo") for number in range(3)]
    launch.transports = "own"
    return launch


@of_both
def test_a_launcher_starts_all_ranks_of_one_machine_itself(kind: type[Mpi], tmp_path: Path) -> None:
    launch = on_one_machine(tmp_path)
    command, variables = launched(installed(kind, tmp_path / "root"), launch, "default")
    assert after(command, "-n") == ["3"]
    assert str(launch.rsh) not in command
    assert "--host" not in command
    assert "-hosts" not in command
    assert variables["MPI4PY_RC_THREADS"] == "1"


@of_both
def test_own_transports_are_not_restricted_between_containers_either(kind: type[Mpi], tmp_path: Path) -> None:
    system = installed(kind, tmp_path / "root")
    restricted, variables = launched(system, Written(tmp_path, interface="e0"), "default")
    assert "UCX_TLS" in variables or after(restricted, "--mca", "btl") == ["tcp,self"]
    assert variables["MPI4PY_RC_THREADS"] == "0"
    launch = Written(tmp_path, interface="e0")
    launch.transports = "own"
    command, variables = launched(system, launch, "default")
    assert "UCX_TLS" not in variables
    assert after(command, "--mca", "btl") + after(command, "--mca", "pml") == []
    assert str(launch.rsh) in command
    # TCP stays on the containers' network.
    assert "e0" in command or variables["UCX_NET_DEVICES"] == "e0"


def test_hoplite_has_one_node_to_which_all_other_workers_attach(tmp_path: Path) -> None:
    system = Hoplite()
    launch = on_one_machine(tmp_path)
    system.adapt(launch.hosts, None, plain=False)
    assert [one.name for one in system.variants("gather")] == ["default", OWN]
    system.start(launch, OWN)
    commands = [command for _, command, _ in launch.spawned]
    assert [after(command, "--socket") for command in commands] == [[str(tmp_path / "0.sock")]] * 3
    assert [after(command, "--nodes") for command in commands] == [["1"]] * 3
    assert ["--capacity" in command for command in commands] == [True, False, False]
    assert not any("--listen" in command for command in commands)
    assert all("--own-memory" in command for command in commands)


def test_hoplite_has_a_node_in_each_container(tmp_path: Path) -> None:
    system = Hoplite()
    launch = Written(tmp_path)
    system.adapt(launch.hosts, None, plain=False)
    assert [one.name for one in system.variants("gather")] == ["default"]
    system.start(launch, "default")
    for host, (_, command, _) in zip(launch.hosts, launch.spawned, strict=True):
        assert after(command, "--socket") == [str(tmp_path / f"{host.number}.sock")]
        assert after(command, "--nodes") == ["3"]
        assert after(command, "--listen")[0].startswith(host.address)
        assert "--capacity" in command


def test_a_port_is_the_usual_one_unless_other_benches_may_use_it(tmp_path: Path) -> None:
    assert Written(tmp_path).port(STORE_PORT) == STORE_PORT
    launch = on_one_machine(tmp_path)
    assert len({launch.port(STORE_PORT) for _ in range(4)} | {STORE_PORT}) > 1


def test_allgather_is_measured_on_request_only() -> None:
    assert ALLGATHER not in OPS
    assert [cell.op for cell in plan.cells([ALLGATHER], [4], [0.0])] == [ALLGATHER]


@pytest.mark.parametrize("system", [Gloo(), Hoplite(), Mpich(), OpenMpi()], ids=lambda system: system.name)
def test_the_results_of_an_allgather_have_memory(system: System) -> None:
    assert system.variants(ALLGATHER)
    assert system.memory(ALLGATHER, 4, 100) >= 4 * 4 * 100


def check(system: System) -> None:
    rows = bench_machine.measured(system, ops=COLLECTIVES)
    assert {row.note for row in rows if not row.verified} == set()
    assert {(row.op, row.variant) for row in rows} == {
        (op, one.name) for op in COLLECTIVES for one in system.variants(op)
    }
    assert all(row.lab["container"] == "bare" for row in rows)
    parts = {row.variant: set(row.breakdown) for row in rows}
    assert parts.pop(OWN, {"collective", "staging"}) == {"collective", "staging"}
    assert set(map(frozenset, parts.values())) == {frozenset({"collective"})}


@pytest.mark.timeout(120)
def test_hoplite_on_one_machine_does_everything() -> None:
    check(Hoplite())


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
@of_both
def test_mpi_on_one_machine_does_everything(kind: type[Mpi]) -> None:
    check(prepared(kind()))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.peers
@pytest.mark.timeout(120)  # the first time it is compiled
def test_gloo_on_one_machine_does_everything() -> None:
    check(prepared(Gloo()))
