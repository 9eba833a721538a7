"""`hoplite select` and `hoplite.select` as users call them, over stub systems."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

import bench_ports
import hoplite
from bench_rows import row
from bench_stubs import Stub, written
from hoplite.tools.cli import output
from hoplite_bench.cli.select import select
from hoplite_bench.group import GroupFailed
from hoplite_bench.row import to_line
from hoplite_bench.select import cache, candidates, deciding, failures, safety, search
from hoplite_bench.select.plan import Plan
from hoplite_bench.select.request import Request
from hoplite_bench.select.safety import Checked
from hoplite_bench.select.verdict import Case, Verdict
from hoplite_bench.systems.base import Variant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hoplite_bench.environments import Environments
    from hoplite_bench.systems import System

bench_ports.take()

SMALL = ("--arch", "allreduce", "--bytes", "4KiB", "-n", "2")


@pytest.fixture(autouse=True)
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Stub]:
    """The candidates of all layers, in a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(search, "HANG_S", 1.0)
    program = written(tmp_path)
    found = [Stub("mpich", program, 0.1), Stub("gloo", program, 0.002), Stub("hoplite", program, behavior="wrong")]
    monkeypatch.setattr(candidates, "systems", lambda _: found)
    return found


def run(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(select, words, prog_name="hoplite select", catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def test_json_is_the_contract_for_scripts() -> None:
    found = json.loads(run(*SMALL, "--json").stdout)
    assert found["choice"]["allreduce"]["library"] == "gloo"
    assert found["choice"]["allreduce"]["settings"] == {}
    assert {"library", "seconds", "spread", "state", "reason"} <= found["candidates"][0].keys()
    assert {one["state"] for one in found["candidates"] if one["library"] == "hoplite"} == {"excluded"}
    assert found["cached"] is False
    again = json.loads(run(*SMALL, "--json").stdout)
    assert again == found | {"cached": True}
    assert Plan.from_json(again).rule("allreduce", 4096).system == "gloo"
    # From Python, the same plan.
    assert hoplite.select(arch="allreduce", nbytes="4KiB", ranks=2).to_json() == again
    assert json.loads(run(*SMALL, "--json", "--refresh").stdout)["cached"] is False


def test_the_table_shows_the_state_and_the_reason_of_each_candidate(stubs: list[Stub]) -> None:
    stubs[-1].behavior = "hang"
    done = run(*SMALL, "--explain")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("allreduce 4 KiB gloo default ") and " chosen " in line for line in lines)
    assert any(line.startswith("allreduce 1 KiB mpich default ") for line in lines)
    assert any(line.startswith("allreduce 4 KiB hoplite default - - excluded [1]") for line in lines)
    assert any(line.startswith("[1] allreduce of 4096 bytes: no answer within 1 s") for line in lines)
    assert "allreduce - any size gloo default" in lines
    assert any(line.startswith("kernel ") for line in lines)
    assert any(line.startswith("- ") for line in lines)
    assert "measured now" in done.stderr


def test_rows_of_a_measurement_show_the_regret(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    times = {"gloo": 1.0, "mpich": 0.5}
    usual: dict[str, Any] = {"op": "allreduce", "bytes": 4096, "hosts": 2}
    usual["lab"] = {"kind": "study", "container": "bare"}
    lines = [to_line(row(system=name, samples=[seconds], **usual)) for name, seconds in times.items()]
    rows.write_text("\n".join(lines) + "\n")
    shown = run(*SMALL, "--check", str(rows)).stdout
    assert "allreduce 4096 gloo default mpich default 100.0% 200.0%" in " ".join(shown.split())
    found = json.loads(run(*SMALL, "--check", str(rows), "--json").stdout)["regret"]
    assert [(one["op"], one["regret"]) for one in found] == [("allreduce", 1.0)]
    with pytest.raises(output.Failure, match="no row is of allreduce with 2 ranks in the container set-up bare"):
        run(*SMALL, "--check", str(empty_of(tmp_path)))


def empty_of(folder: Path) -> Path:
    path = folder / "empty.jsonl"
    path.write_text("")
    return path


def test_only_the_given_systems_are_candidates() -> None:
    found = json.loads(run(*SMALL, "--systems", "hoplite, mpich", "--json").stdout)
    assert {one["library"] for one in found["candidates"]} == {"mpich", "hoplite"}
    assert found["choice"]["allreduce"]["library"] == "mpich"
    # That is another request than all of them, and from Python the same.
    assert json.loads(run(*SMALL, "--json").stdout)["choice"]["allreduce"]["library"] == "gloo"
    again = hoplite.select(arch="allreduce", nbytes=4096, ranks=2, systems=("mpich", "hoplite"))
    assert again.to_json() == found | {"cached": True}


def test_a_plan_that_a_form_cannot_express_is_printed_before_the_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(select, [*SMALL, "--export", "openmpi", "--out", str(tmp_path / "out")])
    assert "allreduce  gloo" in result.stdout
    assert isinstance(result.exception, output.Failure)
    assert str(result.exception).endswith("allreduce: gloo: another library: select with --systems openmpi")
    run(*SMALL, "--export", "env", "--out", str(tmp_path / "out"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["hoplite-select.env"]


def test_a_larger_budget_measures_again_only_if_the_budget_ended_the_measurement(tmp_path: Path) -> None:
    def cached(budget: str) -> bool:
        return bool(json.loads(run(*SMALL, "--budget", budget, "--json").stdout)["cached"])

    assert [cached(budget) for budget in ("20", "20", "40")] == [False, True, True]
    (file,) = (tmp_path / "cache" / "hoplite" / "select").glob("*.json")
    entry = json.loads(file.read_text())
    entry["plan"]["candidates"][0] |= {"state": "dropped", "reason": "not measured: the budget of 20 s was spent"}
    file.write_text(json.dumps(entry))
    assert [cached(budget) for budget in ("10", "20", "40", "80")] == [True, True, False, True]


def test_install_measures_again_if_a_candidate_was_not_installed(stubs: list[Stub], tmp_path: Path) -> None:
    stubs[-1].behavior = "unavailable"
    assert json.loads(run(*SMALL, "--json").stdout)["cached"] is False
    # An installation does not help.
    assert json.loads(run(*SMALL, "--install", "--json").stdout)["cached"] is True
    (file,) = (tmp_path / "cache" / "hoplite" / "select").glob("*.json")
    file.write_text(file.read_text().replace("there is no wheel for this machine", "hoplite is not installed in /x"))
    assert json.loads(run(*SMALL, "--json").stdout)["cached"] is True
    assert json.loads(run(*SMALL, "--install", "--json").stdout)["cached"] is False


def test_what_is_missing_leads_to_an_option_that_exists(stubs: list[Stub]) -> None:
    class Missing(Stub):
        def prepare(self, environments: Environments) -> None:
            environments.python("mpich", ["mpich"])

    stubs[0] = Missing("mpich", stubs[0].program)
    (one,) = {
        one["reason"] for one in json.loads(run(*SMALL, "--json").stdout)["candidates"] if one["library"] == "mpich"
    }
    assert one.endswith(": run hoplite select --install")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(output.Failure, match=r"can't create a lock in .*: Not a directory; set XDG_CACHE_HOME to"):
        run(*SMALL)


def test_a_broken_plan_is_a_warning_in_python(tmp_path: Path) -> None:
    run(*SMALL)
    (file,) = (tmp_path / "cache" / "hoplite" / "select").glob("*.json")
    file.write_text("{")
    with pytest.warns(RuntimeWarning, match="which is not valid"):
        assert not hoplite.select(arch="allreduce", nbytes=4096, ranks=2).cached


def test_a_wait_for_another_selection_is_reported_and_ends_at_the_timeout() -> None:
    said: list[str] = []
    with cache.measuring(1.0), pytest.raises(cache.Busy), cache.measuring(0.01, said.append):
        raise AssertionError("both measure")
    assert said == ["waiting for another selection of this user"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arch", "allreduce", "--export", "env"), "--export FORM and --out DIR belong together"),
        (("--arch", "allreduce", "--rsh", "rsh"), "--rsh applies to real hosts"),
        (("--arch", "allreduce", "--export", "xml", "--out", "x"), "'xml' is not one of 'plan', 'env'"),
        (("--arch", "ps", "--budget", "soon"), "'soon' is not a time above 0"),
    ],
)
def test_wrong_use_is_a_usage_error(words: tuple[str, ...], message: str) -> None:
    assert message in " ".join(run(*words, code=2).output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bytes", "6"), "6 bytes are not an array of float32: set a multiple of 4"),
        (("--systems", "torch-gloo"), "unknown system of the layer shell 'torch-gloo': set one of mpich, openmpi"),
        (("--budget", "0.001"), "is too small to compare candidates of allreduce: set --budget to at least"),
    ],
)
def test_values_that_are_not_valid_are_named_with_a_next_step(
    words: tuple[str, ...], message: str, stubs: list[Stub]
) -> None:
    for stub in stubs:
        stub.behavior = "good"
    with pytest.raises((hoplite.HopliteError, output.Failure), match=message):
        run("--arch", "allreduce", *words)


def test_a_broken_plan_is_measured_again_with_a_warning(tmp_path: Path) -> None:
    run(*SMALL, "--json")
    (file,) = (tmp_path / "cache" / "hoplite" / "select").glob("*.json")
    file.write_text("{")
    done = run(*SMALL, "--json")
    assert json.loads(done.stdout)["cached"] is False
    assert f"warning: ignoring {file}, which is not valid: " in done.stderr


def rsh_of(folder: Path) -> Path:
    """A remote shell for which every host is this machine."""
    path = folder / "rsh"
    path.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    path.chmod(0o755)
    return path


def test_hosts_of_a_file_are_the_ranks(tmp_path: Path, stubs: list[Stub]) -> None:
    # The agents of the hosts find the real system of this name, which needs no installation.
    stubs[:] = [Stub("hoplite", stubs[0].program)]
    hosts = tmp_path / "hosts"
    hosts.write_text("one 127.0.0.1\ntwo 127.0.0.2\nthree 127.0.0.3\n")
    words = ("--arch", "allreduce", "--bytes", "4KiB", "--hosts", str(hosts), "--rsh", str(rsh_of(tmp_path)), "--json")
    found = json.loads(run(*words, "-n", "2").stdout)
    assert (found["choice"]["allreduce"]["library"], found["ranks"]) == ("hoplite", 2)
    with pytest.raises(output.Failure, match="lists 3 hosts: list 4, or select for fewer ranks"):
        run(*words, "-n", "4")


# -- Failure checks ----------------------------------------------------------------------------------------------------


class Checks:
    """Failure checks with given verdicts by system and kind of failure: the states of consecutive checks.

    Attributes:
        run: the checks, in order.
    """

    def __init__(self, states: dict[str, dict[str, list[str]]]) -> None:
        self.states = states
        self.run: list[tuple[str, str, Case]] = []

    def strike(
        self, _network: object, _agents: object, system: System, case: Case, *, how: str, **_: object
    ) -> Verdict:
        """Replaces `failures.strike`."""
        self.run.append((system.name, how, case))
        left = self.states[system.name][how]
        state = left.pop(0) if len(left) > 1 else left[0]
        if state == "broken":
            raise GroupFailed("no process started")
        return Verdict(state, 8.0, f"gather, rank 1 {how}", 0, case)


def checked(
    monkeypatch: pytest.MonkeyPatch, stubs: list[Stub], states: dict[str, dict[str, list[str]]], **options: float
) -> tuple[dict[str, Checked], Checks]:
    checks = Checks(states)
    monkeypatch.setattr(failures, "strike", checks.strike)
    few = [stub for stub in stubs if stub.name in states]
    with deciding._opened(Request("ps", 4, 2), "ssh") as network:
        return safety.unsafe(network, few, "ps", ("broadcast", "gather"), **options), checks


def test_unsafe_systems_have_the_verdicts_of_both_failures(monkeypatch: pytest.MonkeyPatch, stubs: list[Stub]) -> None:
    states = {
        "mpich": {"killed": ["ended"], "frozen": ["hangs"]},
        "gloo": {"killed": ["error"], "frozen": ["finished"]},
    }
    found, checks = checked(monkeypatch, stubs, states)
    assert {name: one.reason for name, one in found.items()} == {
        "mpich": "ends the surviving processes when a peer is killed (gather, rank 1 killed); "
        "hangs when a peer is frozen (gather, rank 1 frozen)",
        "gloo": "",
    }
    # All cases of the safe one; the first unsafe case of the other.
    assert {(how, case) for name, how, case in checks.run if name == "gloo"} == {
        (how, case) for how in failures.SIGNALS for case in failures.few_cases("ps", ("broadcast", "gather"))
    }
    assert len([name for name, *_ in checks.run if name == "mpich"]) == 2


@pytest.mark.parametrize(("second", "reason"), [("error", ""), ("hangs", "hangs when a peer is frozen")])
def test_a_hang_counts_only_if_it_is_repeated_alone(
    monkeypatch: pytest.MonkeyPatch, stubs: list[Stub], second: str, reason: str
) -> None:
    found, checks = checked(monkeypatch, stubs, {"gloo": {"killed": ["error"], "frozen": ["hangs", second]}})
    assert found["gloo"].reason.startswith(reason)
    assert bool(found["gloo"].reason) == bool(reason)
    assert checks.run.count(("gloo", "frozen", failures.few_cases("ps", ("broadcast", "gather"))[0])) == 2


def test_a_check_that_fails_is_repeated_and_is_no_verdict(monkeypatch: pytest.MonkeyPatch, stubs: list[Stub]) -> None:
    states = {"killed": ["broken"], "frozen": ["error"]}
    found, checks = checked(monkeypatch, stubs, {"gloo": states})
    assert found["gloo"].failed
    assert found["gloo"].reason == "the failure check failed: no process started; --refresh repeats it"
    assert len(checks.run) == 2
    found, _ = checked(monkeypatch, stubs, {"gloo": {**states, "killed": ["broken", "error"]}})
    assert found["gloo"] == Checked("")


def test_only_operations_of_a_system_are_checked(monkeypatch: pytest.MonkeyPatch, stubs: list[Stub]) -> None:
    monkeypatch.setattr(Stub, "variants", lambda _, op: [Variant()] if op == "gather" else [])
    _, checks = checked(monkeypatch, stubs, {"gloo": {"killed": ["error"], "frozen": ["error"]}})
    assert {case.op for *_, case in checks.run} == {"gather"}


def test_failure_checks_end_at_the_deadline(monkeypatch: pytest.MonkeyPatch, stubs: list[Stub]) -> None:
    with pytest.raises(hoplite.Timeout, match="the failure checks did not end within the timeout"):
        checked(monkeypatch, stubs, {"gloo": {"killed": ["error"], "frozen": ["error"]}}, deadline=0.0)


def test_failure_checks_run_once_per_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[list[str]] = []
    failing: set[str] = set()

    def unsafe(_network: object, systems: Sequence[System], *_: object, **__: object) -> dict[str, Checked]:
        checks.append([system.name for system in systems])
        found = {system.name: Checked("hangs" if system.name == "gloo" else "") for system in systems}
        return found | {name: Checked("the check failed", failed=True) for name in failing}

    monkeypatch.setattr(safety, "unsafe", unsafe)
    small = Request("ps", 4096, 2)
    for request in (small, replace(small, nbytes=2048)):
        assert deciding.decide(request).rule("gather", 4).system == "mpich"
    assert checks == [["mpich", "gloo", "hoplite"]]
    # Without the requirement, the fastest one is chosen.
    assert deciding.decide(replace(small, require_failures=False)).rule("gather", 4).system == "gloo"
    assert len(checks) == 1
    # A new measurement repeats them. One that fails is not a result, so the next measurement repeats it.
    failing.add("hoplite")
    deciding.decide(small, refresh=True)
    deciding.decide(replace(small, nbytes=1024))
    assert checks[1:] == [["mpich", "gloo", "hoplite"], ["hoplite"]]
    # More operations have to survive.
    deciding.decide(replace(small, ops=("allgather",)))
    assert checks[3] == ["mpich", "gloo", "hoplite"]
