"""A node and its clients in separate containers: different PID and user namespaces, and a shared socket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from programs import go, line
from support import SOON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PID = ("unshare", "--pid", "--fork", "--kill-child")
USER = ("unshare", "--user", "--map-root-user")

SERVE = """
import sys, hoplite
with hoplite.Node(socket=sys.argv[1], capacity="64MiB") as node:
    print(node.id, flush=True)
    input()
    counters = node.client().status()["counters"]
    assert counters["strangers"] == 0, counters
"""

# Puts and gets a mapped object and an inline one, and forks.
USE = """
import os, sys, hoplite
hp = hoplite.init(f"unix:{sys.argv[1]}", timeout=30)
large = bytes(range(256)) * 4096
refs = [hp.put(large), hp.put(b"small")]
assert [bytes(hp.get(ref, timeout=30)) for ref in refs] == [large, b"small"]
with hoplite.connect(sys.argv[1]) as other:
    assert bytes(other.get(refs[0], timeout=30)) == large
pid = os.fork()
if pid == 0:
    os._exit(0 if bytes(hp.get(refs[0], timeout=30)) == large else 1)
assert os.waitpid(pid, 0)[1] == 0
print(hp.status()["id"])
"""


@contextlib.contextmanager
def serving(path: Path, space: tuple[str, ...]) -> Iterator[str]:
    """Runs a node in separate namespaces; yields its id."""
    with subprocess.Popen(
        [*space, sys.executable, "-c", SERVE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield line(process)
            go(process)
            assert process.wait(SOON) == 0
        finally:
            process.kill()


def used(path: Path, space: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs a program in separate namespaces."""
    return subprocess.run(
        [*space, sys.executable, "-c", USE, str(path)], capture_output=True, text=True, timeout=2 * SOON, check=False
    )


def skip_without(space: tuple[str, ...]) -> None:
    """Skips a test if this user may not create such a namespace."""
    try:
        done = subprocess.run([*space, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare of util-linux")
    if done.returncode != 0:
        pytest.skip(f"{' '.join(space)}: {done.stderr.strip()}")


@pytest.mark.parametrize("space", [PID, USER], ids=["pid", "user"])
@pytest.mark.parametrize("inside", ["client", "node", "each"])
def test_a_client_attaches_across_namespaces(space: tuple[str, ...], inside: str, tmp_path: Path) -> None:
    """The kernel reports no id of a process in a PID namespace that is not visible from here."""
    skip_without(space)
    path = tmp_path / "node.sock"
    with serving(path, () if inside == "client" else space) as identity:
        done = used(path, () if inside == "node" else space)
        assert done.stderr == ""
        assert done.stdout == f"{identity}\n"


# Becomes another user, and root of a new user namespace, after all imports: it could read no file afterwards.
OTHER = """
import ctypes, os, sys, hoplite
from pathlib import Path
PR_SET_DUMPABLE, CLONE_NEWUSER = 4, 0x10000000
libc = ctypes.CDLL(None, use_errno=True)
hoplite.settings.load(address=None)
os.setresgid(65533, 65533, 65533)
os.setresuid(65533, 65533, 65533)
libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
if libc.unshare(CLONE_NEWUSER) != 0:
    raise SystemExit(f"unshare: {os.strerror(ctypes.get_errno())}")
Path("/proc/self/uid_map").write_text("0 65533 1")
assert os.geteuid() == 0
try:
    hoplite.connect(sys.argv[1])
except hoplite.ConnectError as error:
    print(error)
"""


def test_a_process_of_another_user_in_a_user_namespace_is_rejected_with_the_reason(tmp_path: Path) -> None:
    """The process is root in its namespace, as the node's user is outside."""
    if os.geteuid() != 0:
        pytest.skip("needs root to be another user")
    path = tmp_path / "node.sock"
    with serving(path, ()):
        command = [sys.executable, "-c", OTHER, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=False)
        if done.stderr.startswith("unshare:"):
            pytest.skip(done.stderr.strip())
        assert done.stderr == ""
        assert f"can't attach to a node at {path}: its file belongs to another user" in done.stdout
