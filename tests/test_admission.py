"""Authentication of joining nodes: by a configured token or, without one, by a secret of one user on one host."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import hoplite
import programs
from commands import COMMAND, run
from hoplite import Node, settings, testing
from hoplite._admission import user_secret
from hoplite.tokens import PREFIX, check_token
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The path of this test user's secret, which may not exist yet."""
    return tmp_path / "hoplite" / "secret"


def test_nodes_of_one_user_need_no_token(secret: Path) -> None:
    with Node(listen="localhost:0") as first, Node(join=[first.address]) as second:
        testing.wait_for_members([first, second], 2)
        assert secret.stat().st_mode & 0o777 == 0o600
        assert check_token("secret", secret.read_text()) == user_secret()


STRANGER = """
import os, sys
import hoplite
from hoplite import Node

folder, address = sys.argv[1:]
# Import lazily loaded modules now: another user may not be able to read their files.
"".encode("idna")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.environ["XDG_RUNTIME_DIR"] = folder
for options in ({}, {"no_auth": True}, {"token": hoplite.new_token()}):
    try:
        Node(join=[address], **options)
    except hoplite.JoinError as error:
        print(error)
    else:
        print("joined")
try:
    hoplite.init(address)
except hoplite.JoinError as error:
    print(error)
"""


@pytest.fixture
def home_of_nobody() -> Iterator[str]:
    """A runtime folder that another user can use. As root, the test can become that user."""
    with tempfile.TemporaryDirectory(prefix="hoplite-") as folder:
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        yield folder


def test_a_node_of_another_user_is_rejected(home_of_nobody: str) -> None:
    """As root, the other node runs as another user; otherwise it has another secret."""
    with Node(listen="127.0.0.1:0") as node, node.client() as client:
        outputs = programs.run(STRANGER, home_of_nobody, node.address).splitlines()
        assert len(outputs) == 4
        assert "joined" not in outputs
        hint = (
            "without a token in its settings, a node uses a secret that only this user's nodes on the same host share"
        )
        assert [hint in line for line in outputs] == [True, False, False, True]
        assert len(client.status()["members"]) == 1


def test_no_auth_accepts_every_node_except_those_that_require_authentication() -> None:
    with Node(no_auth=True) as first, Node(join=[first.address], no_auth=True) as second:
        testing.wait_for_members([first, second], 2)
        with pytest.raises(hoplite.JoinError, match="token"):
            Node(join=[first.address])


READY = """
from hoplite._admission import user_secret
print("ready", flush=True)
input()
print(user_secret(), flush=True)
"""


def test_processes_that_create_the_secret_concurrently_get_the_same_one(secret: Path) -> None:
    with ExitStack() as stack:
        scripts = [stack.enter_context(programs.started(READY)) for _ in range(6)]
        assert {programs.line(script) for script in scripts} == {"ready"}
        for script in scripts:
            programs.go(script)
        assert {programs.line(script) for script in scripts} == {secret.read_text()}
    assert [file.name for file in secret.parent.iterdir()] == ["secret"]


def readable(secret: Path) -> None:
    user_secret()
    secret.chmod(0o640)


def damaged(secret: Path) -> None:
    user_secret()
    secret.write_text(secret.read_text()[:-1])


def of_another_user(secret: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    user_secret()
    os.chown(secret, 65534, 65534)


def linked(secret: Path) -> None:
    user_secret()
    secret.rename(secret.with_name("elsewhere"))
    secret.symlink_to("elsewhere")


def a_folder(secret: Path) -> None:
    hoplite.sockets.runtime_dir()
    secret.mkdir()


def a_pipe(secret: Path) -> None:
    hoplite.sockets.runtime_dir()
    os.mkfifo(secret)


@pytest.mark.parametrize("damage", [readable, damaged, of_another_user, linked, a_folder, a_pipe])
def test_an_insecure_secret_file_is_rejected(secret: Path, damage: Callable[[Path], None]) -> None:
    damage(secret)
    with pytest.raises(hoplite.HopliteError, match=rf"{secret}.* remove it"):
        Node(listen="127.0.0.1:0")
    # Nodes that use a token, no authentication or no TCP do not need the secret.
    for options in ({"token": hoplite.new_token()}, {"no_auth": True}, {}):
        Node(**options).close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:7420"])
def test_a_node_that_other_hosts_can_reach_needs_a_token(listen: str, secret: Path) -> None:
    """A user's secret exists only on one host, so it can't authenticate nodes of other hosts."""
    with pytest.raises(hoplite.InvalidArgument, match=r"other hosts can reach .* hoplite token new"):
        Node(listen=listen)
    assert not secret.exists()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A token file with one token."""
    file = tmp_path / "hoplite.token"
    run("token", "new", "--out", file)
    return file


def test_a_token_file_can_be_set_in_every_way(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set by argument, command-line option, environment variable and key, it equals the token itself."""
    with (
        testing.node_process("--token-file", str(file)) as first,
        Node(join=[first.address], token_file=file) as second,
        Node(join=[first.address], token=file.read_text().strip()) as third,
    ):
        monkeypatch.setenv("HOPLITE_TOKEN_FILE", str(file))
        with Node(join=[first.address]) as fourth:
            testing.wait_for_members([second, third, fourth], 4)
        with hoplite.init(first.address) as client:
            assert client.node is not None
            client.node.close()
        monkeypatch.delenv("HOPLITE_TOKEN_FILE")
        with pytest.raises(hoplite.JoinError):
            Node(join=[first.address])


def test_a_token_is_rotated_while_the_cluster_runs(tmp_path: Path) -> None:
    """The steps of docs/security.md: at each, nodes with the old and the new settings form one cluster."""
    old, new = hoplite.new_token(), hoplite.new_token()
    steps = ["\n".join(lines) for lines in ([old], [old, new], [new, old], [new])]
    files = [tmp_path / f"step-{number}" for number in range(len(steps))]
    for file, text in zip(files, steps, strict=True):
        file.touch(0o600)
        file.write_text(text + "\n")
    for before, after in itertools.pairwise(files):
        for first, second in ((before, after), (after, before)):
            with Node(token_file=first) as one, Node(join=[one.address], token_file=second) as two:
                testing.wait_for_members([one, two], 2)
    with Node(token_file=files[-1]) as one, pytest.raises(hoplite.JoinError, match="token"):
        Node(join=[one.address], token_file=files[0])


def test_two_sources_of_a_token_are_an_error_that_names_both(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = hoplite.new_token()
    with pytest.raises(
        hoplite.InvalidArgument, match=r"token \(argument\) and token_file \(argument\) are mutually exclusive"
    ):
        Node(token=token, token_file=file)
    monkeypatch.setenv("HOPLITE_TOKEN", token)
    conflict = r"token \(HOPLITE_TOKEN\) and token_file \(argument\) are mutually exclusive"
    with pytest.raises(hoplite.InvalidArgument, match=conflict):
        Node(token_file=file)
    done = run("node", "--token-file", file, "--listen", "127.0.0.1:0", code=1)
    assert "token (HOPLITE_TOKEN) and token_file (argument) are mutually exclusive" in done.stderr
    assert token not in done.stderr


# Prints the environment of `hoplite node` once it is ready, and ends it.
READY_NODE = """
import os, signal
import hoplite.tools.cli.node as command
from hoplite.tools.cli import main

def notify(*facts):
    if facts[0] == "READY=1":
        print([name for name in os.environ if name.startswith("HOPLITE_T")])
        os.kill(os.getpid(), signal.SIGTERM)

command._notify = notify
main()
"""


def test_a_node_removes_the_token_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the node starts would inherit it."""
    monkeypatch.setenv("HOPLITE_TOKEN", hoplite.new_token())
    done = subprocess.run(
        [sys.executable, "-c", READY_NODE, "node", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "[]"


def test_a_token_appears_in_no_output(file: Path, tmp_path: Path) -> None:
    """Logs of all levels, status, objects, errors and representations do not contain it."""
    token = file.read_text().strip()
    node = [*COMMAND, "node", "--json", "--listen", "127.0.0.1:0", "--token-file", str(file), "--log-level", "trace"]
    log = tmp_path / "log"
    with log.open("w") as stderr, subprocess.Popen(node, stdout=subprocess.PIPE, stderr=stderr, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            values = settings.load(token=token, token_file=None)
            with Node(join=[ready["address"]], token=token) as member, member.client() as client:
                client.put(b"x", name="some/1")
                with pytest.raises(hoplite.JoinError) as refused:
                    Node(join=[ready["address"]], token=hoplite.new_token())
                with pytest.raises(hoplite.InvalidArgument) as twice:
                    Node(token=token, token_file=file)
                outputs = [repr(member), repr(client), repr(client.status()), repr(values), repr(settings.SETTINGS)]
                outputs += [str(refused.value), str(twice.value)]
            outputs += [run(command, "--json", "--socket", ready["socket"]).stdout for command in ("status", "objects")]
        finally:
            process.terminate()
        assert process.wait(SOON) == 0
    outputs.append(log.read_text())
    # Check that the log is not empty.
    assert ready["id"] in outputs[-1]
    for text in outputs:
        assert token not in text
        assert token.removeprefix(PREFIX) not in text
