"""Systems between processes of one machine, with their own transports: how they start, and one run of each."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import bench_machine
from bench_pair import Written, prepared
from hoplite_bench import plan
from hoplite_bench.containers import opened
from hoplite_bench.environments import Environments
from hoplite_bench.ranks.resnet import NBYTES
from hoplite_bench.systems import OPS, SYSTEMS, Host, System, Unavailable, pytorch, registry
from hoplite_bench.systems.base import ALLGATHER, COLLECTIVES, RANKS, TRAIN_ALLREDUCE, TRAIN_PS
from hoplite_bench.systems.gloo import STORE_PORT, Gloo
from hoplite_bench.systems.hoplite import OWN, Hoplite
from hoplite_bench.systems.mpi import Mpi, Mpich, OpenMpi
from hoplite_bench.systems.pytorch import CUDA, Torch, TorchGloo, TorchHoplite, TorchMpi, TorchNccl
from labs import needs_lab
from test_bench_mpi import after, installed, launched
from test_bench_torch import Installed
from test_bench_torch import installed as with_torch

if TYPE_CHECKING:
    from pathlib import Path

TORCH = [TorchGloo, TorchMpi, TorchHoplite]
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
    system.adapt(launch.hosts, None, plain=False, transports=launch.transports)
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
    system.adapt(launch.hosts, None, plain=False, transports="own")
    assert [one.name for one in system.variants("gather")] == ["default", OWN]
    # The root of a gather has the arrays of all in its store, and copies of them in its memory.
    assert system.memory("gather", 3, 100) == (3 + 2 + 6) * 100
    system.start(launch, OWN)
    for host, (_, command, _) in zip(launch.hosts, launch.spawned, strict=True):
        assert "--own-memory" in command
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


def test_all_ranks_of_pytorch_meet_at_one_free_port(tmp_path: Path) -> None:
    for system in (TorchGloo(), TorchHoplite()):
        system.prepare(Installed(tmp_path))
        launch = on_one_machine(tmp_path)
        system.start(launch, "default")
        [store] = {after(command, "--store")[0] for _, command, _ in launch.spawned}
        assert store.startswith("127.0.0.1:")


def test_pytorch_of_the_bench_is_used_if_it_has_what_a_backend_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has = {"torch", "numpy"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "there" if name in has else None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    gloo, mpi = TorchGloo(), TorchMpi()
    gloo.prepare(Environments(tmp_path, install=False))
    assert gloo.python == tmp_path / "python"
    with pytest.raises(Unavailable, match="torch is not installed"):
        mpi.prepare(Environments(tmp_path, install=False))
    has.add("mpi4py")
    with pytest.raises(Unavailable, match="torch is not installed"):
        mpi.prepare(Environments(tmp_path, install=False))
    (tmp_path / TorchMpi.launcher).touch()
    mpi.prepare(Environments(tmp_path, install=False))
    assert mpi.python == tmp_path / "python"


@pytest.mark.parametrize("name", ["torch-nccl", "cuda-mpi", "ucc"])
def test_what_can_not_run_here_has_rows_with_the_reason(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pytorch, "DEVICES", tmp_path)
    system = registry([name])[name]
    assert all(system.variants(op) for op in COLLECTIVES)
    rows = bench_machine.measured(system, ops=["broadcast"], sizes=[4])
    [note] = [row.note for row in rows]
    assert {"torch-nccl": "NCCL needs NVIDIA GPUs", "cuda-mpi": "needs NVIDIA GPUs", "ucc": "Debian"}[name] in note


def test_with_a_gpu_pytorch_has_a_variant_and_mpi_another_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pytorch, "DEVICES", tmp_path)
    assert [one.name for one in TorchGloo().variants("gather")] == ["default"]
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert pytorch.gpus() == 2
    assert [one.name for one in TorchGloo().variants("gather")] == ["default", CUDA]
    assert [one.name for one in TorchGloo().variants("ddp")] == ["default"]
    with pytest.raises(Unavailable, match="built without CUDA"):
        registry(["cuda-mpi"])["cuda-mpi"].prepare(Environments(tmp_path))


def test_more_ranks_than_gpus_need_an_nccl_that_shares_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pytorch, "DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    python = tmp_path / "python"
    monkeypatch.setattr(pytorch, "interpreter", lambda *_: python)
    for version, shares in (("2 29 7", False), ("2 30 3", True)):
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
        system = TorchNccl()
        system.prepare(Environments(tmp_path, install=False))
        launch = on_one_machine(tmp_path)
        if shares:
            system.start(launch, "default")
            assert [variables["NCCL_MULTI_RANK_GPU_ENABLE"] for _, _, variables in launch.spawned] == ["1"] * 3
        else:
            with pytest.raises(Unavailable, match=r"3 ranks need as many GPUs, but there are 1; NCCL 2\.30\.3"):
                system.start(launch, "default")


def test_only_pytorch_has_the_training_steps() -> None:
    for op in (TRAIN_PS, TRAIN_ALLREDUCE):
        assert plan.cells([op], [4], [0.0]) == [plan.Cell(op, NBYTES)]
        names = {one.system for one in plan.contenders(registry(SYSTEMS).values(), op)}
        assert names == {"wire", "torch-gloo", "torch-mpi", "torch-hoplite", "torch-nccl"}


def check_torch(system: Torch | TorchMpi) -> None:
    """Every operation, and both training steps, of which one has the size of the model."""
    rows = bench_machine.measured(system, ops=[*COLLECTIVES, TRAIN_PS, TRAIN_ALLREDUCE], sizes=[2**16])
    rows += bench_machine.measured(system, ops=[TRAIN_PS], sizes=[NBYTES])
    assert {row.note for row in rows if not row.verified} == set()
    parts = {row.op: set(row.breakdown) for row in rows}
    assert parts[TRAIN_PS] == {"train", "gather", "average", "broadcast"}
    assert parts[TRAIN_ALLREDUCE] == {"train", "collective", "average"}
    assert parts["allgather"] == (set() if system.name == "torch-hoplite" else {"collective"})
    for row in rows:
        if row.op == TRAIN_PS:
            assert row.breakdown["gather"] > row.breakdown["average"]


@pytest.mark.peers
@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", TORCH, ids=lambda kind: kind.name)
def test_pytorch_on_one_machine_does_everything(kind: type[TorchGloo | TorchMpi | TorchHoplite]) -> None:
    check_torch(with_torch(kind()))


STEP = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from torch_device import Device
from torch_train import ALLREDUCE, PS, Step
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
step = Step(2**16, 0, 1, Device(cuda=False, direct=False, rank=0))
for seed, op in ((5, PS), (6, ALLREDUCE)):
    step.fill(op, seed)
    print(bool((step.parameters == -1).all()))
    step.run(op)
    print(step.check(seed) == "")
step.parameters[3] += 1
print(step.check(6))
"""


@pytest.mark.peers
@pytest.mark.timeout(60)
def test_wrong_parameters_are_detected() -> None:
    python = with_torch(TorchGloo()).python
    assert python is not None
    done = subprocess.run(
        [python, "-c", STEP, RANKS], capture_output=True, text=True, check=True, timeout=60, cwd=RANKS
    )
    *right, wrong = done.stdout.splitlines()
    assert right == ["True"] * 4
    assert wrong.startswith("element 3 of 16384 is ")


def test_only_wanted_variants_are_measured() -> None:
    rows = bench_machine.measured(Hoplite(), ops=["gather"], sizes=[4], variants=[OWN])
    assert [(row.variant, row.verified) for row in rows] == [(OWN, True)]


@needs_lab
@pytest.mark.peers
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "container", ["cross", *(pytest.param(name, marks=pytest.mark.long) for name in ("hpc", "single"))]
)
def test_systems_run_in_containers(container: str) -> None:
    try:
        with opened(container, 2):
            pass
    except Unavailable as error:
        pytest.skip(str(error))
    systems = [Hoplite(), prepared(Mpich()), prepared(OpenMpi()), prepared(Gloo())]
    rows = bench_machine.measured(
        *systems, container=container, ranks=2, ops=["gather", ALLGATHER], sizes=[2**20], variants=["default", OWN]
    )
    assert {row.note for row in rows if not row.verified} == set()
    assert {row.system for row in rows} == {system.name for system in systems}
    assert {row.lab["container"] for row in rows} == {container}
