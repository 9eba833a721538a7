"""PyTorch in the bench: the start of its ranks, the training step, and one run of every operation."""

from __future__ import annotations

import math
import subprocess
from typing import TYPE_CHECKING

import pytest

from bench_pair import Kind, Written, measured
from hoplite_bench import plan, tables
from hoplite_bench.environments import Environments
from hoplite_bench.ranks import resnet as resnet_18
from hoplite_bench.systems import OPS, SYSTEMS, Unavailable, registry
from hoplite_bench.systems.base import DDP, RANKS
from hoplite_bench.systems.pytorch import CUDA, Torch, TorchGloo, TorchHoplite, TorchMpi
from labs import needs_lab

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARAMETERS = 11_689_512


class Installed(Environments):
    """Environments in which everything is installed."""

    def python(self, name: str, requirements: Sequence[str]) -> Path:
        assert all("==" in one for one in requirements)
        (self.root / name / "bin").mkdir(parents=True, exist_ok=True)
        launcher = self.root / name / "bin" / TorchMpi.launcher
        launcher.touch(mode=0o755)
        return self.root / name / "bin" / "python"


def installed(system: Kind) -> Kind:
    """The system itself, or a skip: tests do not download 5 GB."""
    try:
        system.prepare(Environments(install=False))
    except Unavailable as error:
        pytest.skip(f"{error}; `hoplite bench --systems {system.name}` installs it")
    return system


@pytest.mark.parametrize("kind", [TorchGloo, TorchHoplite], ids=lambda kind: kind.name)
def test_every_host_has_a_rank_that_meets_the_others_at_the_first(kind: type[Torch], tmp_path: Path) -> None:
    system = kind()
    system.prepare(Installed(tmp_path))
    launch = Written(tmp_path, interface="e0")
    system.start(launch, "default")
    assert [host for host, _, _ in launch.spawned] == [0, 1, 2]
    for host, (_, command, variables) in zip(launch.hosts, launch.spawned, strict=True):
        assert command[:2] == [str(tmp_path / "torch" / "bin" / "python"), str(RANKS / "torch_rank.py")]
        options = dict(zip(command[2::2], command[3::2], strict=True))
        assert options["--backend"] == kind.backend
        assert options["--store"] == f"10.9.0.1:{kind.port}"
        assert options["--rank"] == str(host.number)
        assert variables["GLOO_SOCKET_IFNAME"] == "e0"
        assert ("PYTHONPATH" in variables) == (kind is TorchHoplite)


def test_the_launcher_of_mpi_starts_the_same_program(tmp_path: Path) -> None:
    system = TorchMpi()
    system.prepare(Installed(tmp_path))
    launch = Written(tmp_path)
    system.start(launch, "default")
    [(host, command, variables)] = launch.spawned
    assert host == 0
    assert command[0] == str(tmp_path / "torch" / "bin" / "mpiexec.hydra")
    at = command.index(str(RANKS / "torch_rank.py"))
    assert command[at - 1] == str(tmp_path / "torch" / "bin" / "python")
    assert command[at + 1 : at + 3] == ["--backend", "mpi4py"]
    assert "--rank" not in command, "MPI numbers the ranks"
    assert variables["UCX_TLS"] == "tcp,self"


def test_the_stores_of_systems_that_run_side_by_side_have_different_ports(tmp_path: Path) -> None:
    stores = []
    for system in (TorchGloo(), TorchHoplite(), TorchMpi()):
        system.prepare(Installed(tmp_path))
        launch = Written(tmp_path)
        system.start(launch, "default")
        command = launch.spawned[0][1]
        stores.append(command[command.index("--store") + 1])
    assert len(set(stores)) == 3


def test_only_pytorch_has_a_training_step_and_it_has_one_size() -> None:
    cells = plan.cells(["broadcast", DDP], [4, 2**20], [0.0])
    assert [(cell.op, cell.nbytes) for cell in cells] == [("broadcast", 4), (DDP, 4 * PARAMETERS), ("broadcast", 2**20)]
    who = plan.contenders(registry(SYSTEMS).values(), DDP)
    assert [one.system for one in who if one.variant != CUDA] == ["wire", "torch-gloo", "torch-mpi", "torch-hoplite"]


def test_hoplite_in_pytorch_is_not_an_alternative_to_hoplite() -> None:
    from bench_rows import row

    rows = [row(), row(system="torch-hoplite"), row(system="torch-gloo")]
    assert tables.peers(rows) == ["torch-gloo"]
    assert tables.systems(rows) == ["hoplite", "torch-gloo", "torch-hoplite"]


def test_the_model_has_the_parameters_of_resnet_18() -> None:
    shapes = resnet_18.shapes()
    assert len(shapes) == 62
    assert sum(map(math.prod, shapes)) == PARAMETERS
    assert resnet_18.first(resnet_18.NBYTES) == shapes
    assert resnet_18.first(resnet_18.NBYTES - 1) == shapes[:-1]
    # The small round before a large one has the first layer.
    assert resnet_18.first(1) == resnet_18.first(2**15) == [(64, 3, 7, 7)]
    assert resnet_18.first(2**16) == [(64, 3, 7, 7), (64,), (64,)]


STEP = """
import sys, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from torch_ddp import Training
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
training = Training(2**16, 1)
for seed in (5, 6):
    training.fill(rank=0, seed=seed)
    training.step()
    print(training.check(seed))
training.model.weights[1].grad[3] += 1
print(training.check(6))
training.parallel.zero_grad()
print(training.check(6))
"""


@pytest.mark.peers
def test_a_wrong_gradient_is_detected() -> None:
    python = installed(TorchGloo()).python
    assert python is not None
    done = subprocess.run(
        [python, "-c", STEP, RANKS], capture_output=True, text=True, check=True, timeout=60, cwd=RANKS
    )
    right, again, wrong, missing = done.stdout.split("\n")[:4]
    assert right == again == ""
    assert wrong.startswith("gradient 1: element 3 of 64 is ")
    assert missing == "parameter 0 has no gradient"


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [TorchGloo, TorchMpi, TorchHoplite], ids=lambda kind: kind.name)
def test_two_hosts_measure_all_operations(kind: type[TorchGloo | TorchMpi | TorchHoplite]) -> None:
    rows = measured(installed(kind()), ops=[*OPS, DDP])
    assert {row.note for row in rows if not row.verified} == set()
    assert {row.op for row in rows} == {*OPS, DDP}
    assert {row.version.split("+")[0] for row in rows} == {"2.15.0"}


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(120)
def test_means_of_three_hosts_are_exact() -> None:
    rows = measured(installed(TorchGloo()), hosts=3, ops=[DDP])
    assert {row.note for row in rows if not row.verified} == set()
