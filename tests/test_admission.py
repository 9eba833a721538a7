"""Which nodes get in: those that prove a token of the settings or, with none, nodes of one user on one host."""

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
    """Where the secret of this test's user is, or will be."""
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
# What Python loads late, from where another user may not look.
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
    """A runtime folder that another user can use, where there is one to become: as root."""
    with tempfile.TemporaryDirectory(prefix="hoplite-") as folder:
        if os.getuid() == 0:
            os.chown(folder, 65534, 65534)
        yield folder


def test_a_node_of_another_user_is_not_let_in(home_of_nobody: str) -> None:
    """As far as this test may become one: else it is a node with another secret."""
    with Node(listen="127.0.0.1:0") as node, node.client() as client:
        told = programs.run(STRANGER, home_of_nobody, node.address).splitlines()
        assert len(told) == 4
        assert "joined" not in told
        hint = "without a token in its settings, a node uses a secret that only nodes of its user on its host have"
        assert [hint in line for line in told] == [True, False, False, True]
        assert len(client.status()["members"]) == 1


def test_insecure_lets_in_every_node_but_those_that_want_a_proof() -> None:
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


def test_processes_that_make_the_secret_at_once_have_the_same(secret: Path) -> None:
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


@pytest.mark.parametrize("spoil", [readable, damaged, of_another_user, linked, a_folder, a_pipe])
def test_a_secret_that_others_may_know_is_not_used(secret: Path, spoil: Callable[[Path], None]) -> None:
    spoil(secret)
    with pytest.raises(hoplite.HopliteError, match=rf"{secret}.* remove it"):
        Node(listen="127.0.0.1:0")
    # A node that proves something else, or nothing, or that no other can reach, does not need it.
    for options in ({"token": hoplite.new_token()}, {"no_auth": True}, {}):
        Node(**options).close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:7420"])
def test_where_other_hosts_can_reach_a_node_it_needs_a_token(listen: str, secret: Path) -> None:
    """The secret of a user is none of its cluster on other hosts."""
    with pytest.raises(hoplite.InvalidArgument, match=r"other hosts can reach .* hoplite token new"):
        Node(listen=listen)
    assert not secret.exists()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of one token."""
    file = tmp_path / "hoplite.token"
    run("token", "new", "--out", file)
    return file


def test_a_token_in_a_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By argument, option, variable and key; it is the same as the token itself."""
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


def test_a_token_is_replaced_while_the_cluster_goes_on(tmp_path: Path) -> None:
    """The three steps of docs/security.md: at each, nodes of the step before and of this one are one cluster."""
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


def test_a_token_said_twice_is_an_error_that_names_both_places(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = hoplite.new_token()
    with pytest.raises(
        hoplite.InvalidArgument, match=r"token \(argument\) and token_file \(argument\) exclude each other"
    ):
        Node(token=token, token_file=file)
    monkeypatch.setenv("HOPLITE_TOKEN", token)
    said = r"token \(HOPLITE_TOKEN\) and token_file \(argument\) exclude"
    with pytest.raises(hoplite.InvalidArgument, match=said):
        Node(token_file=file)
    done = run("node", "--token-file", file, "--listen", "127.0.0.1:0", code=1)
    assert "token (HOPLITE_TOKEN) and token_file (argument) exclude each other" in done.stderr
    assert token not in done.stderr


# Prints the environment of `hoplite node` when it is ready, and ends.
READY_NODE = """
import os, signal
import hoplite.tools.cli.node as command
from hoplite.tools.cli import main

def tell(*facts):
    if facts[0] == "READY=1":
        print([name for name in os.environ if name.startswith("HOPLITE_T")])
        os.kill(os.getpid(), signal.SIGTERM)

command._tell = tell
main()
"""


def test_a_node_takes_the_token_out_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process that it started would inherit."""
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


def test_a_token_is_told_nowhere(file: Path, tmp_path: Path) -> None:
    """Not by logs of any level, whether a node gets in or not, nor by status, objects, errors and representations."""
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
                told = [repr(member), repr(client), repr(client.status()), repr(values), repr(settings.SETTINGS)]
                told += [str(refused.value), str(twice.value)]
            told += [run(command, "--json", "--socket", ready["socket"]).stdout for command in ("status", "objects")]
        finally:
            process.terminate()
        assert process.wait(SOON) == 0
    told.append(log.read_text())
    # That there was something to look at.
    assert ready["id"] in told[-1]
    for text in told:
        assert token not in text
        assert token.removeprefix(PREFIX) not in text
