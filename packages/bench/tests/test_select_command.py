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
from hoplite_bench.row import to_line
from hoplite_bench.select import candidates, deciding, failures, safety, search
from hoplite_bench.select.plan import Plan
from hoplite_bench.select.request import Request
from hoplite_bench.select.verdict import Case, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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
    lines = [to_line(row(system=name, samples=[seconds], **usual)) for name, seconds in times.items()]
    rows.write_text("\n".join(lines) + "\n")
    shown = run(*SMALL, "--check", str(rows)).stdout
    assert "allreduce 4096 gloo default mpich default 100.0% 200.0%" in " ".join(shown.split())
    found = json.loads(run(*SMALL, "--check", str(rows), "--json").stdout)["regret"]
    assert [(one["op"], one["regret"]) for one in found] == [("allreduce", 1.0)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arch", "allreduce", "--export", "env"), "--export FORM and --out DIR belong together"),
        (("--arch", "allreduce", "--rsh", "rsh"), "--rsh applies to real hosts"),
        (("--arch", "ring"), "'ring' is not one of"),
        (("--arch", "ps", "--budget", "soon"), "'soon' is not a time above 0"),
    ],
)
def test_wrong_use_is_a_usage_error(words: tuple[str, ...], message: str) -> None:
    assert message in " ".join(run(*words, code=2).output.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bytes", "6"), "6 bytes are not an array of float32: set a multiple of 4"),
        (("--bytes", "many"), "--bytes 'many' is not a size"),
        (("-n", "1"), "1 rank has no peers"),
        (("--ops", "scan"), "unknown operation 'scan'"),
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


def verdict(state: str, how: str) -> Verdict:
    return Verdict(state, 8.0, f"gather, rank 1 {how}", 0, Case("gather", 1, "before"))


def test_unsafe_systems_have_the_verdicts_of_both_failures(monkeypatch: pytest.MonkeyPatch, stubs: list[Stub]) -> None:
    states = {"mpich": {"killed": "ended", "frozen": "hangs"}, "gloo": {"killed": "error", "frozen": "finished"}}

    def survives(_network: object, _agents: object, system: System, *, how: str, **_: object) -> Verdict:
        return verdict(states[system.name][how], how)

    monkeypatch.setattr(failures, "survives", survives)
    with deciding._opened(Request("ps", 4, 2), "ssh") as network:
        found = safety.unsafe(network, stubs[:2], "ps")
    assert found == {
        "mpich": "ends the surviving processes when a peer is killed (gather, rank 1 killed); "
        "hangs when a peer is frozen (gather, rank 1 frozen)",
        "gloo": "",
    }


def test_failure_checks_run_once_per_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[str]] = []

    def unsafe(_network: object, systems: Sequence[System], _arch: str) -> dict[str, str]:
        checked.append([system.name for system in systems])
        return {system.name: "hangs" if system.name == "gloo" else "" for system in systems}

    monkeypatch.setattr(safety, "unsafe", unsafe)
    small = Request("ps", 4096, 2)
    for request in (small, replace(small, nbytes=2048)):
        assert deciding.decide(request).rule("gather", 4).system == "mpich"
    assert checked == [["mpich", "gloo", "hoplite"]]
    # Without the requirement, the fastest one is chosen.
    assert deciding.decide(replace(small, require_failures=False)).rule("gather", 4).system == "gloo"
    assert len(checked) == 1
