"""`hoplite lab`: hosts that stay between commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hoplite.lab import Lab, records
from labs import needs_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_lab


def hoplite(*words: str, input: str = "") -> subprocess.CompletedProcess[str]:  # noqa: A002 - as in subprocess
    command = [sys.executable, "-m", "hoplite.cli", "lab", *words]
    return subprocess.run(command, input=input, capture_output=True, text=True, timeout=50, check=False)


@pytest.fixture
def name() -> Iterator[str]:
    """A name of this process's own, of a lab that is gone afterwards."""
    name = f"test-cli-{os.getpid()}"
    yield name
    if any(record.name == name for record in records.read_all()):
        Lab.find(name).close()


def test_up_run_cut_status_and_down(name: str) -> None:
    up = hoplite("up", "--racks", "1,1", "--rate", "20mbit", "--name", name)
    assert (up.returncode, up.stdout) == (0, "node0 10.77.0.1\nnode1 10.77.1.1\n"), up.stderr

    # Options after the host are the command's, with and without the dashes; so are input and exit code.
    run = hoplite("run", "--name", name, "node1", "--", "sh", "-c", "hostname; cat; exit 3", input="words")
    assert (run.returncode, run.stdout) == (3, "node1\nwords"), run.stderr
    assert hoplite("run", "--name", name, "node1", "sh", "-c", "exit 4").returncode == 4

    assert hoplite("cut", "--name", name, "node0", "--direction", "in").returncode == 0
    assert hoplite("cut", "--name", name, "rack1").returncode == 0
    assert hoplite("slow", "--name", name, "node1", "1mbit").returncode == 0
    listed = {lab["name"]: lab for lab in json.loads(hoplite("status", "--json").stdout)}[name]
    assert listed["owner"] is None
    assert (listed["rate"], listed["uplink"]) == (20_000_000, 20_000_000)
    assert [host["cut"] for host in listed["hosts"]] == [["in"], []]
    assert [rack["cut"] for rack in listed["racks"]] == [[], ["out", "in"]]
    assert hoplite("heal", "--name", name, "rack1").returncode == 0
    assert name in hoplite("status").stdout

    process = Lab.find(name).hosts[0].popen(["sleep", "1000"])
    assert hoplite("down", "--name", name).returncode == 0
    assert process.wait(10) == -9
    assert name not in hoplite("status").stdout


def test_mistakes_end_with_what_to_try(name: str) -> None:
    for words, complaint in (
        (["run", "--name", name, "node0", "true"], f"no lab named '{name}' is up"),
        (["down", "--name", name], "make one: hoplite lab up"),
        (["up", "--name", name, "--rate", "fast"], "rate must be a rate"),
    ):
        done = hoplite(*words)
        assert done.returncode == 1
        assert complaint in done.stderr
        assert "\ntry: " in done.stderr
    done = hoplite("up", "--racks", "4,x")
    assert done.returncode == 2
    assert "'4,x' is not a list of numbers of hosts, such as 4,4" in done.stderr


def test_a_lab_of_a_running_process_is_listed_but_not_taken_away() -> None:
    with Lab(hosts=1) as lab:
        listed = {entry["name"]: entry for entry in json.loads(hoplite("status", "--json").stdout)}
        assert listed[lab.name]["owner"] == os.getpid()
        down = hoplite("down", "--name", lab.name)
        assert down.returncode == 1
        assert f"belongs to process {os.getpid()}, which runs" in down.stderr
        assert lab.hosts[0].run(["hostname"]).stdout == "node0\n"


def test_check_prints_rates_round_trip_and_a_verdict_that_is_its_exit_code() -> None:
    done = hoplite("check", "--hosts", "2", "--rate", "10mbit", "--rounds", "1")
    assert "2 streams at once, asked 10 Mbit/s each: " in done.stdout, done.stderr
    assert "round trip" in done.stdout
    assert done.stdout.splitlines()[-1] == ("good" if done.returncode == 0 else "not good")
    report = json.loads(hoplite("check", "--racks", "1,1", "--rate", "10mbit", "--rounds", "1", "--json").stdout)
    assert [len(streams) for streams in report["rounds"]] == [2]
    assert report["good"] == all(stream["good"] for stream in report["rounds"][0])
    assert {stream["asked"] for stream in report["rounds"][0]} == {10_000_000}
