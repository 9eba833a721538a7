"""Several users on one host: none attaches to a node of another, whatever the permissions of files let it do."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hoplite
from hoplite import Node
from programs import go, line

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root starts processes of other users")

# The last user by convention, who owns no file.
STRANGER = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder where every user may make files, as in /tmp; pytest's own folders are closed."""
    made = Path(tempfile.mkdtemp(prefix="hoplite-users-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


# The interpreter may lie where only root may look: it is started, and then becomes the other user.
BECOMES = f"""
import fcntl, os, socket, sys
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
"""


@contextlib.contextmanager
def stranger(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a script that needs nothing but Python as another user."""
    command = [sys.executable, "-I", "-c", BECOMES + script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


CONNECTS = """
stream = socket.socket(socket.AF_UNIX)
stream.settimeout(30)
try:
    stream.connect(sys.argv[1])
except PermissionError:
    print("closed")
    sys.exit()
heard = b""
while more := stream.recv(4096):
    heard += more
print(heard)
"""


def test_a_node_sends_processes_of_other_users_away(folder: Path) -> None:
    """Also where the file lets them connect. Before they say anything."""
    path = folder / "node.sock"
    with Node(socket=path) as node:
        assert path.stat().st_mode & 0o777 == 0o600
        with stranger(CONNECTS, str(path)) as process:
            assert line(process) == "closed"
        path.chmod(0o666)
        with stranger(CONNECTS, str(path)) as process:
            assert f"user {STRANGER} may not attach" in line(process)
        with hoplite.connect(str(path)) as client:
            assert client.status()["id"] == node.id
            assert client.status()["counters"]["strangers"] == 1


SERVES = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    stream.settimeout(30)
    heard = stream.recv(4096)
    if heard:
        print(heard, flush=True)
"""


def test_a_program_attaches_to_no_node_of_another_user(folder: Path) -> None:
    """What it serves could be a pickle. The program says nothing to it."""
    path = folder / "node.sock"
    with stranger(SERVES, str(path)) as process:
        assert line(process) == "ready"
        for attach in (hoplite.connect, hoplite.init):
            with pytest.raises(hoplite.ConnectError, match=f"user {STRANGER} serves it"):
                attach(f"unix:{path}")
        with pytest.raises(hoplite.AddressInUse):
            Node(socket=path)
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(path))
            last.sendall(b"last")
            assert line(process) == "b'last'"


LOCKS = """
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_another_user_keeps_no_node_from_starting_in_a_shared_folder(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)
    with stranger(LOCKS, str(folder)) as process:
        assert line(process) == "locked"
        with Node(socket=folder / "node.sock") as node, hoplite.connect(str(folder / "node.sock")) as client:
            assert client.status()["id"] == node.id
        go(process)
