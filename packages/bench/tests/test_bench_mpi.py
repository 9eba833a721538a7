"""Open MPI and MPICH in the bench: their command lines, and one run on two hosts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench_pair import Written, measured, prepared
from hoplite_bench.environments import Environments
from hoplite_bench.systems import OPS, Unavailable
from hoplite_bench.systems.mpi import Mpi, Mpich, OpenMpi
from labs import needs_lab

if TYPE_CHECKING:
    from pathlib import Path

BOTH = [OpenMpi, Mpich]
of_both = pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.name)


def installed(kind: type[Mpi], root: Path) -> Mpi:
    """A system with an environment that contains only a launcher without effect."""
    system = kind()
    made = root / f"{system.name}-python{sys.version_info.major}.{sys.version_info.minor}"
    (made / "bin").mkdir(parents=True)
    (made / "requirements.txt").write_text("\n".join(system.requirements) + "\n")
    launcher = made / "bin" / system.launcher
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    system.prepare(Environments(root, install=False))
    return system


def launched(system: Mpi, launch: Written, group: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment variables that start a group."""
    system.start(launch, group)
    [(host, command, variables)] = launch.spawned
    assert host == 0
    return command, variables


def after(command: list[str], *words: str) -> list[str]:
    """The values of an option, for each of its occurrences."""
    size = len(words)
    return [command[at + size] for at in range(len(command) - size) if tuple(command[at : at + size]) == words]


@of_both
def test_one_rank_a_host_is_started_through_the_agent_in_order(kind: type[Mpi], tmp_path: Path) -> None:
    launch = Written(tmp_path)
    command, variables = launched(installed(kind, tmp_path / "root"), launch, "default")
    [listed] = after(command, "--host") + after(command, "-hosts")
    assert [one.partition(":")[0] for one in listed.split(",")] == ["10.9.0.1", "n1", "n2"]
    assert str(launch.rsh) in command
    assert after(command, "-n") == ["3"]
    assert command[-5:] == [str(command[-5]), *launch.rank_options()]
    assert command[-5].endswith("mpi_rank.py")
    assert variables["PATH"].startswith(str(tmp_path / "root"))


def test_open_mpi_keeps_to_the_network_that_is_known(tmp_path: Path) -> None:
    system = installed(OpenMpi, tmp_path / "root")
    by_network, _ = launched(system, Written(tmp_path, network="10.9.0.0/16", interface="e0"), "default")
    assert after(by_network, "--mca", "btl_tcp_if_include") == ["10.9.0.0/16"]
    assert after(by_network, "--prtemca", "prte_if_include") == ["10.9.0.0/16"]
    by_interface, _ = launched(system, Written(tmp_path, interface="e0"), "default")
    assert after(by_interface, "--mca", "btl_tcp_if_include") == ["e0"]
    unknown, _ = launched(system, Written(tmp_path), "default")
    assert "if_include" not in " ".join(unknown)


def test_mpich_keeps_to_the_interfaces_that_are_known(tmp_path: Path) -> None:
    system = installed(Mpich, tmp_path / "root")
    command, variables = launched(system, Written(tmp_path, network="10.9.0.0/16", interface="e0"), "default")
    assert variables["UCX_NET_DEVICES"] == "e0"
    assert after(command, "-localhost") == ["10.9.0.1"]
    _, variables = launched(system, Written(tmp_path, network="10.9.0.0/16"), "default")
    assert "UCX_NET_DEVICES" not in variables


@of_both
def test_every_variant_has_the_settings_of_its_group(kind: type[Mpi], tmp_path: Path) -> None:
    # A group without settings would be the default under another name.
    system = installed(kind, tmp_path / "root")
    command, variables = launched(system, Written(tmp_path), "default")
    for op in OPS:
        assert system.variants(op)[0].name == "default"
        for variant in system.variants(op)[1:]:
            forced = launched(system, Written(tmp_path), variant.group)
            assert forced != (command, variables), variant
    assert [len(system.variants(op)) for op in OPS] == [1, 3, 2, 3, 3]


@of_both
def test_the_error_of_a_missing_launcher_names_the_folder_to_remove(kind: type[Mpi], tmp_path: Path) -> None:
    system = installed(kind, tmp_path)
    assert system.python is not None
    folder = system.python.parent.parent
    (folder / "bin" / system.launcher).unlink()
    with pytest.raises(Unavailable, match=rf"{system.launcher} is missing: delete {folder}"):
        kind().prepare(Environments(tmp_path, install=False))


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
@of_both
def test_two_hosts_measure_all_operations_and_variants(kind: type[Mpi]) -> None:
    system = prepared(kind())
    rows = measured(system)
    assert {row.note for row in rows if not row.verified} == set()
    assert {(row.op, row.variant) for row in rows} == {(op, one.name) for op in OPS for one in system.variants(op)}
    assert {row.version for row in rows} == {
        {"openmpi": "Open MPI ", "mpich": "MPICH "}[system.name] + system.requirements[0].partition("==")[2]
    }


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_open_mpi_has_the_algorithms() -> None:
    # mpirun fails for unknown names, but would silently ignore an unknown setting.
    system = prepared(OpenMpi())
    assert system.python is not None
    said = subprocess.run(
        [system.python.parent / "ompi_info", "--param", "coll", "tuned", "--level", "9", "--parsable"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    for settings in OpenMpi.tuned.values():
        for name, value in settings.items():
            assert f"mca:coll:tuned:param:coll_tuned_{name}:" in said
            if not value.isdigit():
                assert f"coll_tuned_{name}:enumerator:value:" in said
                assert any(line.endswith(f":{value}") for line in said.splitlines() if f"_{name}:enumerator" in line)


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
def test_mpich_has_the_controls() -> None:
    # It fails for an unknown value, but ignores an unknown variable.
    system = prepared(Mpich())
    assert system.python is not None
    said = subprocess.run(
        [system.python.parent / "mpivars"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names = {line.strip().split("=")[0].split()[0] for line in said.splitlines() if line.startswith("\tMPIR_CVAR_")}
    for settings in Mpich.controls.values():
        assert {f"MPIR_CVAR_{name}" for name in settings} <= names
    assert "MPIR_CVAR_COLLECTIVE_FALLBACK" in names
