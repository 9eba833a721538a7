"""Which systems survive a killed and a frozen peer: programs with one behavior each, and real libraries."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import bench_ports
from bench_pair import prepared
from hoplite.errors import InvalidArgument
from hoplite_bench import containers
from hoplite_bench.agent import Agent
from hoplite_bench.group import Group, GroupFailed
from hoplite_bench.hosts import Agents
from hoplite_bench.select import failures
from hoplite_bench.select.failures import CASES, SIGNALS, few_cases, strike, survives
from hoplite_bench.select.plan import ARCHITECTURES
from hoplite_bench.select.verdict import Case, Verdict
from hoplite_bench.systems import System, Variant
from hoplite_bench.systems.base import RANKS
from hoplite_bench.systems.dask import Dask
from hoplite_bench.systems.gloo import Gloo
from hoplite_bench.systems.hoplite import Hoplite
from hoplite_bench.systems.mpi import Mpich

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.environments import Environments
    from hoplite_bench.hosts import Network
    from hoplite_bench.systems import Launch

bench_ports.take()

PROGRAM = Path(__file__).with_name("failing_rank.py")
# Limit for ranks that never answer. Others get the default one.
SHORT_S = 0.5
BEFORE = Case("gather", 1, "before")
DURING = Case("allreduce", 1, "during")


class Stub(System):
    """Ranks that do what is given, one word for each of them, in the third round."""

    name = "stub"

    def __init__(self, *does: str) -> None:
        self.does = does
        self.groups: list[Group] = []

    def prepare(self, environments: Environments) -> None:
        """Needs nothing."""

    def variants(self, op: str) -> list[Variant]:  # noqa: ARG002
        return [Variant()]

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002
        assert isinstance(launch, Group)
        self.groups.append(launch)
        for host, does in zip(launch.hosts, self.does, strict=True):
            options = ["--does", does, *launch.rank_options(host)]
            launch.spawn(host, [sys.executable, PROGRAM, *options], env={"PYTHONPATH": str(RANKS)})

    def remaining(self) -> list[int]:
        """The processes of all groups that have not ended."""
        return [pid for group in self.groups for pid in group.pids if psutil.pid_exists(pid)]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with containers.opened("bare", 3) as network:
        yield network


@pytest.fixture(scope="module")
def agents(network: Network) -> Iterator[Agents]:
    with Agents(network) as agents:
        yield agents


def judged(network: Network, agents: Agents, *does: str, case: Case = BEFORE, limit_s: float = 10.0) -> Verdict:
    """The verdict on ranks 0, 1 and 2, of which rank 1 is killed."""
    stub = Stub(*does)
    try:
        return strike(network, agents, stub, case, how="killed", limit_s=limit_s, nbytes=4096)
    finally:
        assert stub.remaining() == []


def test_an_error_of_every_other_rank_is_safe(network: Network, agents: Agents) -> None:
    found = judged(network, agents, "raises", "raises", "raises", limit_s=8.0)
    assert (found.state, found.safe, found.results) == ("error", True, 0)
    # The system's own timeout is half of the limit.
    assert found.text == (
        "gather, rank 1 before its call killed: rank 0 failed: TimeoutError: a peer is missing after 4 s; "
        "rank 2 failed too"
    )


def test_a_correct_result_of_some_ranks_is_safe_too(network: Network, agents: Agents) -> None:
    found = judged(network, agents, "raises", "raises", "finishes")
    assert (found.state, found.safe, found.results) == ("error", True, 1)
    assert found.text.endswith("; rank 2 finished correctly")


def test_nobody_may_miss_the_failed_rank(network: Network, agents: Agents) -> None:
    found = judged(network, agents, "finishes", "finishes", "finishes")
    assert (found.state, found.safe, found.results) == ("finished", True, 2)


@pytest.mark.parametrize(
    ("does", "state", "text"),
    [
        ("hangs", "hangs", "rank 2 got nothing within 0.5 s"),
        ("never checks", "hangs", "rank 2 got nothing within 0.5 s"),
        ("crashes", "ended", "rank 2 ended; a process exited with status 3; its last line: 'the library aborts'"),
        ("raises and ends", "ended", "the processes of rank 2 ended"),
        ("lies", "wrong", "rank 2 has a wrong result: element 0 is 1 instead of 2"),
        ("babbles", "wrong", "rank 2 has a wrong result: it sent 'well'"),
    ],
)
def test_one_rank_makes_it_unsafe(network: Network, agents: Agents, does: str, state: str, text: str) -> None:
    # An error of another rank does not hide it.
    found = judged(network, agents, "raises", "raises", does, limit_s=SHORT_S)
    assert (found.state, found.safe) == (state, False)
    assert text in found.text


def test_the_worst_answer_counts(network: Network, agents: Agents) -> None:
    assert judged(network, agents, "hangs", "raises", "lies", limit_s=SHORT_S).state == "wrong"
    assert judged(network, agents, "crashes", "raises", "hangs", limit_s=SHORT_S).state == "hangs"


def test_an_operation_that_ends_before_the_failure_is_repeated(
    network: Network, agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Half a second, on any machine more than the third round needs.
    monkeypatch.setattr(failures, "SHARES", (1.0, 0.9, 0.8))
    stub = Stub("finishes early", "finishes early", "finishes early")
    found = strike(network, agents, stub, DURING, how="killed", nbytes=4096)
    assert found.state == "finished"
    assert len(stub.groups) == 3
    # Rank 1 does not finish, so the others did not need it.
    stub = Stub("finishes", "hangs", "finishes")
    assert strike(network, agents, stub, DURING, how="killed", nbytes=4096).state == "finished"
    assert len(stub.groups) == 1


def test_a_frozen_rank_ends_with_the_check(network: Network, agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []
    stop = Group.stop

    def stopped(group: Group) -> None:
        states.extend(psutil.Process(pid).status() for pid in group.pids[1:2])
        stop(group)

    monkeypatch.setattr(Group, "stop", stopped)
    stub = Stub("raises", "raises", "raises")
    assert strike(network, agents, stub, BEFORE, how="frozen", nbytes=4096).state == "error"
    assert states == [psutil.STATUS_STOPPED]
    assert stub.remaining() == []


def test_the_first_unsafe_case_is_the_verdict(network: Network, agents: Agents) -> None:
    stub = Stub("raises", "raises", "raises")
    found = survives(network, agents, stub, how="killed", arch="allreduce", nbytes=4096)
    assert (found.state, len(stub.groups)) == ("error", len(CASES["allreduce"]))
    stub = Stub("raises", "raises", "crashes")
    found = survives(network, agents, stub, how="killed", arch="ps", nbytes=4096)
    assert (found.state, found.case, len(stub.groups)) == ("ended", CASES["ps"][0], 1)


def test_fewer_ranks_than_hosts_take_part(network: Network, agents: Agents) -> None:
    stub = Stub("raises", "raises")
    found = survives(network, agents, stub, how="frozen", cases=[BEFORE], ranks=2, nbytes=4096)
    assert (found.state, len(stub.groups[0].pids)) == ("error", 2)


def test_a_system_that_fails_without_a_failure_has_no_verdict(network: Network, agents: Agents) -> None:
    stub = Stub("finishes", "finishes", "always lies")
    with pytest.raises(GroupFailed, match="wrong result: stub's rank 2: element 0 is 1 instead of 2"):
        strike(network, agents, stub, BEFORE, how="killed", nbytes=4096)
    assert stub.remaining() == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"how": "gone"}, "unknown failure 'gone': choose killed or frozen"),
        ({"how": "killed", "arch": "ring"}, "unknown arch 'ring': choose from allreduce, ps"),
        ({"how": "killed", "ranks": 1}, "1 rank has no other to survive: use at least two"),
    ],
)
def test_bad_arguments_are_refused(network: Network, agents: Agents, more: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        survives(network, agents, Stub(), **more)  # type: ignore[arg-type]


def test_a_system_with_one_driver_is_refused(network: Network, agents: Agents) -> None:
    with pytest.raises(InvalidArgument, match="dask has one driver for all ranks"):
        survives(network, agents, Dask(), how="killed")


def test_a_signal_reaches_only_the_groups_processes(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    try:
        pid = agent.spawn("g", [sys.executable, "-c", "import time; time.sleep(3600)"], {})["pid"]
        agent.answer({"do": "signal", "group": "g", "pid": pid, "signal": signal.SIGSTOP})
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        with pytest.raises(ValueError, match=f"the group has no process {os.getpid()} on this host"):
            agent.answer({"do": "signal", "group": "g", "pid": os.getpid(), "signal": signal.SIGKILL})
    finally:
        agent.close()
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_few_cases_have_the_root_in_each_operation_and_in_the_middle_of_one(arch: str) -> None:
    ops = (*ARCHITECTURES[arch], "allgather")
    found = few_cases(arch, ops)
    assert {Case(op, 0, "before") for op in ops} <= set(found)
    assert [(case.victim, case.op in ARCHITECTURES[arch]) for case in found if case.moment == "during"] == [(0, True)]
    assert any(case.victim != 0 for case in found)
    assert set(few_cases(arch, ARCHITECTURES[arch])) <= set(CASES[arch])


SURVIVED = [
    Case(op, victim, "before") for op, victim in (("allreduce", 1), ("broadcast", 0), ("gather", 1), ("gather", 0))
]


INSTALLED = [pytest.mark.peers, pytest.mark.timeout(120)]  # the first time it is compiled


# Each kind with each signal, and each case once.
@pytest.mark.parametrize(
    ("kind", "how", "case"),
    [
        pytest.param(kind, how, SURVIVED[number], id=f"{kind.name}-{how}", marks=INSTALLED if kind is Gloo else [])
        for number, (kind, how) in enumerate(itertools.product((Gloo, Hoplite), SIGNALS))
    ],
)
def test_gloo_and_hoplite_survive(network: Network, agents: Agents, kind: type[System], how: str, case: Case) -> None:
    found = strike(network, agents, prepared(kind()), case, how=how)
    assert found.state == "error", found.text


@pytest.mark.peers
@pytest.mark.timeout(300)  # the first time it is installed
@pytest.mark.parametrize(("how", "state"), [("killed", "ended"), ("frozen", "hangs")])
def test_mpich_does_not_survive(network: Network, agents: Agents, how: str, state: str) -> None:
    found = strike(network, agents, prepared(Mpich()), CASES["allreduce"][0], how=how, limit_s=3.0)
    assert found.state == state, found.text
