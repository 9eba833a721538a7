"""Who gets in with no token configured: nodes of the same user of the same host, and no others."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import hoplite
import programs
from hoplite import Node, testing
from hoplite._admission import user_secret
from hoplite.tokens import check_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Where the secret of this test's user is, or will be."""
    return tmp_path / "hoplite" / "secret"


def test_nodes_of_one_user_need_no_token(secret: Path) -> None:
    with Node() as first, Node(join=[first.address], listen="localhost:0") as second:
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
for options in ({}, {"insecure": True}, {"token": hoplite.new_token()}):
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
    with Node() as node, node.client() as client:
        told = programs.run(STRANGER, home_of_nobody, node.address).splitlines()
        assert len(told) == 4
        assert "joined" not in told
        hint = "with no token in its settings, a node proves a secret that only nodes of its user on its host know"
        assert [hint in line for line in told] == [True, False, False, True]
        assert len(client.status()["members"]) == 1


def test_insecure_lets_in_every_node_but_those_that_want_a_proof() -> None:
    with Node(insecure=True) as first, Node(join=[first.address], insecure=True) as second:
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
    for start in (Node, hoplite.init):
        with pytest.raises(hoplite.HopliteError, match=rf"{secret}.* remove it"):
            start()
    # A node that proves something else, or nothing, does not need it.
    for options in ({"token": hoplite.new_token()}, {"insecure": True}):
        Node(**options).close()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.0.0.1:7420"])
def test_where_other_hosts_can_reach_a_node_it_needs_a_token(listen: str, secret: Path) -> None:
    """The secret of a user is none of its cluster on other hosts."""
    for start in (Node, hoplite.init):
        with pytest.raises(hoplite.InvalidArgument, match=r"other hosts can reach .* hoplite token new"):
            start(listen=listen)
    assert not secret.exists()
