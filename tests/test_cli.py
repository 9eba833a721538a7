"""The `hoplite` command: results on stdout, errors on stderr that end with a suggestion, exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import hoplite
from commands import COMMAND, run
from hoplite import Node, testing
from hoplite.tokens import check_token
from hoplite.tools.cli import hoplite as command_line
from hoplite.tools.cli import notify
from hoplite.tools.cli.packages import Elsewhere
from hoplite.tools.quantities import write_size
from support import SOON, eventually, eventually_empty, numbers

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_status_reports_members_and_bytes() -> None:
    with Node(listen="127.0.0.1:0") as node:
        node.client().put(numbers(100_000))
        facts = json.loads(run("status", "--json").stdout)
        assert facts["id"] == node.id
        assert facts["objects"] == 1
        assert facts["store"]["used"] >= 400_000
        assert {"bytes_direct", "bytes_relayed", "bytes_folded_remote", "bytes_folded_local"} <= set(facts["counters"])
        output = run("status").stdout
        assert node.address in output
        assert "bytes_direct" in output
    with Node() as node:
        assert json.loads(run("status", "--json").stdout)["address"] is None
        assert f"node     {node.id} without a TCP port, in cluster default" in run("status").stdout


def test_objects_lists_copies(nodes: list[Node]) -> None:
    ref = nodes[0].client().put(numbers(100_000), name="policy/1")
    copies = json.loads(run("objects", "--json", "--socket", nodes[0].socket).stdout)
    assert [(copy["ref"], copy["bytes"], copy["pinned"]) for copy in copies] == [(str(ref), 400_000, True)]
    assert "policy/1" in run("objects", "--socket", nodes[0].socket).stdout
    assert json.loads(run("objects", "--json", "--socket", nodes[1].socket).stdout) == []


@pytest.mark.parametrize("command", ["status", "objects"])
def test_a_command_without_a_node_suggests_to_start_one(command: str) -> None:
    done = run(command, code=1)
    assert done.stdout == ""
    assert "error: no node serves" in done.stderr
    assert done.stderr.endswith("try: start a node on this host with: hoplite node\n")


def test_a_usage_error_exits_with_2() -> None:
    assert "No such command" in run("nonsense", code=2).stderr
    assert "No such option" in run("status", "--nonsense", code=2).stderr
    assert run("get", code=2).stderr.endswith("try: hoplite get --help\n")
    assert run("put", "x", "--retain", "0", code=2).stderr.endswith("try: hoplite put --help\n")
    assert "capacity" in run("node", "--capacity", "lots", code=2).stderr
    for seconds in ("nan", "inf", "1e308"):
        assert "is not a time" in run("objects", "--timeout", seconds, code=2).stderr
    alone = run(code=2).stderr
    assert alone.count("Usage: hoplite") == 1
    assert "error" not in alone


def test_an_unknown_command_suggests_the_closest() -> None:
    assert "(did you mean status?)" in run("statsu", code=2).stderr
    assert "did you mean" not in run("xyzzy", code=2).stderr


def every_command() -> Iterator[tuple[str, click.Command]]:
    for name, listed in command_line.commands.items():
        command = listed.load() if isinstance(listed, Elsewhere) else listed
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", inner) for below, inner in command.commands.items())


def test_the_help_of_every_command_has_an_example() -> None:
    for name, command in every_command():
        context = click.Context(command, info_name=f"hoplite {name}")
        output = command.get_help(context)
        assert f"hoplite {name.split()[0]}" in output.replace(context.get_usage(), ""), name


def test_exit_codes_are_documented() -> None:
    assert "0    success" in run("--help").stdout


def test_help_and_version() -> None:
    assert "hoplite demo" in run("--help").stdout
    assert hoplite.__version__ in run("--version").stdout


def test_put_takes_a_ttl_and_listings_can_be_sorted(nodes: list[Node], tmp_path: Path) -> None:
    at = ("--socket", nodes[0].socket)
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    (tmp_path / "small").write_bytes(b"x")
    run("put", str(tmp_path / "small"), "--name", "b/old", "--ttl", "2h", *at)
    run("put", str(tmp_path / "large"), "--name", "b/new", *at)
    with nodes[0].client() as client:
        value = client.get("b/new", timeout=SOON)
        rows = json.loads(run("objects", "--sort", "readers", "--json", *at).stdout)
        del value
    assert [(row["ref"], row["readers"] > 0) for row in rows] == [("b/new", True), ("b/old", False)]
    assert 7000 < rows[1]["ttl"] <= 7200
    for order, refs in (("size", ["b/new", "b/old"]), ("age", ["b/old", "b/new"])):
        lines = run("objects", "--all", "--sort", order, "b/", *at).stdout.splitlines()
        assert [line.split()[0] for line in lines[1:]] == refs
        assert lines[0].split() == ["ref", "size", "age", "copies", "owner", "job", "ttl", "dtype", "shape"]
    for wrong in (
        ("objects", "--sort", "age"),
        ("put", str(tmp_path / "small"), "--ttl", "0"),
        ("objects", "--sort", "x"),
    ):
        assert run(*wrong, *at, code=2).stderr


def test_objects_can_be_listed_by_prefix_and_deleted(nodes: list[Node]) -> None:
    client, at = nodes[0].client(), ("--socket", nodes[0].socket)
    for name in ("policy/1", "policy/2", "grad/1"):
        client.put(numbers(1000), name=name)
    copies = json.loads(run("objects", "--json", "policy/", *at).stdout)
    assert sorted((copy["ref"], copy["bytes"]) for copy in copies) == [("policy/1", 4000), ("policy/2", 4000)]
    assert "3.9 KiB" in run("objects", "grad", *at).stdout
    run("delete", "policy/1", "policy/2", *at)
    eventually(lambda: [copy["ref"] for copy in client.objects()] == ["grad/1"])
    run("delete", "grad/1", "nobody/1", *at)
    eventually_empty(client)
    assert "empty" in run("delete", "", *at, code=1).stderr


def test_locations_lists_the_nodes_that_hold_a_copy(nodes: list[Node]) -> None:
    ref = nodes[0].client().put(numbers(100_000), name="policy/1")
    nodes[1].client().get(ref, timeout=SOON)
    output = run("locations", "policy/1", "--json", "--socket", nodes[0].socket).stdout
    assert len(json.loads(output)) == 2
    assert nodes[0].id in output
    assert nodes[1].id in run("locations", "policy/1", "--socket", nodes[0].socket).stdout


def test_sizes_are_formatted_with_units() -> None:
    words = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 5 << 30: "5.0 GiB", 3 << 40: "3.0 TiB"}
    assert {count: write_size(count) for count in words} == words


def test_invalid_settings_of_the_environment_are_named() -> None:
    done = run("node", code=1, HOPLITE_CAPACITY="lots")
    assert done.stderr.startswith("error: HOPLITE_CAPACITY: capacity 'lots'")
    assert done.stderr.splitlines()[-1].startswith("try: ")
    assert "warning: HOPLITE_CAPCITY" in run("status", code=1, HOPLITE_CAPCITY="1GiB").stderr
    with Node(listen="127.0.0.1:0") as node:
        assert json.loads(run("status", "--json", HOPLITE_SOCKET=node.socket).stdout)["id"] == node.id
        assert "HOPLITE_ADDRESS" in run("status", code=1, HOPLITE_ADDRESS=node.address).stderr


def test_a_node_takes_its_settings_from_a_file(tmp_path: Path) -> None:
    """Options take precedence."""
    file = tmp_path / "hoplite.toml"
    token = hoplite.new_token()
    file.write_text(f'listen = "127.0.0.1:0"\ncluster = "of-file"\ncapacity = "64MiB"\ntoken = "{token}"\n')
    file.chmod(0o600)
    with testing.node_process("--config", str(file), "--capacity", "32MiB") as node, node.client() as client:
        assert client.status()["cluster"] == "of-file"
        assert client.status()["store"]["capacity"] == 32 << 20
        with Node(join=[node.address], cluster="of-file", token=token) as other:
            testing.wait_for_members([other], 2)
    file.write_text("capasity = 1")
    done = run("node", "--config", str(file), code=1)
    assert "hoplite.toml: unknown setting capasity (did you mean capacity?)" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_is_notified(tmp_path: Path, is_abstract: bool) -> None:
    """Through a socket in a folder, or with an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SOON)
        path = f"hoplite-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
        manager.bind(f"\0{path}" if is_abstract else path)
        environment = {**os.environ, "NOTIFY_SOCKET": f"@{path}" if is_abstract else path}
        command = [*COMMAND, "node", "--listen", "127.0.0.1:0", "--json"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                facts = manager.recv(4096).decode().splitlines()
                assert process.stdout is not None
                ready = json.loads(process.stdout.readline())
                assert facts[0] == "READY=1"
                assert facts[1].startswith(f"STATUS=serving {ready['address']}")
                process.terminate()
                assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
                assert process.wait(SOON) == 0
            finally:
                process.kill()


def test_an_unreachable_service_manager_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address may be stale, missing, of another kind, or its queue full: the node runs anyway, without waiting."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify.notify("READY=1") is None
    gone = tmp_path / "gone"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(gone))
    for address in (str(gone), str(tmp_path / "none"), "vsock:2:1", "@", str(tmp_path), "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        problem = notify.notify("READY=1")
        assert problem is not None
        assert problem.startswith(f"NOTIFY_SOCKET is {address}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as full:
        full.bind(str(tmp_path / "full"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "full"))
        problems = [notify.notify("READY=1") for _ in range(10_000)]
        assert problems[0] is None
        assert "temporarily unavailable" in str(problems[-1])
    with testing.node_process() as node:
        assert node.client().status()["id"] == node.id


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    script = run("completion", shell).stdout
    assert "_HOPLITE_COMPLETE" in script
    assert "hoplite" in script
    assert run("completion", "tcsh", code=2).stdout == ""


def complete(*words: str) -> list[str]:
    """Returns what bash would offer for the last word."""
    environment = {
        "_HOPLITE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("hoplite", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = run(code=0, **environment)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_refs_are_completed_from_the_running_node() -> None:
    """Without a running node, nothing is completed and nothing is printed."""
    assert complete("sta") == ["status"]
    assert complete("delete", "pol") == []
    with Node() as node:
        client = node.client()
        for name in ("policy/1", "policy/2", "grad/1"):
            client.put(b"x", name=name)
        assert complete("delete", "pol") == ["policy/1", "policy/2"]
        assert complete("get", "g") == ["grad/1"]


def test_bash_parses_the_completion_script(tmp_path: Path) -> None:
    script = tmp_path / "hoplite.bash"
    script.write_text(run("completion", "bash").stdout)
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, timeout=SOON, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_output_pipe_causes_no_traceback() -> None:
    with Node() as node:
        node.client().put(b"x", name="policy/1")
        done = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m hoplite.tools.cli objects --json | true"],
            capture_output=True,
            timeout=SOON,
            check=False,
        )
        assert done.stderr == b""


def test_a_table_fits_the_terminal() -> None:
    """Elsewhere the text does not depend on the terminal's width."""
    with Node() as node:
        node.client().put(numbers(1000), name="policy/1")
        ours, theirs = pty.openpty()
        try:
            command = [*COMMAND, "objects"]
            subprocess.run(command, stdout=theirs, timeout=SOON, check=True)
            assert b"policy/1" in os.read(ours, 4096)
        finally:
            os.close(ours)
            os.close(theirs)
        assert "policy/1  3.9 KiB  complete  pinned" in run("objects", COLUMNS="20").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_node_reports_that_it_is_ready_and_leaves_on_a_signal(number: signal.Signals) -> None:
    command = [*COMMAND, "node", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, address, socket = process.stdout.readline().split()
            assert ready == "ready:"
            assert address.startswith("127.0.0.1:")
            with hoplite.connect(socket) as client:
                assert client.status()["address"] == address
            process.send_signal(number)
            assert process.wait(SOON) == 0
        finally:
            process.kill()


# A node that reports a failure as soon as it is queried. Rust tests cover that a panic ends a node.
FAILING = """
from hoplite.tools.cli import main
from hoplite.node import Node
Node.failure = property(lambda node: "its task Fold panicked: injected")
main()
"""


def test_a_node_that_fails_reports_why_and_exits_with_1() -> None:
    command = [sys.executable, "-c", FAILING, "node", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("ready:")
    assert "error: its task Fold panicked: injected\ntry: restart" in done.stderr


def test_a_command_rejects_a_node_of_another_cluster(tmp_path: Path) -> None:
    with Node(cluster="one") as node:
        for arguments in (["status"], ["objects"], ["status", "--socket", node.socket], ["delete", "x"]):
            stderr = run(*arguments, code=1, HOPLITE_CLUSTER="two").stderr
            assert "belongs to cluster 'one', not to 'two' (HOPLITE_CLUSTER)" in stderr
            assert "embedded" not in stderr
        assert "in cluster one" in run("status", HOPLITE_CLUSTER="one").stdout
        assert "in cluster one" in run("status").stdout
        (tmp_path / "hoplite.toml").write_text('cluster = "two"')
        assert "hoplite.toml: cluster" in run("status", code=1, HOPLITE_CONFIG=f"{tmp_path}/hoplite.toml").stderr


def test_a_node_that_can_not_start_reports_why(nodes: list[Node], tmp_path: Path) -> None:
    in_use = run("node", "--listen", nodes[0].address, code=1)
    assert in_use.stdout == ""
    assert nodes[0].address in in_use.stderr
    assert "try: choose another port" in in_use.stderr
    assert "token" in run("node", "--listen", "0.0.0.0:0", code=1).stderr
    assert "capacity" in run("node", "--listen", "127.0.0.1:0", "--capacity", "8 apples", code=2).stderr
    missing = run("node", "--listen", "127.0.0.1:0", "--socket", f"{tmp_path}/missing/node.sock", code=1)
    assert f"the directory {tmp_path}/missing" in missing.stderr
    assert "try: create the directory" in missing.stderr
    for few in ("5", "5B", "500 KiB"):
        stderr = run("node", "--listen", "127.0.0.1:0", "--capacity", few, code=2).stderr
        assert "set at least 1048576 (1 MiB)" in stderr
        assert ('did you mean "5GiB"?' in stderr) == ("K" not in few)
    nobody = run("node", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1", code=1)
    assert "no node listens at 127.0.0.1:1: check the address, and that its node runs" in nobody.stderr
    assert "try: start the node to join first" in nobody.stderr


def test_options_of_a_node_take_effect() -> None:
    options = ["--capacity", "64MiB", "--cluster", "mine"]
    with testing.node_process(*options) as node, node.client() as client:
        assert client.status()["store"]["capacity"] == 64 << 20
        with Node(join=[node.address], cluster="mine") as other:
            testing.wait_for_members([other], 2)


def test_a_token_is_created_and_printed_once(tmp_path: Path) -> None:
    """On stdout or in a new file that only its owner can read; an existing file is never overwritten."""
    printed = [run("token", "new").stdout.rstrip("\n") for _ in range(2)]
    assert len(set(printed)) == 2
    file = tmp_path / "hoplite.token"
    assert run("token", "new", "--out", file).stdout == ""
    written = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    for token in (*printed, written.rstrip("\n")):
        assert check_token("token", token) == token
    assert f"{file} exists" in run("token", "new", "--out", file, code=1).stderr
    assert file.read_text() == written
    assert "can't be created: No such file" in run("token", "new", "--out", tmp_path / "nowhere" / "x", code=1).stderr


def test_a_token_on_the_command_line_is_rejected() -> None:
    """Every user of the host can read it there, so the command names the alternative and does not repeat the token."""
    token = hoplite.new_token()
    for given in (["--token", token], [f"--token={token}"]):
        done = run("node", "--listen", "127.0.0.1:0", *given, code=2)
        assert "HOPLITE_TOKEN" in done.stderr
        assert token not in done.stderr
    assert "--token " not in run("node", "--help").stdout
    assert "hoplite token new" in run("node", "--listen", "127.0.0.1:0", code=1, HOPLITE_TOKEN="secret").stderr


@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("objects",),
        ("status", "--json"),
        ("get", "policy/1"),
        ("completion", "bash"),
    ],
    ids=" ".join,
)
def test_an_error_of_the_output_is_reported(node: Node, client: hoplite.Client, command: tuple[str, ...]) -> None:
    del node
    client.put(numbers(100_000), name="policy/1")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=SOON, check=False
        )
    assert done.returncode == 1
    expected = (
        "error: the output can't be written: No space left on device\ntry: write it to a device with free space\n"
    )
    assert done.stderr == expected
