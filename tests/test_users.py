"""Several users on one host: no process attaches to a node of another user, whatever the file permissions allow."""

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

# By convention the last user, which owns no files.
STRANGER = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which every user may create files, as in /tmp; pytest's own folders are private."""
    made = Path(tempfile.mkdtemp(prefix="hoplite-users-"))
    made.chmod(0o777)
    yield made
    shutil.rmtree(made)


# Only root may be able to read the interpreter, so the script starts as root and then becomes the other user.
BECOME_STRANGER = f"""
import fcntl, os, socket, sys
os.setgroups([])
os.setgid({STRANGER})
os.setuid({STRANGER})
"""


@contextlib.contextmanager
def stranger(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a script that imports only the standard library as another user."""
    command = [sys.executable, "-I", "-c", BECOME_STRANGER + script, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


CONNECT = """
stream = socket.socket(socket.AF_UNIX)
stream.settimeout(30)
try:
    stream.connect(sys.argv[1])
except PermissionError:
    print("closed")
    sys.exit()
received = b""
while more := stream.recv(4096):
    received += more
print(received)
"""


def test_a_node_rejects_processes_of_other_users(folder: Path) -> None:
    """Also if the file permissions let them connect, and before they send anything."""
    path = folder / "node.sock"
    with Node(socket=path) as node:
        assert path.stat().st_mode & 0o777 == 0o600
        with stranger(CONNECT, str(path)) as process:
            assert line(process) == "closed"
        path.chmod(0o666)
        with stranger(CONNECT, str(path)) as process:
            assert f"user {STRANGER} may not attach" in line(process)
        with hoplite.connect(str(path)) as client:
            assert client.status()["id"] == node.id
            assert client.status()["counters"]["strangers"] == 1


SERVE = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    stream.settimeout(30)
    received = stream.recv(4096)
    if received:
        print(received, flush=True)
"""


def test_a_program_does_not_attach_to_a_node_of_another_user(folder: Path) -> None:
    """That node could send pickles. The program sends nothing to it."""
    path = folder / "node.sock"
    with stranger(SERVE, str(path)) as process:
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


LOCK = """
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_another_user_can_not_block_a_node_in_a_shared_folder(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)
    with stranger(LOCK, str(folder)) as process:
        assert line(process) == "locked"
        with Node(socket=folder / "node.sock") as node, hoplite.connect(str(folder / "node.sock")) as client:
            assert client.status()["id"] == node.id
        go(process)
