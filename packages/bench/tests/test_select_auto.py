"""The backend "hoplite_auto" of torch.distributed, on processes of this machine with real backends."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

import torch_forks
from hoplite_bench.environments import Environments
from hoplite_bench.select.plan import Candidate, Plan, Rule
from hoplite_bench.systems.base import Unavailable
from hoplite_bench.systems.pytorch import TorchMpi
from torch_ranks import free_port

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]

from hoplite_bench.select.torch_auto import agreement, mpi, routes, source  # noqa: E402 - after the check for torch

LIMIT = 4096

# What precedes the program of a rank.
BEFORE = """
import datetime, json, os, signal, sys, time, traceback, warnings
import torch
import torch.distributed as dist
from hoplite_bench.select import torch_auto
from hoplite_bench.select.torch_auto import members, source

warnings.simplefilter("always", RuntimeWarning)
torch_auto.register()
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

def start(backend="hoplite_auto", seconds=60):
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))

def calls(group=None):
    return {name: one["calls"] for name, one in torch_auto.status(group)["members"].items()}

def run(program):
    status = 0
    try:
        exec(compile(program, "program", "exec"), globals())
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Without Python's shutdown, in which a thread of torch that still runs can abort the process.
    os._exit(status)
"""


def plan(ranks: int, *, large: str = "torch-hoplite", seconds: float = 1e-3) -> Plan:
    """Small operations use Gloo, large ones another backend; there is no rule for gathers."""
    rules = []
    for op in ("allreduce", "broadcast", "allgather", "reduce"):
        rules += [
            Rule(op, LIMIT, "torch-gloo", "default", {}, seconds),
            Rule(op, None, large, "default", {}, seconds),
        ]
    return Plan("f00d", "allreduce", 2**20, ranks, "torch", tuple(rules), (), cached=False)


class Job:
    """A job whose ranks have a plan.

    Args:
        folder: folder for its files.
        ranks: number of ranks.
        content: the plan in the file that HOPLITE_PLAN names; None leaves it unset.
    """

    def __init__(self, folder: Path, ranks: int, content: Plan | None) -> None:
        self.folder = folder
        self.ranks = ranks
        self.path = folder / "plan.json"
        self.variables = {
            "MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks), "XDG_CACHE_HOME": str(folder / "cache"),
            "HOPLITE_CAPACITY": "256MiB", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if content is not None:
            self.path.write_text(json.dumps(content.to_json()))
            self.variables["HOPLITE_PLAN"] = str(self.path)

    def outcome(self, program: str) -> list[tuple[int, str]]:
        """Runs a program as each rank; returns the exit status and the output of each."""
        job = {**os.environ, **self.variables, "MASTER_PORT": str(free_port())}
        return torch_forks.run(f"{BEFORE}\nrun({program!r})", [job | {"RANK": str(rank)} for rank in range(self.ranks)])

    def run(self, program: str) -> list[str]:
        """Runs a program as each rank, which must succeed; returns the output of each."""
        found = self.outcome(program)
        for status, output in found:
            assert status == 0, output
        return [output for _, output in found]

    def errors(self, program: str = "start(seconds=30)") -> list[str]:
        """Runs a program as each rank, which must fail; returns the last line of each."""
        found = self.outcome(program)
        assert all(status != 0 for status, _ in found), found
        return [output.strip().splitlines()[-1] for _, output in found]


@pytest.mark.parametrize("backend", ["hoplite_auto", "cuda:gloo,cpu:hoplite_auto"])
def test_each_size_runs_on_the_backend_of_its_rule(tmp_path: Path, backend: str) -> None:
    program = f"""
start({backend!r})
assert dist.get_backend() == {backend!r}
for count in (1, {LIMIT} // 4 - 1, {LIMIT} // 4, 100_000):
    before = calls()
    own = torch.full((count,), RANK + 1.0)
    total = own.clone()
    dist.all_reduce(total)
    assert total.eq(6).all()
    work = dist.all_reduce(total, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    assert total.eq(6).all() and (work.is_completed() or {backend!r} != "hoplite_auto")
    tensor = own.clone()
    dist.broadcast(tensor, 1)
    assert tensor.eq(2).all()
    tensor = own.clone()
    dist.reduce(tensor, 2, op=dist.ReduceOp.PRODUCT)
    assert RANK != 2 or tensor.eq(6).all()
    lists = [torch.empty(count) for _ in range(RANKS)]
    dist.all_gather(lists, own)
    assert [one[-1].item() for one in lists] == [1, 2, 3]
    whole = torch.empty(RANKS * count)
    dist.all_gather_into_tensor(whole, own)
    assert whole.view(RANKS, count)[:, 0].tolist() == [1, 2, 3]
    after = calls()
    name, other = ("gloo", "hoplite") if count < {LIMIT} // 4 else ("hoplite", "gloo")
    assert (after[name] - before[name], after[other] - before[other]) == (6, 0), (count, before, after)
# Without rules.
lists = [torch.empty(100_000) for _ in range(RANKS)]
dist.gather(torch.full((100_000,), float(RANK)), lists if RANK == 0 else None)
assert RANK != 0 or [one[0].item() for one in lists] == [0, 1, 2]
tensor = torch.empty(2)
dist.scatter(tensor, [torch.full((2,), float(rank)) for rank in range(RANKS)] if RANK == 0 else None)
assert tensor.eq(RANK).all()
dist.reduce_scatter_tensor(tensor, torch.arange(2.0 * RANKS))
assert tensor.tolist() == [3 * 2.0 * RANK, 3 * (2.0 * RANK + 1)]
parts = torch.empty(RANKS)
dist.all_to_all_single(parts, torch.arange(RANKS) + 10.0 * RANK)
assert parts.tolist() == [RANK, 10.0 + RANK, 20.0 + RANK]
if RANK == 0:
    dist.send(torch.ones(3), 1)
elif RANK == 1:
    tensor = torch.empty(3)
    dist.recv(tensor, 0)
    assert tensor.eq(1).all()
dist.barrier()
dist.monitored_barrier()
objects = [None] * RANKS
dist.all_gather_object(objects, {{"rank": RANK}})
assert objects == [{{"rank": rank}} for rank in range(RANKS)]
assert calls()["hoplite"] == 12
found = torch_auto.status()
assert found["plan"] == "f00d" and os.environ["HOPLITE_PLAN"] in found["source"] and found["left_out"] == {{}}, found
assert found["members"]["hoplite"]["bytes"] == 6 * ({LIMIT} + 400_000)
dist.destroy_process_group()
"""
    assert Job(tmp_path, 3, plan(3)).run(program) == [""] * 3


def test_training_reaches_the_same_parameters_as_with_gloo(tmp_path: Path) -> None:
    program = """
from torch.nn.parallel import DistributedDataParallel
def whole(*shape):
    return torch.randint(-2, 3, shape).double()
def trained():
    torch.manual_seed(1)
    module = DistributedDataParallel(torch.nn.Linear(64, 32).double(), bucket_cap_mb=0.001)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(whole(*parameter.shape))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.25)
    torch.manual_seed(2 + RANK)
    for _ in range(3):
        optimizer.zero_grad()
        ((module(whole(8, 64)) - whole(8, 32)) ** 2).sum(dim=1).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]
start()
found = trained()
assert calls()["hoplite"] >= 3 and calls()["gloo"] >= 3, calls()
dist.destroy_process_group()
os.environ["MASTER_PORT"] = os.environ["OTHER_PORT"]
start("gloo")
assert all(torch.equal(one, other) for one, other in zip(found, trained(), strict=True))
dist.destroy_process_group()
"""
    job = Job(tmp_path, 2, plan(2))
    job.variables["OTHER_PORT"] = str(free_port())
    assert job.run(program) == [""] * 2


def test_groups_of_another_size_use_gloo_and_those_of_the_same_size_the_plan(tmp_path: Path) -> None:
    program = f"""
start()
pair, alone, same = dist.new_group([0, 1]), dist.new_group([2]), dist.new_group([0, 1, 2])
tensor = torch.ones({LIMIT})
if RANK < 2:
    dist.all_reduce(tensor, group=pair)
    assert calls(pair) == {{"gloo": 1}}
    assert "for 3 ranks, but the group has 2" in torch_auto.status(pair)["source"]
else:
    dist.all_reduce(tensor, group=alone)
    assert calls(alone) == {{"gloo": 1}}
tensor.fill_(1)
dist.all_reduce(tensor, group=same)
assert tensor.eq(3).all() and calls(same) == {{"gloo": 0, "hoplite": 1}}
dist.destroy_process_group()
"""
    assert Job(tmp_path, 3, plan(3)).run(program) == [""] * 3


def test_a_rank_without_a_plan_takes_that_of_the_others(tmp_path: Path) -> None:
    program = f"""
if RANK != 1:
    del os.environ["HOPLITE_PLAN"]
start()
tensor = torch.ones({LIMIT})
dist.all_reduce(tensor)
assert calls()["hoplite"] == 1
dist.destroy_process_group()
"""
    assert Job(tmp_path, 3, plan(3)).run(program) == [""] * 3


def test_ranks_with_different_plans_all_get_an_error(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(dataclasses.replace(plan(3), fingerprint="beef").to_json()))
    job = Job(tmp_path, 3, plan(3))
    found = job.errors(f"if RANK == 2:\n    os.environ['HOPLITE_PLAN'] = {str(other)!r}\nstart(seconds=30)")
    for line in found:
        assert "the ranks have different plans: rank 0 has plan" in line
        assert "rank 2 has plan" in line
        assert "set HOPLITE_PLAN to the same file on all ranks" in line


def test_a_rank_that_reads_late_gets_the_error_too(tmp_path: Path) -> None:
    program = """
from hoplite_bench.select.torch_auto.agreement import Exchange
read = Exchange.all
def late(self, key, fact):
    # Rank 0, which serves the store, has found the error and is about to end.
    self._store.set(f"hoplite_auto/{key}/1", json.dumps(fact))
    self._store.wait(["hoplite_auto/parted/0"])
    return read(self, key, fact)
if RANK == 1:
    os.environ["HOPLITE_PLAN"] = "/missing"
    Exchange.all = late
start(seconds=30)
"""
    for line in Job(tmp_path, 2, plan(2)).errors(program):
        assert "rank 1 can't use the plan /missing" in line


def test_ranks_with_different_versions_all_get_an_error(tmp_path: Path) -> None:
    found = Job(tmp_path, 2, plan(2)).errors(
        "if RANK == 1:\n    members._version = lambda: 'hoplite 9 with torch 9'\nstart(seconds=30)"
    )
    for line in found:
        assert "the ranks have different versions: rank 0 has hoplite" in line
        assert "rank 1 has hoplite 9 with torch 9; install the same versions" in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("{}", "choice is not a JSON object"),
        (json.dumps(plan(2).to_json())[:-1], "Expecting"),
        (json.dumps({**plan(2).to_json(), "ranks": "two"}), "ranks of the plan is 'two', which has a wrong type"),
        (json.dumps({**plan(2).to_json(), "layer": "shell"}), "it is for the layer shell: run hoplite select with --l"),
        (json.dumps(plan(2, large="torch-smoke").to_json()), "torch has no backend for torch-smoke"),
        ("[" * 100_000, "recursion"),
    ],
)  # fmt: skip
def test_a_broken_plan_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, reason: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    monkeypatch.setenv("HOPLITE_PLAN", str(path))
    facts, found = agreement.facts("1")
    assert found is None
    assert facts["error"].startswith(f"can't use the plan {path} of HOPLITE_PLAN: ")
    assert reason in facts["error"]
    with pytest.raises(agreement.Disagreement, match=r"rank 1 can't use the plan .*; write it with hoplite select"):
        agreement.check([{**facts, "error": ""}, facts])


def test_a_missing_file_of_a_plan_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    job = Job(tmp_path, 2, plan(2))
    found = job.errors("if RANK == 1:\n    os.environ['HOPLITE_PLAN'] = '/missing'\nstart(seconds=30)")
    for line in found:
        assert "rank 1 can't use the plan /missing of HOPLITE_PLAN: No such file or directory" in line


def test_a_rank_that_cannot_describe_its_environment_is_named_on_all(tmp_path: Path) -> None:
    program = """
def place():
    raise FileNotFoundError("no /proc")
if RANK == 1:
    source.place = place
start(seconds=30)
"""
    for line in Job(tmp_path, 2, None).errors(program):
        assert "rank 1 can't describe its environment: FileNotFoundError: no /proc; mount /proc there" in line


def test_without_a_plan_gloo_runs_everything_with_one_warning(tmp_path: Path) -> None:
    program = f"""
def apart():
    return f"host {{RANK}}"
source.place = apart
start()
dist.new_group([0, 1])
tensor = torch.ones({LIMIT})
dist.all_reduce(tensor)
assert tensor.eq(2).all() and calls() == {{"gloo": 1}}
assert "several environments" in torch_auto.status()["source"]
dist.destroy_process_group()
"""
    first, second = Job(tmp_path, 2, None).run(program)
    assert second == ""
    assert first.count("RuntimeWarning") == 1
    command = (
        "hoplite select --arch allreduce --ops broadcast,gather,allgather --bytes 64MiB -n 2 --layer torch "
        "--systems torch-gloo,torch-hoplite"
    )
    assert f"Run `{command} --export plan --out DIR`" in first
    assert "HOPLITE_PLAN" in first


@pytest.mark.parametrize("error", ["HopliteError('no library is left')", "ImportError('No module named psutil')"])
def test_a_selection_that_fails_leaves_all_to_gloo(tmp_path: Path, error: str) -> None:
    program = f"""
from hoplite.errors import HopliteError
def measured(*arguments):
    assert RANK == 0
    raise {error}
source._measured = measured
start()
assert calls() == {{"gloo": 0}}
dist.destroy_process_group()
"""
    first, second = Job(tmp_path, 2, None).run(program)
    assert second == ""
    assert f"hoplite select failed: {error.split(chr(39))[1]}" in first


def test_an_unexpected_error_of_a_selection_reaches_all_ranks(tmp_path: Path) -> None:
    program = """
def measured(*arguments):
    raise KeyError("surprise")
source._measured = measured
start(seconds=30)
"""
    first, second = Job(tmp_path, 2, None).errors(program)
    assert "KeyError: 'surprise'" in first
    assert "rank 0 failed to get a plan: KeyError: 'surprise'" in second


def test_one_rank_selects_for_all_if_they_share_an_environment(tmp_path: Path) -> None:
    program = f"""
from hoplite_bench.select import deciding
from hoplite_bench.select.plan import Plan
def decide(request, *, timeout, warn):
    assert RANK == 0 and (request.ranks, request.layer, request.arch) == (2, "torch", "allreduce")
    assert request.budget_s < timeout < 60 and request.systems == ("torch-gloo", "torch-hoplite")
    return Plan.from_json(json.loads({json.dumps(plan(2).to_json())!r}))
deciding.decide = decide
start()
tensor = torch.ones({LIMIT})
dist.all_reduce(tensor)
assert calls() == {{"gloo": 0, "hoplite": 1}}
assert torch_auto.status()["source"] == "hoplite select, measured now"
dist.destroy_process_group()
"""
    assert Job(tmp_path, 2, None).run(program) == [""] * 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it binds two ranks to different cores")
def test_ranks_that_are_bound_to_cores_measure_on_the_cores_of_all(tmp_path: Path) -> None:
    program = f"""
from hoplite_bench.select import deciding
from hoplite_bench.select.plan import Plan
cores = sorted(os.sched_getaffinity(0))[:2]
def decide(request, **options):
    assert os.sched_getaffinity(0) == set(cores)
    return Plan.from_json(json.loads({json.dumps(plan(2).to_json())!r}))
deciding.decide = decide
os.sched_setaffinity(0, [cores[RANK]])
start()
assert os.sched_getaffinity(0) == {{cores[RANK]}}
assert torch_auto.status()["source"] == "hoplite select, measured now"
dist.destroy_process_group()
"""
    assert Job(tmp_path, 2, None).run(program) == [""] * 2


def test_a_cached_plan_is_used_without_measurements(tmp_path: Path) -> None:
    program = f"""
from hoplite_bench.select import cache, deciding, fingerprint
from hoplite_bench.select.plan import Plan
from hoplite_bench.select.request import Request
import dataclasses
def measured(*arguments):
    raise AssertionError("measured")
deciding._measure = measured
if RANK == 0:
    request = Request("allreduce", source.NBYTES, 2, "torch", ops=source.OPS, systems=source.systems())
    parts = fingerprint.environment(cache.root() / "bench")
    found = Plan.from_json(json.loads({json.dumps(plan(2).to_json())!r}))
    cache.store(dataclasses.replace(found, fingerprint=fingerprint.key(parts, request.key())), parts, print)
start()
group = dist.new_group([0, 1])
for one in (None, group):
    assert torch_auto.status(one)["source"] == "the cache of hoplite select", torch_auto.status(one)
    assert calls(one) == {{"gloo": 0, "hoplite": 0}}
dist.destroy_process_group()
"""
    assert Job(tmp_path, 2, None).run(program) == [""] * 2


def test_a_plan_for_another_number_of_ranks_is_named_and_not_applied(tmp_path: Path) -> None:
    program = """
start()
assert calls() == {"gloo": 0}
dist.destroy_process_group()
"""
    first, second = Job(tmp_path, 2, plan(4)).run(program)
    assert "because the plan of HOPLITE_PLAN is for 4 ranks, but the group has 2" in first
    assert second == ""


@pytest.mark.parametrize(
    ("table", "wrong", "reason"),
    [
        ("LACKS", "lambda options: 'no room'", "no room"),
        ("LACKS", "lambda options: [][0]", "list index out of range"),
        ("CREATORS", "lambda options: 1 / 0", "division by zero"),
    ],
)
def test_a_backend_that_one_rank_lacks_is_left_out_on_all(tmp_path: Path, table: str, wrong: str, reason: str) -> None:
    program = f"""
if RANK == 1:
    members.{table} = {{**members.{table}, "hoplite": {wrong}}}
elif {table!r} == "CREATORS":
    class Stub:
        def shutdown(self):
            print("left")
    members.CREATORS = {{"hoplite": lambda options: Stub()}}
start()
tensor = torch.ones({LIMIT})
dist.all_reduce(tensor)
assert tensor.eq(2).all() and calls() == {{"gloo": 1}}
assert torch_auto.status()["left_out"] == {{"hoplite": "rank 1 can't create it: {reason}"}}, torch_auto.status()
dist.destroy_process_group()
"""
    first, second = Job(tmp_path, 2, plan(2)).run(program)
    assert f"plan gives to hoplite, because rank 1 can't create it: {reason}" in first
    assert second == ""
    assert ("left" in first) == (table == "CREATORS")


@pytest.mark.parametrize("count", [1, LIMIT], ids=["gloo", "hoplite"])
def test_the_survivors_of_a_killed_rank_get_an_error(tmp_path: Path, count: int) -> None:
    program = f"""
start()
tensor = torch.ones({count})
dist.all_reduce(tensor)
if RANK == 2:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        dist.all_reduce(tensor)
except RuntimeError as error:
    print("failed")
"""
    assert Job(tmp_path, 3, plan(3)).outcome(program) == [(0, "failed\n"), (0, "failed\n"), (-9, "")]


def test_ranks_whose_sizes_differ_get_an_error_when_the_timeout_passes(tmp_path: Path) -> None:
    program = f"""
start(seconds=20)
dist.barrier()
for group in [dist.group.WORLD]:
    for backend in group.members.backends.values():
        backend.set_timeout(datetime.timedelta(seconds=2))
try:
    dist.all_reduce(torch.ones(1 if RANK else {LIMIT}))
except RuntimeError as error:
    print(type(error).__name__, error)
"""
    first, second = Job(tmp_path, 2, plan(2)).run(program)
    assert "rank 1 did not call all_reduce" in first
    assert "Timed out" in second or "Connection closed" in second


def test_drift_is_reported_and_changes_no_route(tmp_path: Path) -> None:
    program = f"""
start()
tensor = torch.zeros({LIMIT})
for _ in range(25):
    # Its root does not wait for the others, so its time says nothing.
    dist.broadcast(tensor, 0)
assert torch_auto.status()["drift"] == ""
for _ in range(25):
    dist.all_reduce(tensor)
assert calls() == {{"gloo": 0, "hoplite": 50}}
assert "allreduce takes" in torch_auto.status()["drift"]
dist.destroy_process_group()
"""
    first, second = Job(tmp_path, 2, plan(2, seconds=1e-9)).run(program)
    assert first.count("RuntimeWarning") == 1
    assert "the plan of hoplite_auto has drifted: allreduce takes" in first
    assert "torch-hoplite --export plan --out DIR --refresh` and set HOPLITE_PLAN to its file" in first
    assert second == ""


def test_tensors_of_another_device_are_refused_with_the_fix(tmp_path: Path) -> None:
    program = """
start()
dist.all_reduce(torch.ones(1, device="meta"))
"""
    for line in Job(tmp_path, 2, plan(2)).errors(program):
        assert "hoplite_auto takes tensors in host memory, not on meta: call init_process_group" in line


def test_a_group_of_another_backend_has_no_status(tmp_path: Path) -> None:
    # The first rank serves the store that the second needs to start.
    program = "start('gloo')\ntry:\n    torch_auto.status()\nfinally:\n    dist.barrier()"
    for line in Job(tmp_path, 2, None).errors(program):
        assert "the group has another backend than hoplite_auto" in line


def test_the_backends_of_a_plan_are_those_besides_gloo() -> None:
    assert routes.needed(plan(2), ()) == ["hoplite"]
    assert routes.needed(plan(2, large="torch-gloo"), ()) == []
    assert routes.needed(plan(2, large="torch-mpi"), ()) == ["mpi4py"]
    assert routes.needed(plan(2, large="torch-mpi"), ("mpi4py",)) == []
    found = routes.Routes(plan(2, large="torch-mpi"), {"gloo"})
    assert (found.chosen("allreduce", LIMIT), found.member("allreduce", LIMIT)) == ("mpi4py", "gloo")
    assert (found.chosen("gather", LIMIT), found.member("gather", LIMIT)) == ("", "gloo")


def timed(**libraries: float) -> tuple[Candidate, ...]:
    """Candidates whose times for 1 MiB are in milliseconds; those for 1 KiB are in the opposite order."""
    found = []
    for name, time in libraries.items():
        library = f"torch-{name}"
        found.append(Candidate(library, "default", "allreduce", 2**20, time / 1e3, 0.1, "measured", ""))
        found.append(Candidate(library, "default", "allreduce", 2**10, 1e-6 / time, 0.1, "measured", ""))
    return tuple(found)


def test_the_fastest_member_replaces_a_backend_that_is_left_out() -> None:
    mine = dataclasses.replace(
        plan(2, large="torch-mpi"),
        candidates=timed(mpi=1, hoplite=2, gloo=3),
        rules=plan(2, large="torch-mpi").rules[1:],
    )
    assert routes.needed(mine, ()) == ["mpi4py"]
    assert routes.needed(mine, ("mpi4py",)) == ["hoplite"]
    assert routes.needed(mine, ("mpi4py", "hoplite")) == []
    found = routes.Routes(mine, ("gloo", "hoplite"))
    assert [found.member("allreduce", size) for size in (0, 4, 2**14, 2**16, 2**30)] == [
        *["gloo"] * 3,
        *["hoplite"] * 2,
    ]
    # Without times.
    assert found.member("broadcast", LIMIT) == "gloo"


def test_times_that_are_not_valid_replace_nothing() -> None:
    for changes in ({"state": "excluded"}, {"seconds": None}, {"variant": "cuda"}, {"op": "gather"}):
        others = [dataclasses.replace(one, **changes) for one in timed(hoplite=2)]
        mine = dataclasses.replace(plan(2, large="torch-mpi"), candidates=(*others, *timed(gloo=3)))
        assert routes.Routes(mine, ("gloo", "hoplite")).member("allreduce", 2**20) == "gloo"


def test_a_plan_of_mpi_runs_on_the_next_fastest_backend_without_its_launcher(tmp_path: Path) -> None:
    program = """
start()
tensor = torch.ones(2**18)
dist.all_reduce(tensor)
assert tensor.eq(2).all() and calls() == {"gloo": 0, "hoplite": 1}, calls()
assert "not started by MPICH's launcher" in torch_auto.status()["left_out"]["mpi4py"]
dist.destroy_process_group()
"""
    mine = dataclasses.replace(plan(2, large="torch-mpi"), candidates=timed(mpi=1, hoplite=2, gloo=3))
    first, second = Job(tmp_path, 2, mine).run(program)
    assert "the next fastest backend for the operations that its plan gives to mpi4py, because ranks 0, 1" in first
    assert second == ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [((), False), (("PMI_RANK",), True), (("PMIX_RANK",), True), (("PMIX_RANK", "OMPI_COMM_WORLD_RANK"), False)],
)
def test_only_launchers_of_mpich_count(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], expected: bool) -> None:
    for name in (*source.LAUNCHED, source.LAUNCHED_BY_OPEN_MPI):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, "0")
    assert source.is_of_mpich() == expected
    assert ("torch-mpi" in source.systems()) == expected


def test_a_digest_depends_on_the_content_and_not_on_the_cache() -> None:
    one = plan(2)
    assert source.digest(one) == source.digest(dataclasses.replace(one, cached=True))
    assert source.digest(one) != source.digest(plan(3))


@pytest.mark.parametrize(
    ("method", "dtype", "op", "expected"),
    [
        ("allreduce", "float32", "SUM", True), ("allreduce", "bfloat16", "SUM", False),
        ("allreduce", "float32", "AVG", False), ("allreduce_coalesced", "float32", "SUM", False),
        ("broadcast", "float64", None, True),
    ],
)  # fmt: skip
def test_mpi_takes_only_what_its_backend_has(method: str, dtype: str, op: str | None, expected: bool) -> None:
    options = torch._C._distributed_c10d.AllreduceOptions() if op else torch._C._distributed_c10d.BroadcastOptions()
    if op:
        options.reduceOp = getattr(torch.distributed.ReduceOp, op)
    assert mpi.takes(method, ([torch.ones(2, dtype=getattr(torch, dtype))], options)) == expected


def test_tensors_with_strides_reach_mpi_as_copies() -> None:
    seen: list[Any] = []

    def run(tensors: list[Any], _options: object) -> str:
        assert tensors[0].is_contiguous()
        seen.append(tensors[0])
        tensors[0].mul_(2)
        return "work"

    base = torch.arange(6.0)
    assert mpi.dense(run, ([base[::2]], None)) == "work"
    assert base.tolist() == [0, 1, 4, 3, 8, 5]
    whole = torch.ones(2)
    mpi.dense(run, ([whole], None))
    assert seen[1] is whole


def test_ranks_of_mpi_use_it(tmp_path: Path) -> None:
    system = TorchMpi()
    try:
        system.prepare(Environments(install=False))
    except Unavailable as error:
        pytest.skip(f"{error}; `hoplite bench --systems {system.name}` installs it")
    assert system.python is not None
    program = f"""
start()
tensor = torch.arange({2 * LIMIT}.0).view(-1, 2)[:, 0]
dist.all_reduce(tensor)
assert tensor.eq(2 * torch.arange({2 * LIMIT}.0)[::2]).all()
half = torch.ones({LIMIT}, dtype=torch.bfloat16)
dist.all_reduce(half)
assert half.eq(2).all() and calls() == {{"gloo": 1, "mpi4py": 1}}, calls()
dist.destroy_process_group()
from mpi4py import MPI
MPI.Finalize()
"""
    job = Job(tmp_path, 2, plan(2, large="torch-mpi"))
    by_launcher = f"import os\nos.environ['RANK'] = os.environ['PMI_RANK']\n{BEFORE}\nrun({program!r})"
    done = subprocess.run(
        [system.python.parent / "mpiexec.hydra", "-n", "2", system.python, "-c", by_launcher],
        env={**os.environ, **job.variables, "MASTER_PORT": str(free_port()), "UCX_TLS": "tcp,self"},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
