"""`hoplite bench steady`: bounds, figures, faults and texts without a lab; small and long runs on a lab."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench_rows import long_runs, row, steady
from hoplite.errors import InvalidArgument
from hoplite.tools import peace
from hoplite_bench import report, tables
from hoplite_bench.cli.bench import bench
from hoplite_bench.lab import Lab
from hoplite_bench.row import from_line, read, to_line, trend
from hoplite_bench.steady import faults, figures, patterns, run, summary
from hoplite_bench.steady.job import DTYPE, WHOLE_EVERY, Content, Job, tag_of
from hoplite_bench.steady.patterns import PATTERNS
from hoplite_bench.steady.team import Settings
from labs import needs_lab

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


# -- Bounds ------------------------------------------------------------------------------------------------------------


def test_a_transfer_takes_the_share_of_the_rate_that_tcp_carries() -> None:
    assert figures.wire_seconds(16 * MIB, 500_000_000) == pytest.approx(0.2808, abs=1e-4)
    assert 2000 * figures.wire_seconds(2**18, 500_000_000) == pytest.approx(8.77, abs=0.01)


def test_the_bound_of_a_step_of_seven_workers() -> None:
    found = {name: (one.answers(7), one.transfers(one.answers(7))) for name, one in PATTERNS.items()}
    assert found == {
        "async": (4, 2),
        "sync": (7, 2),
        "samples": (3, 3),
        "gradients": (4, 2),
        "serving": (4, 1),
        "eviction": (7, 1),
    }


def test_a_step_that_takes_two_transfers_needs_an_answer_to_the_newest_weights() -> None:
    for workers in range(1, 20):
        for name in ("async", "gradients"):
            count = PATTERNS[name].answers(workers)
            # All others have a result for earlier weights already.
            assert workers - count < count <= workers
        # Samples for earlier weights suffice: the bound is what the learner receives.
        assert 2 * PATTERNS["samples"].answers(workers) <= max(2, workers)


# -- Figures -----------------------------------------------------------------------------------------------------------


def test_tenths_are_medians_of_equal_parts_of_a_run() -> None:
    assert figures.tenths([1.0, 3.0, 2.0] * 10, 30) == [2.0] * 10
    assert figures.tenths([5.0, 6.0, 7.0], 3) == [5.0, 6.0, 7.0]
    assert figures.edges(25) == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22, 25]
    # A run that was cut short has fewer, and the last one is incomplete.
    assert figures.tenths([1.0] * 4 + [2.0] * 4 + [9.0], 40) == [1.0, 2.0, 9.0]
    assert figures.tenths([0.0, 3.0] * 10, 20, patterns.PATTERNS["eviction"].middle) == [1.5] * 10


def test_the_trend_is_the_second_half_over_the_first() -> None:
    assert trend([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]) == 2.0
    assert trend([2.0, 1.0]) == 0.5
    assert trend([1.0]) is None
    assert trend([0.0, 1.0]) is None


def ends_of(*steps: float) -> list[float]:
    """The times at which a run began and each step ended."""
    ends = [100.0]
    for step in steps:
        ends.append(ends[-1] + step)
    return ends


def test_recovery_counts_steps_after_the_fault_until_they_are_as_before() -> None:
    # The step in which a fault ends does not count, and neither does one quick step among slow ones.
    ends = ends_of(1.0, 1.0, 4.0, 2.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.1, 1.0)
    assert figures.recovery(ends, healed=105.0, undisturbed=1.0) == 5
    # A slow step among quick ones does not end the recovery either.
    assert figures.recovery(ends_of(1.0, 1.0, 4.0, 3.0, *[1.0] * 9), 105.0, 1.0) == 1
    assert figures.recovery(ends_of(1.0, 1.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0), 105.0, 1.0) == 0
    assert figures.recovery(ends_of(1.0, 1.0, 4.0, *[1.2] * 20), 105.0, 1.0) is None
    # At the end of the run there are fewer than five.
    assert figures.recovery(ends_of(1.0, 4.0, 2.0, 1.0), 104.0, 1.0) == 1
    assert figures.recovery(ends_of(1.0, 4.0), 104.0, 1.0) is None


# -- Contents ----------------------------------------------------------------------------------------------------------


def made(content: Content, *tags: int) -> np.ndarray:
    """The sum of objects with these tags."""
    total = np.zeros(content.size, DTYPE)
    for tag in tags:
        part = np.empty(content.size, DTYPE)
        content.fill(part, tag)
        total += part
    return total


def test_a_sum_is_verified_exactly() -> None:
    content = Content(MIB)
    tags = [tag_of(worker, 123_456) for worker in range(64)]
    for _ in range(WHOLE_EVERY + 1):
        content.check("the sum", made(content, *tags), tag=sum(tags), times=len(tags))


@pytest.mark.parametrize("at", [5, -1])
def test_one_wrong_element_is_found(at: int) -> None:
    content, tag = Content(MIB), tag_of(3, 4)
    found = made(content, tag)
    found[at] += 1

    def check_often() -> None:
        for _ in range(WHOLE_EVERY):
            content.check("the answer", found, tag=tag)

    with pytest.raises(ValueError, match=r"the answer: element .* is wrong: expected"):
        check_often()


def test_an_object_of_another_worker_or_step_is_found_at_once() -> None:
    content = Content(MIB)
    for other in (tag_of(3, 5), tag_of(2, 4)):
        with pytest.raises(ValueError, match="is wrong"):
            content.check("the answer", made(content, other), tag=tag_of(3, 4))
    with pytest.raises(ValueError, match=r"is an array of float32 \(7,\)"):
        content.check("the answer", np.zeros(7, DTYPE), tag=0)


def test_the_head_of_weights_is_not_verified() -> None:
    content = Content(MIB, head=8)
    found = made(content, 1)
    found[:8] = 99
    for _ in range(WHOLE_EVERY + 1):
        content.check("the weights", found, tag=1)


def test_a_job_travels_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("async", "job0/", "/tmp/0.sock", MIB, 7, 4, 300, worker=2, reports=True)
    monkeypatch.setattr("sys.argv", ["program", job.to_argument()])
    assert Job.from_command_line() == job
    assert job.weights(3) == "job0/weights/3"
    assert job.answer(2, 5) == "job0/answer/w2/5"


# -- Faults ------------------------------------------------------------------------------------------------------------


class FakeHost:
    """A host that records the faults injected into it."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self._notes = notes

    def __getattr__(self, verb: str) -> Any:  # noqa: ANN401
        return lambda *arguments: self._notes.append(" ".join(map(str, (verb, self.name, *arguments))))


def injector(kind: str, notes: list[str], steps: int = 100) -> faults.Injector:
    """An injector of faults into two hosts that record them."""
    hosts: Any = [FakeHost("node2", notes), FakeHost("node3", notes)]

    def kill(host: Any) -> Any:  # noqa: ANN401
        notes.append(f"kill {host.name}")
        return lambda: notes.append(f"restart {host.name}")

    return faults.Injector(kind, steps, hosts, 500_000_000, kill)


@pytest.mark.parametrize(
    ("kind", "notes"),
    [
        ("cut", ["cut node2", "heal node2", "cut node3", "heal node3"]),
        ("freeze", ["freeze node2", "thaw node2", "freeze node3", "thaw node3"]),
        ("kill", ["kill node2", "restart node2", "kill node3", "restart node3"]),
        ("slow", ["slow node2 50000000.0", "slow node2 None", "slow node3 50000000.0", "slow node3 None"]),
        ("none", []),
    ],
)
def test_faults_come_one_after_the_other_and_end(kind: str, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FAULTS", dict.fromkeys(faults.FAULTS, 0.02))
    done: list[str] = []
    one = injector(kind, done)
    for step in range(100):
        one.on_step(step)
        if one.active:
            assert step in (15, 30)
            left = one.tick()
            assert left is not None
            time.sleep(left)
            assert one.tick() is None
            assert not one.active
    assert done == notes
    assert all(span.healed is not None and span.healed > span.begun for span in one.spans)


def test_a_fault_waits_for_the_one_before_it_and_ends_with_the_run() -> None:
    notes: list[str] = []
    one = injector("cut", notes, steps=20)
    assert faults.moments(20) == [5, 6]
    for step in range(20):
        one.on_step(step)
    assert notes == ["cut node2"]
    one.heal()
    assert notes == ["cut node2", "heal node2"]
    assert len(one.spans) == 1
    assert one.spans[0].step == 5


# -- Words -------------------------------------------------------------------------------------------------------------


def test_rows_are_read_as_they_were_written() -> None:
    for one in long_runs():
        assert from_line(to_line(one)) == one


def test_remarks_tell_of_faults_speed_and_what_nodes_counted() -> None:
    fault = {"host": "node4", "step": 9, "begin_s": 9.5, "end_s": 11.52, "recovery_steps": 3}
    counted = dict.fromkeys(peace.COUNTERS, 0) | {"reduces_restarted": 2}
    one = steady([1.0] * 20, fault="freeze", faults=[fault], retries=1, speed=0.5, counters={"node0": counted})
    assert summary.remarks(one) == [
        "runs at 50% of the speed of a job alone",
        "node4: frozen from 9.5 s to 11.5 s, after step 9; recovered after 3 steps",
        "the server repeated 1 step whose results were lost",
        "node0 counted reduces_restarted +2",
    ]


def test_a_report_has_a_section_on_steady_runs() -> None:
    made = report.page(tables.collect([row(), *long_runs()]))
    part = made.partition("## Steady state\n")[2]
    assert "### Objects of 1 MiB, 8 hosts (lab, 500 Mbit/s)\n" in part
    assert "| asynchronous parameter server | 1.00 s | 1.10 s | 1.10× |" in part
    assert "| asynchronous parameter server, cut<sup>1</sup><sup>2</sup> |" in part
    assert "did not recover" in part
    assert "runs at 70% of the speed of a job alone" in part
    # The mean for readers whose gets overlap.
    assert "| readers with small stores | 100 ms | 200 ms | 2.00× |" in part


def test_runs_of_several_commits_are_distinguished() -> None:
    made = report.page(tables.collect([steady([1.0] * 10), steady([2.0] * 10, commit="fedcba987654")]))
    assert "asynchronous parameter server, 0123456789ab |" in made
    assert "asynchronous parameter server, fedcba987654 |" in made


def test_pictures_of_steady_runs_show_steps_tenths_bound_and_fault(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = {path.name: path.read_text() for path in report.write(long_runs(), tmp_path)}
    assert set(written) == {"report.md", "steady-async.svg", "steady-eviction.svg"}
    for text in ("a step", "each tenth of the run", "bound", "fault", "cut, 8 hosts, 1 MiB"):
        assert f">{text}</text>" in written["steady-async.svg"]
    assert ">fault</text>" not in written["steady-eviction.svg"]
    assert "](steady-async.svg)" in written["report.md"]


# -- The command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pattern", "chess"], "unknown pattern 'chess': use async, sync, samples"),
        (["--size", "much"], "size 'much' is not a size"),
        (["--size", "1KiB"], "size 1024 B is not valid: set a multiple of 4 B, at least 64 KiB"),
        (["--jobs", "2", "--fault", "cut"], "omit --fault"),
        (["--jobs", "2", "--lab", "3"], "set --lab to at least 4"),
        (["--pattern", "eviction", "--lab", "3"], "eviction needs 4 hosts, but the lab has 3: set --lab 4"),
        (
            ["--pattern", "eviction", "--workers-per-host", "2"],
            "eviction does not support --workers-per-host: omit one of them",
        ),
        (["--pattern", "eviction", "--steps", "42"], "set --steps to at least 43"),
    ],
)
def test_arguments_that_can_not_be_run_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(bench, ["steady", *arguments])
    assert isinstance(done.exception, InvalidArgument)
    assert words in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault", "flood"], "'flood' is not one of"),
        (["--pattern", ","], "name one or more"),
    ],
)
def test_wrong_uses_are_refused(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(bench, ["steady", *arguments])
    assert done.exit_code == 2
    assert words in done.output.replace('"', "'")


def test_a_file_that_can_not_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["steady", "--out", str(tmp_path / "none" / "rows.jsonl")])
    assert isinstance(done.exception, InvalidArgument)
    assert "set another --out" in str(done.exception)


def test_the_least_number_of_steps_of_eviction_is_enough() -> None:
    patterns.check(Settings("eviction", 2**18, 43), hosts=4)
    with pytest.raises(InvalidArgument):
        patterns.check(Settings("eviction", 2**18, 42), hosts=4)


# -- Runs on a lab -----------------------------------------------------------------------------------------------------


@needs_lab
@pytest.mark.lab
def test_a_parameter_server_runs_on_a_lab_and_its_rows_make_a_report(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    arguments = ["steady", "--lab", "4", "--size", "1MiB", "--steps", "6", "--out", str(out), "--json"]
    done = CliRunner().invoke(bench, arguments)
    assert done.exit_code == 0, done.output
    (one,) = read([out])
    assert one == from_line(json.dumps(json.loads(done.stdout)[0]))
    assert (one.op, one.hosts, one.bytes, one.repeats, one.verified) == ("async", 4, MIB, 6, True)
    assert len(one.samples) == 6
    assert one.steady is not None
    assert one.steady["bound_s"] == pytest.approx(2 * figures.wire_seconds(MIB, 500_000_000))
    assert (one.steady["workers"], one.steady["count"], one.steady["retries"]) == (3, 2, 0)
    assert len(one.steady["tenths"]) == len(one.steady["direct"]) == 6
    assert all(0 < share < 1.1 for shares in one.steady["links"].values() for share in shares)
    assert "## Steady state" in report.page(tables.collect([one]))


@needs_lab
@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_step_takes_one_copy_from_the_source_and_nothing_begins_again() -> None:
    settings = Settings("async", 16 * MIB, 60)
    with Lab(hosts=8, rate="500mbit") as lab:
        (one,) = run.measure(lab, settings, lambda _: None)
    assert one.steady is not None
    for host, counters in one.steady["counters"].items():
        # No reduce restarted, no transfer failed or changed its sender.
        assert peace.disturbances(counters) == [], host
    # Within what is in flight when a tenth ends.
    later = one.steady["direct"][1:]
    assert sum(later) / len(later) == pytest.approx(1.0, abs=0.05), one.steady["direct"]


@needs_lab
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["none", *faults.FAULTS])
def test_patterns_run_to_their_end(fault: str) -> None:
    with Lab(hosts=4, rate="500mbit") as lab:
        for name, pattern in PATTERNS.items():
            if fault != "none" and pattern.alone:
                continue
            nbytes, steps = (2**18, 200) if pattern.alone else (2 * MIB, 20)
            (one,) = run.measure(lab, Settings(name, nbytes, steps, fault), lambda _: None)
            assert len(one.samples) == steps
            assert one.steady is not None
            assert bool(one.steady["faults"]) == (fault != "none")


@needs_lab
@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_jobs_are_compared_with_one_alone() -> None:
    with Lab(hosts=4, rate="500mbit") as lab:
        rows = run.measure(lab, Settings("async", 2 * MIB, 20), lambda _: None, jobs=2)
    assert [one.variant for one in rows] == ["default", "job 1 of 2", "job 2 of 2"]
    assert [one.steady is not None and "speed" in one.steady for one in rows] == [False, True, True]
