"""`hoplite lab`: hosts that stay between commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import pytest

from hoplite.tools import cli
from hoplite_bench.lab import Lab, records
from labs import needs_lab
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [needs_lab, pytest.mark.lab]


class Command:
    """The command `hoplite lab`, in this process: starting Python for each would take most of the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """Returns its exit status, stdout and stderr."""
        self._monkeypatch.setattr(sys, "argv", ["hoplite", "lab", *words])
        # The command sets it for its process; it is restored at the end of the test.
        self._monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        told = self._capsys.readouterr()
        return ended.value.code, told.out, told.err


@pytest.fixture
def hoplite_lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(monkeypatch, capsys)


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """`hoplite lab run`, which replaces itself with the program."""
    command = [sys.executable, "-m", "hoplite.tools.cli", "lab", "run", *words]
    return subprocess.run(command, input="words", capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture
def name() -> Iterator[str]:
    """A name unique to this process, of a lab that is removed afterwards."""
    name = f"test-cli-{os.getpid()}"
    yield name
    if any(record.name == name for record in records.read_all()):
        Lab.find(name).close()


def test_up_run_cut_status_and_down(name: str, hoplite_lab: Command) -> None:
    code, told, errors = hoplite_lab("up", "--racks", "1,1", "--rate", "20mbit", "--flow-cap", "5mbit", "--name", name)
    assert (code, told) == (0, "node0 10.77.0.1\nnode1 10.77.1.1\n"), errors
    assert errors == f"run a command on a host: hoplite lab run --name {name} node0 -- hostname\n"

    # Options after the host belong to the command; input and exit status are passed through.
    done = run("--name", name, "node1", "--", "sh", "-c", "hostname; cat; exit 3")
    assert (done.returncode, done.stdout) == (3, "node1\nwords"), done.stderr
    assert run("--name", name, "node1", "sh", "-c", "exit 4").returncode == 4

    assert hoplite_lab("cut", "--name", name, "node0", "--direction", "in")[0] == 0
    assert hoplite_lab("cut", "--name", name, "rack1")[0] == 0
    assert hoplite_lab("slow", "--name", name, "node1", "1mbit")[0] == 0
    listed = {lab["name"]: lab for lab in json.loads(hoplite_lab("status", "--json")[1])}[name]
    assert listed["owner"] is None
    assert (listed["rate"], listed["uplink"], listed["flow_cap"]) == (20_000_000, 20_000_000, 5_000_000)
    assert [host["cut"] for host in listed["hosts"]] == [["in"], []]
    assert [rack["cut"] for rack in listed["racks"]] == [[], ["out", "in"]]
    assert hoplite_lab("heal", "--name", name, "rack1")[0] == 0
    assert hoplite_lab("cut", "--name", name, "node1", "--other", "node0", "--direction", "out")[0] == 0
    assert "out to node0" in hoplite_lab("status")[1]
    assert hoplite_lab("heal", "--name", name, "node0", "--other", "node1")[0] == 0
    assert "out to" not in hoplite_lab("status")[1]
    code, _, errors = hoplite_lab("cut", "--name", name, "rack0", "--other", "node1")
    assert (code, "rack0" in errors) == (1, True)

    process = Lab.find(name).hosts[0].popen(["sleep", "1000"])
    assert hoplite_lab("down", "--name", name)[0] == 0
    assert process.wait(SOON) == -signal.SIGKILL
    assert name not in hoplite_lab("status")[1]


def test_racks_and_pods_have_links_to_cut(name: str, hoplite_lab: Command) -> None:
    links = ("--racks", "1,1,1", "--pods", "2,1", "--rate", "20mbit", "--pod-uplink", "10mbit")
    assert hoplite_lab("up", *links, "--name", name)[0] == 0
    assert hoplite_lab("cut", "--name", name, "pod1", "--direction", "out")[0] == 0
    listed = {lab["name"]: lab for lab in json.loads(hoplite_lab("status", "--json")[1])}[name]
    assert [(rack["pod"], rack["cut"]) for rack in listed["racks"]] == [(0, []), (0, []), (1, [])]
    assert [(pod["racks"], pod["cut"]) for pod in listed["pods"]] == [(2, []), (1, ["out"])]
    assert hoplite_lab("slow", "--name", name, "pod0", "1mbit")[0] == 0
    assert hoplite_lab("down", "--name", name)[0] == 0


def test_mistakes_end_with_what_to_try(name: str, hoplite_lab: Command) -> None:
    for words, complaint in (
        (["run", "--name", name, "node0", "true"], f"no lab named '{name}' is up"),
        (["down", "--name", name], "create one: hoplite lab up"),
        (["up", "--name", name, "--rate", "fast"], "rate must be a rate"),
        (["up", "--name", name, "--flow-cap", "0"], "flow_cap must be a rate"),
    ):
        code, _, errors = hoplite_lab(*words)
        assert code == 1
        assert complaint in errors
        assert "\ntry: " in errors
    code, _, errors = hoplite_lab("up", "--racks", "4,x")
    assert code == 2
    assert "'4,x' is not valid: write the numbers of hosts per rack, such as 4,4" in errors
    for words, complaint in (
        (["--racks", "1,1", "--pods", "1,x"], "'1,x' is not valid: write the numbers of racks per pod, such as 2,2"),
        (["--hosts", "2", "--uplink", "1gbit"], "--uplink needs racks: add --racks 4,4"),
        (
            ["--hosts", "3", "--racks", "2,2"],
            "--hosts 3 sets one rack, but --racks 2,2 sets several: omit one of them",
        ),
        (["--hosts", "2", "--pods", "1,1"], "--pods needs racks: add --racks"),
        (["--racks", "1,1", "--pod-uplink", "1gbit"], "--pod-uplink needs pods"),
    ):
        code, _, errors = hoplite_lab("up", "--name", name, *words)
        assert code == 2
        assert complaint in " ".join(errors.replace("│", "").split())
    code, _, errors = hoplite_lab("check", "--rounds", "0")
    assert code == 2
    assert "0 is not in the range x>=1" in errors


def test_remains_of_a_power_failure_are_listed_and_removed(
    name: str, hoplite_lab: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    (tmp_path / "cut-short.json").touch()
    (tmp_path / name / "cgroup").mkdir(parents=True)
    code, told, errors = hoplite_lab("status", "--json")
    assert (code, told) == (0, "[]\n")
    for left in ("cut-short", name):
        assert f"{left} was left behind by a killed process; remove it: hoplite lab down" in errors
    code, _, errors = hoplite_lab("down", "--name", name)
    assert code == 0
    assert f"removed {name}, left behind by a killed process" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_lab_of_a_running_process_is_listed_but_not_taken_away(hoplite_lab: Command) -> None:
    with Lab(hosts=1) as lab:
        listed = {entry["name"]: entry for entry in json.loads(hoplite_lab("status", "--json")[1])}
        assert listed[lab.name]["owner"] == os.getpid()
        code, _, errors = hoplite_lab("down", "--name", lab.name)
        assert code == 1
        assert f"belongs to process {os.getpid()}, which is still running" in errors
        assert lab.hosts[0].run(["hostname"]).stdout == "node0\n"


def test_check_prints_rates_round_trip_and_a_verdict_that_is_its_exit_code(hoplite_lab: Command) -> None:
    code, told, errors = hoplite_lab("check", "--hosts", "2", "--rate", "10mbit", "--rounds", "1")
    assert "2 concurrent streams, expected 10 Mbit/s each: " in told, errors
    assert "round trip" in told
    assert told.splitlines()[-1] == ("good" if code == 0 else "not good")
    links = ("--racks", "1,1,1", "--pods", "2,1", "--uplink", "9mbit", "--pod-uplink", "8mbit", "--rate", "10mbit")
    code, told, _ = hoplite_lab("check", *links, "--rounds", "1", "--json")
    report = json.loads(told)
    assert [len(streams) for streams in report["rounds"]] == [3]
    assert report["good"] == (code == 0) == all(stream["good"] for stream in report["rounds"][0])
    assert [stream["asked"] for stream in report["rounds"][0]] == [9_000_000, 8_000_000, 8_000_000]
    capped = ("--hosts", "2", "--rate", "20mbit", "--flow-cap", "10mbit")
    report = json.loads(hoplite_lab("check", *capped, "--rounds", "1", "--json")[1])
    assert [stream["asked"] for stream in report["rounds"][0]] == [10_000_000] * 2


def test_check_fails_where_a_link_misses_its_rate(hoplite_lab: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lab, "measure_rates_at_once", lambda _, pairs: [9.2e6] * len(pairs))
    code, told, errors = hoplite_lab("check", "--hosts", "2", "--rate", "10mbit", "--rounds", "2")
    assert code == 1
    slow = "2 concurrent streams, expected 10 Mbit/s each: measured 9.2 Mbit/s to 9.2 Mbit/s; off by more than 7 %"
    assert told.count(slow) == 2
    assert "the rate of a link is off by more than 7 %" in errors
