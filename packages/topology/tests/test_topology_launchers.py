"""The output of `hoplite topology plan --format` for each launcher, and what launchers do not support."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite_topology import launchers
from hoplite_topology.hosts import Host, read_hosts
from hoplite_topology.problem import Wanted
from in_process import run

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = [Host("10.0.0.3"), Host("10.0.0.1"), Host("10.0.0.2")]
PAIRS = [Host("b", 2), Host("a", 2)]
RING = Wanted("ring")
TREE = Wanted("double-tree")
HALVING = Wanted("halving-doubling", library="lightgbm")

# The input of each launcher: the lines, then its command.
GOLDEN = {
    "openmpi4": (
        "rank 0=b slot=0\nrank 1=b slot=1\nrank 2=a slot=0\nrank 3=a slot=1\n",
        "mpirun --hostfile HOSTS --rankfile FILE --bind-to none -np 4 PROGRAM",
    ),
    "openmpi5": ("b\nb\na\na\n", "mpirun --map-by seq:file=FILE --bind-to none -n 4 PROGRAM"),
    "mpich": ("b:2\na:2\n", "mpiexec -f FILE -n 4 -ppn 2 PROGRAM"),
    "slurm": ("b\nb\na\na\n", "SLURM_HOSTFILE=FILE srun -m arbitrary -n 4 PROGRAM"),
    "torchrun": (
        (
            "b: torchrun --nnodes=2 --nproc_per_node=2 --node_rank=0 --master_addr=b --master_port=29500 PROGRAM\n"
            "a: torchrun --nnodes=2 --nproc_per_node=2 --node_rank=1 --master_addr=b --master_port=29500 PROGRAM\n"
        ),
        "",
    ),
    "env": (
        (
            "b: RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=b MASTER_PORT=29500\n"
            "b: RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=b MASTER_PORT=29500\n"
            "a: RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=b MASTER_PORT=29500\n"
            "a: RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=b MASTER_PORT=29500\n"
        ),
        "",
    ),
    "horovod": ("b slots=2\na slots=2\n", "horovodrun -np 4 --hostfile FILE PROGRAM"),
}


@pytest.mark.parametrize("form", GOLDEN)
def test_each_launcher_gets_its_syntax(form: str) -> None:
    launch = launchers.write(form, PAIRS, RING)
    assert (launch.text, launch.run) == GOLDEN[form]


def test_gloo_nccl_and_lightgbm_get_their_algorithm() -> None:
    gloo = launchers.write("gloo", HOSTS, Wanted("bcube", base=4)).text.splitlines()
    assert gloo[0] == (
        "10.0.0.3: benchmark --size 3 --rank 0 --shared-path DIR --prefix RUN --transport tcp --tcp-device eth0 "
        "--elements 25000000 --iteration-count 20 --base 4 allreduce_bcube"
    )
    assert (
        launchers.write("gloo", HOSTS, RING)
        .text.splitlines()[2]
        .endswith("--iteration-count 20 allreduce_ring_chunked")
    )
    assert launchers.write("nccl", PAIRS, TREE).text.splitlines()[2] == (
        "a: RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=b MASTER_PORT=29500 NCCL_ALGO=allreduce:Tree"
    )
    assert launchers.write("lightgbm", HOSTS, HALVING).text == "10.0.0.3 12400\n10.0.0.1 12400\n10.0.0.2 12400\n"


@pytest.mark.parametrize(
    ("form", "hosts", "wanted", "said"),
    [
        ("lightgbm", [Host("gpu-1")], HALVING, "use an IPv4 address"),
        ("lightgbm", [Host("::1")], HALVING, "use an IPv4 address"),
        ("lightgbm", [Host("10.0.0.1", 2)], HALVING, "one process per host"),
        ("lightgbm", HOSTS, TREE, "LightGBM does not support double-tree"),
        ("lightgbm", HOSTS, Wanted("halving-doubling"), "--library lightgbm"),
        ("mpich", [Host("fe80::1")], RING, "a colon"),
        ("openmpi4", [Host("fe80::1")], RING, "a colon"),
        ("horovod", [Host("fe80::1")], RING, "a colon"),
        ("torchrun", [Host("a", 2), Host("b")], RING, "the same number of processes on each host"),
        ("nccl", HOSTS, HALVING, "NCCL does not support halving-doubling"),
        ("gloo", HOSTS, TREE, "Gloo's benchmark does not support double-tree"),
        ("gloo", PAIRS, RING, "one process per host"),
    ],
)
def test_what_a_launcher_cant_take_is_refused(form: str, hosts: list[Host], wanted: Wanted, said: str) -> None:
    with pytest.raises(hoplite.InvalidArgument, match=said):
        launchers.write(form, hosts, wanted)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no host"),
        ("# none\n", "has no host"),
        ("a\nb\na\n", "lines 1 and 3 of .* are the same host"),
        ("a\nA.\n", "are the same host"),
        ("::1\n0:0::1\n", "are the same host"),
        ("a b\n", "write a host, optionally its address and slots=N"),
        ("a slots=0\n", "line 1 of .*: slots=0 is not a number of processes: set one from 1 to 9999"),
        ("a 10.0.0.1 slots=x\n", "slots=x is not a number of processes"),
        ("a slots=10000\n", "slots=10000 is not a number of processes"),
        ("a:7000\n", "not the name or address of a host"),
        ("-f\n", "not the name or address of a host"),
    ],
)
def test_a_file_of_hosts_that_cant_be_meant_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(hoplite.InvalidArgument, match=said):
        read_hosts(path)


def test_a_plan_is_printed_for_a_launcher(tmp_path: Path) -> None:
    matrix, hosts = tmp_path / "m.csv", tmp_path / "hosts"
    matrix.write_text("0,9,1,9\n9,0,9,1\n1,9,0,8\n9,1,8,0\n")
    hosts.write_text("".join(f"10.0.0.{number}\n" for number in range(4)))
    plan = ("topology", "plan", "--matrix", matrix, "--algorithm", "ring", "--hosts", hosts)
    done = run(*plan, "--format", "mpich")
    lines = done.stdout.splitlines()
    assert sorted(lines) == [f"10.0.0.{number}:1" for number in range(4)]
    assert "run: mpiexec -f FILE -n 4 -ppn 1 PROGRAM" in done.stderr
    document = json.loads(run(*plan, "--format", "mpich", "--json").stdout)
    assert [f"{host}:1" for host in document["hosts"]] == lines
    assert document["launch"]["text"] == done.stdout
    # LightGBM's most distant ranks exchange most, and the order is optimized for that.
    halving = ("topology", "plan", "--matrix", matrix, "--algorithm", "halving-doubling", "--hosts", hosts)
    assert json.loads(run(*halving, "--format", "lightgbm", "--json").stdout)["library"] == "lightgbm"
    hosts.write_text("one\ntwo\n")
    assert "has 2 hosts, but the matrix has 4 machines" in run(*plan, code=1).stderr
    assert "add --hosts FILE" in run(*plan[:6], "--format", "mpich", code=2).stderr


def agent(path: Path) -> Path:
    """A replacement for ssh: runs the command here, and passes the host's name."""
    path.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nexport HOPLITE_HOST="$1"\nshift\nexec sh -c "$*"\n'
    )
    path.chmod(0o755)
    return path


def test_mpich_keeps_the_order(tmp_path: Path) -> None:
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None or "hydra" not in run_text(mpiexec, "--version").lower():
        pytest.skip("needs MPICH's mpiexec")
    hosts = tmp_path / "hosts"
    hosts.write_text("rack-b-2\nrack-a-1\nrack-a-2\nrack-b-1\n")
    launcher = f"{mpiexec} -launcher ssh -launcher-exec {agent(tmp_path / 'agent')}"
    said = run("topology", "verify", "--format", "mpich", "--hosts", hosts, "--launcher", launcher, "--json").stdout
    assert json.loads(said) == {
        "format": "mpich",
        "ranks": 4,
        "kept": True,
        "hosts": ["rack-b-2", "rack-a-1", "rack-a-2", "rack-b-1"],
    }


# torch 1.13 parses --redirects by iterating over an IntFlag, which omits its 0 since Python 3.11: its torchrun starts
# nothing there. This is torchrun with that fixed.
TORCHRUN = """#!/bin/sh
exec python3 -c '
from torch.distributed.elastic.multiprocessing import Std
Std.from_str = classmethod(lambda cls, text: cls(int(text)))
from torch.distributed.run import main
main()' "$@"
"""


def path_with_torch(folder: Path) -> str:
    """A PATH whose python3 has torch; Debian's torch is for /usr/bin/python3, which may not be the first one."""
    usual = os.environ["PATH"]
    look = (
        "import numpy, torch.distributed as dist; from torch.distributed.elastic.multiprocessing import Std;"
        "print(*['there'] * dist.is_gloo_available(), *['whole'] * (Std.from_str('0') is not None))"
    )
    for path in (usual, f"/usr/bin:{usual}"):
        python = shutil.which("python3", path=path)
        told = run_text(python, "-c", look) if python and shutil.which("torchrun", path=path) else ""
        if "there" not in told:
            continue
        if "whole" in told:
            return path
        (folder / "torchrun").write_text(TORCHRUN)
        (folder / "torchrun").chmod(0o755)
        return f"{folder}:{path}"
    pytest.skip(
        "needs torchrun, and torch with Gloo and NumPy in python3 or /usr/bin/python3: apt-get install python3-torch"
    )


@pytest.mark.frameworks
@pytest.mark.timeout(180)
@pytest.mark.parametrize("form", ["torchrun", "gloo"])
def test_torch_keeps_the_order(tmp_path: Path, form: str) -> None:
    path = path_with_torch(tmp_path)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.3\n127.0.0.1\n127.0.0.2\n")
    verify = ("topology", "verify", "--format", form, "--hosts", hosts, "--launcher", agent(tmp_path / "agent"))
    said = run(*verify, "--json", PATH=path).stdout
    assert json.loads(said) == {
        "format": form,
        "ranks": 3,
        "kept": True,
        "hosts": ["127.0.0.3", "127.0.0.1", "127.0.0.2"],
    }


# A replacement for a torch whose threads abort the process while Python shuts down.
ABORTS = """
import atexit, os
def init_process_group(*_, **__): atexit.register(os.abort)
def all_gather_object(found, own): found[:] = [own]
def barrier(): pass
"""


def test_gloo_ends_before_python_shuts_down(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "distributed.py").write_text(ABORTS)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    verify = ("topology", "verify", "--format", "gloo", "--hosts", hosts, "--launcher", agent(tmp_path / "agent"))
    assert json.loads(run(*verify, "--json", PYTHONPATH=path).stdout)["kept"]


def test_a_command_for_each_host_is_run_there(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one slots=2\ntwo slots=2\n")
    fake, ran = tmp_path / "fake", tmp_path / "ran"
    # A replacement for a shell of a host whose torchrun assigns ranks itself.
    fake.write_text(
        f'#!/bin/sh\necho "$1 $2" >>{ran}\ncase $1 in one) first=2 ;; *) first=0 ;; esac\n'
        "echo hoplite-rank $first $1\necho hoplite-rank $((first + 1)) $1\n"
    )
    fake.chmod(0o755)
    verify = ("topology", "verify", "--format", "torchrun", "--hosts", hosts, "--launcher", fake)
    said = run(*verify, code=1).stderr
    assert "rank 0 ran on two, not on one; 4 of 4 ranks are on the wrong host" in said
    commands = sorted(line for line in ran.read_text().splitlines() if "torchrun" in line)
    assert [command[:11] for command in commands] == ["one torchru", "two torchru"]
    assert "--node_rank=1" in commands[1]
    assert "--no_python sh -c" in commands[1]
    fake.write_text("#!/bin/sh\necho no route to $1 >&2\nexit 3\n")
    assert "no route to one" in run(*verify, code=1).stderr


@pytest.mark.parametrize(("form", "package"), [("gloo", "torch"), ("lightgbm", "lightgbm")])
def test_a_host_that_lacks_a_package_is_named_without_a_traceback(tmp_path: Path, form: str, package: str) -> None:
    hosts, fake = tmp_path / "hosts", tmp_path / "fake"
    hosts.write_text("127.0.0.1\n127.0.0.2\n")
    # A replacement for a shell of a host whose Python has no packages.
    fake.write_text(
        '#!/bin/sh\nPATH=/usr/bin:$PATH\neval "$(printf %s "$2" | sed "1s/python3 -c/python3 -S -I -c/")"\n'
    )
    fake.chmod(0o755)
    said = run("topology", "verify", "--format", form, "--hosts", hosts, "--launcher", fake, code=1).stderr
    assert f"error: {fake} failed on 127.0.0.1: ModuleNotFoundError: No module named '{package}'\n" in said
    assert "Traceback" not in said


def run_text(*command: str) -> str:
    """The output of a program."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def test_a_launcher_that_gives_ranks_otherwise_is_caught(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one\ntwo\n")
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho hoplite-rank 0 two\necho hoplite-rank 1 one\n")
    fake.chmod(0o755)
    verify = ("topology", "verify", "--format", "mpich", "--hosts", hosts)
    said = run(*verify, "--launcher", fake, code=1).stderr
    assert "rank 0 ran on two, not on one; 2 of 2 ranks are on the wrong host" in said
    fake.write_text("#!/bin/sh\necho hoplite-rank 0 one\necho hoplite-rank 1 two\n")
    assert "each of 2 ranks" in run(*verify, "--launcher", fake).stdout
    fake.write_text("#!/bin/sh\necho no route to two >&2\nexit 3\n")
    assert "no route to two" in run(*verify, "--launcher", fake, code=1).stderr
    said = run(*verify, "--launcher", tmp_path / "none", code=1).stderr
    assert "is not installed" in said
    assert (
        "set --format to one of mpich"
        in run("topology", "verify", "--format", "slurm", "--hosts", hosts, code=2).stderr
    )
