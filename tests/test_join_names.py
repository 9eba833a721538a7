"""A node joins by a name that several nodes share, of which it may be one itself: a headless service of Kubernetes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support import SOON

if TYPE_CHECKING:
    from pathlib import Path

# Resolvers sort the addresses of a name: this host's own comes first.
HOSTS = "127.0.0.1 localhost\n127.0.0.2 many\n127.0.0.1 many\n"

PROGRAM = """
import socket, sys
import hoplite
from hoplite import testing

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
assert len(socket.gethostbyname_ex("many")[2]) == 2
nodes = []
for address, join in (("127.0.0.2", []), ("127.0.0.1", [f"many:{port}"]), ("127.0.0.3", [f"many:{port}"])):
    nodes.append(hoplite.Node(listen=f"{address}:{port}", join=join, socket=f"{sys.argv[1]}/{address}.sock"))
testing.wait_for_members(nodes, 3)
for node in nodes:
    node.close(0)
"""


def test_a_node_joins_by_a_name_that_is_also_its_own(tmp_path: Path) -> None:
    """In a mount namespace with its own /etc/hosts."""
    (tmp_path / "hosts").write_text(HOSTS)
    inside = 'mount --bind "$1" /etc/hosts && exec "$2" -c "$3" "$4"'
    command = ["unshare", "--mount", "sh", "-c", inside, "sh", str(tmp_path / "hosts"), sys.executable]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "", ""], capture_output=True, check=False).returncode
    ):
        pytest.skip("creating a mount namespace needs unshare and root")
    done = subprocess.run(
        [*command, PROGRAM, str(tmp_path)], env=os.environ, capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == 0, done.stderr
