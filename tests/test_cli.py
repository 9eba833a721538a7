"""The `hoplite` command: results on stdout, errors on stderr that end with what to try next, exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

import hoplite
from hoplite import Node, testing
from support import SOON, numbers


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "hoplite.cli", *arguments], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def test_status_tells_members_and_bytes() -> None:
    with Node() as node:
        node.client().put(numbers(100_000))
        facts = json.loads(run("status", "--json").stdout)
        assert facts["id"] == node.id
        assert facts["objects"] == 1
        assert facts["store"]["used"] >= 400_000
        assert {"bytes_direct", "bytes_relayed", "bytes_folded_remote", "bytes_folded_local"} <= set(facts["counters"])
        told = run("status").stdout
        assert node.address in told
        assert "bytes_direct" in told


def test_objects_lists_copies(nodes: list[Node]) -> None:
    ref = nodes[0].client().put(numbers(100_000), name="policy/1")
    copies = json.loads(run("objects", "--json", "--socket", nodes[0].socket).stdout)
    assert [(copy["ref"], copy["bytes"], copy["pinned"]) for copy in copies] == [(str(ref), 400_000, True)]
    assert "policy/1" in run("objects", "--socket", nodes[0].socket).stdout
    assert json.loads(run("objects", "--json", "--socket", nodes[1].socket).stdout) == []


@pytest.mark.parametrize("command", ["status", "objects"])
def test_no_node_to_ask(command: str) -> None:
    done = run(command, code=1)
    assert done.stdout == ""
    assert "error: no node serves" in done.stderr
    assert done.stderr.endswith("try: start a node on this host with: hoplite node\n")


def test_a_wrong_use_exits_with_2() -> None:
    assert "No such command" in run("nonsense", code=2).stderr
    assert "No such option" in run("status", "--nonsense", code=2).stderr


def test_help_and_version() -> None:
    assert "hoplite demo" in run("--help").stdout
    assert hoplite.__version__ in run("--version").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_node_says_when_it_is_ready_and_leaves_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "hoplite.cli", "node", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, address, socket = process.stdout.readline().split()
            assert ready == "ready:"
            assert address.startswith("127.0.0.1:")
            with hoplite.connect(socket) as client:
                assert client.status()["address"] == address
            start = time.monotonic()
            process.send_signal(number)
            assert process.wait(SOON) == 0
            assert time.monotonic() - start < 10
        finally:
            process.kill()


def test_a_node_that_cannot_start_says_why(nodes: list[Node]) -> None:
    in_use = run("node", "--listen", nodes[0].address, code=1)
    assert in_use.stdout == ""
    assert nodes[0].address in in_use.stderr
    assert "try: choose another port" in in_use.stderr
    assert "token" in run("node", "--listen", "0.0.0.0:0", code=1).stderr
    assert "capacity" in run("node", "--listen", "127.0.0.1:0", "--capacity", "8 apples", code=2).stderr
    nobody = run("node", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", code=1)
    assert "127.0.0.1:1" in nobody.stderr
    assert "try: check" in nobody.stderr


def test_a_node_takes_all_its_options() -> None:
    options = ["--capacity", "64MiB", "--cluster", "mine", "--token", "secret"]
    with testing.node_process(*options) as node, node.client() as client:
        assert client.status()["store"]["capacity"] == 64 << 20
        with Node(join=[node.address], cluster="mine", token="secret") as other:
            testing.wait_for_members([other], 2)
