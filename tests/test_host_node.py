"""Which node of its host a process uses: `hoplite node` before an embedded one, and nodes of its own job."""

from __future__ import annotations

import contextlib
import json
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
from commands import COMMAND
from commands import run as cli
from hoplite import Node, sockets
from programs import go, line, run, started
from support import SOON, Later, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PRINT_NODE = 'import hoplite; hp = hoplite.init(); print(hp.status()["id"], hp.node is not None)'

# Prints its node's id and socket, and runs until it gets a line.
WORKER = """
import hoplite
hp = hoplite.init()
print(hp.status()["id"], hp.node and hp.node.socket, flush=True)
input()
hoplite.shutdown()
"""


@contextlib.contextmanager
def host_node(env: Mapping[str, str] | None = None) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Starts `hoplite node` as a user does, without a socket option, and waits until it is ready."""
    with subprocess.Popen(
        [*COMMAND, "node", "--listen", "127.0.0.1:0", "--json", "--log-level", "error"],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            ready = line(process)
            assert ready, process.communicate()[1]
            yield json.loads(ready), process
        finally:
            process.terminate()
            process.communicate(timeout=SOON)


@pytest.mark.parametrize("is_set", [False, True], ids=["default", "given"])
def test_an_embedded_node_does_not_take_the_socket_of_hoplite_node(
    is_set: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker started first. Later processes use the host's node, whose warning names the worker."""
    path = sockets.default_socket()
    if is_set:
        path = tmp_path / "own.sock"
        monkeypatch.setenv("HOPLITE_SOCKET", str(path))
    with started(WORKER) as worker:
        embedded, embedded_socket = line(worker).split()
        assert Path(embedded_socket) == path.with_name(f"{path.stem}-embedded.sock")
        assert run(PRINT_NODE).split() == [embedded, "False"]
        assert json.loads(cli("status", "--json").stdout)["id"] == embedded
        with host_node() as (ready, process):
            assert ready["socket"] == str(path)
            assert process.stderr is not None
            warning = process.stderr.readline()
            assert warning.startswith(f"warning: process {worker.pid} ({sys.executable} -c ")
            assert embedded_socket in warning
            assert "HOPLITE_ADDRESS=local" in warning
            assert run(PRINT_NODE).split() == [ready["id"], "False"]
            assert json.loads(cli("status", "--json").stdout)["id"] == ready["id"]
        go(worker)
        assert worker.wait(SOON) == 0
    assert not Path(embedded_socket).exists()


def test_a_second_node_of_the_host_does_not_start() -> None:
    with Node() as node:
        output = cli("node", "--listen", "127.0.0.1:0", code=1).stderr
        assert f"process {os.getpid()} (" in output
        assert f"already serves the socket {node.socket}" in output
        assert "--socket" in output
    with host_node() as (ready, process):
        assert f"process {process.pid} (" in cli("node", "--listen", "127.0.0.1:0", code=1).stderr
        own = sockets.runtime_dir() / "mine.sock"
        with hoplite.Node(socket=own):
            pass
        # A node that a program starts can be reached only through that program's settings.
        with hoplite.Node() as other:
            assert other.socket != ready["socket"]


@pytest.mark.parametrize("is_set", [False, True], ids=["variable", "argument"])
def test_local_waits_for_the_node_of_the_host(is_set: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses no other node, although a worker without this setting has one."""
    if not is_set:
        monkeypatch.setenv("HOPLITE_ADDRESS", "local")
    address = "local" if is_set else None
    with started("import os\nos.environ.pop('HOPLITE_ADDRESS', None)" + WORKER) as worker:
        assert line(worker)
        with pytest.raises(hoplite.ConnectError, match=r"no node served .*node\.sock within 0\.05 s: .*hoplite node"):
            hoplite.init(address, timeout=0.05)
        waiting = Later(hoplite.init, address, timeout=SOON)
        try:
            assert not waiting.done(within=0.2)
            with Node() as node, waiting.result() as client:
                assert client.status()["id"] == node.id
                assert client.node is None
        finally:
            hoplite.shutdown()
        output = cli("status", code=1, HOPLITE_ADDRESS="local").stderr
        assert f"node-embedded.sock (process {worker.pid}" in output
        go(worker)
        assert worker.wait(SOON) == 0


def test_local_is_not_the_embedded_node_of_this_process() -> None:
    run("""
import hoplite
with hoplite.init() as own, hoplite.Node() as node:
    assert own.node is not None
    with hoplite.init("local") as client:
        assert client.status()["id"] == node.id
""")


@pytest.mark.parametrize("attach", [hoplite.connect, hoplite.init])
def test_clients_wait_for_a_starting_node(attach: Callable[..., hoplite.Client], tmp_path: Path) -> None:
    path = tmp_path / "late.sock"
    with pytest.raises(hoplite.ConnectError, match=r"late\.sock within 0\.05 s"):
        attach(f"unix:{path}", timeout=0.05)
    for timeout in (SOON, None):
        waiting = Later(attach, f"unix:{path}", timeout=timeout)
        try:
            assert not waiting.done(within=0.2)
            with Node(socket=path) as node, waiting.result() as client:
                assert client.status()["id"] == node.id
        finally:
            hoplite.shutdown()


def test_slurm_jobs_are_isolated() -> None:
    """A name can be used in both jobs, and the end of one does not stop the node of the other.

    The names of these tests are short, because the paths of sockets contain them.
    """
    first, second = ({"SLURM_JOB_ID": job} for job in ("11", "12"))
    with started(f"import os\nos.environ.update({first})" + WORKER) as worker:
        identity, path = line(worker).split()
        assert Path(path).name == "node-slurm11-embedded.sock"
        assert run(PRINT_NODE, env=first).split() == [identity, "False"]
        for other in (second, {}, {"SLURM_JOB_ID": "../11"}):
            assert run(PRINT_NODE, env=other).split()[1] == "True"
        assert json.loads(cli("status", "--json", SLURM_JOB_ID="11").stdout)["id"] == identity
        # A process outside the job gets an error that names the socket.
        output = cli("status", code=1).stderr
        assert f"{path} (process {worker.pid}" in output
        go(worker)
        assert worker.wait(SOON) == 0


def test_slurm_jobs_use_their_node() -> None:
    job = {"SLURM_JOB_ID": "11"}
    with host_node() as (of_user, _):
        assert run(PRINT_NODE, env=job).split() == [of_user["id"], "False"]
        with host_node(job) as (of_job, _):
            assert Path(of_job["socket"]).name == "node-slurm11.sock"
            assert run(PRINT_NODE, env=job).split() == [of_job["id"], "False"]
            assert run(PRINT_NODE.replace("init()", 'init("local")'), env=job).split() == [of_job["id"], "False"]
            for other in ({"SLURM_JOB_ID": "12"}, {}):
                assert run(PRINT_NODE, env=other).split() == [of_user["id"], "False"]


def test_a_node_recreates_its_socket_after_its_folder_was_removed(tmp_path: Path) -> None:
    """As after a logout: later processes find the node, and do not start an empty one."""
    with host_node() as (ready, process), hoplite.connect(ready["socket"]) as client:
        ref = client.put(b"kept", name="kept/1")
        for removed in (Path(ready["socket"]), tmp_path / "hoplite"):
            if removed.is_dir():
                shutil.rmtree(removed)
            else:
                removed.unlink()
            eventually(lambda: sockets.is_served(ready["socket"]))
            assert (tmp_path / "hoplite").stat().st_mode & 0o777 == 0o700
            assert run(PRINT_NODE).split() == [ready["id"], "False"]
            with hoplite.init() as late:
                assert bytes(late.get(ref, timeout=SOON)) == b"kept"
        process.terminate()
        assert process.wait(SOON) == 0
    assert not Path(ready["socket"]).exists()


def test_a_node_reports_once_that_another_socket_took_its_path() -> None:
    with host_node() as (ready, process), socket.socket(socket.AF_UNIX) as other:
        path = Path(ready["socket"])
        path.unlink()
        other.bind(str(path))
        other.listen()
        assert process.stderr is not None
        output = process.stderr.readline()
        assert "ERROR" in output
        assert "the file of this node's socket was removed" in output
        assert str(path) in output
        process.terminate()
        rest = process.communicate(timeout=SOON)[1]
        assert "socket" not in rest
        assert path.exists()
        assert process.returncode == 0


def test_a_missing_runtime_folder_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that a process would have found may be running without its socket."""
    with tempfile.TemporaryDirectory(prefix="hoplite-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", f"{folder}/gone")
        script = f"""
import pathlib, warnings, hoplite
warnings.simplefilter("error")
hoplite.sockets.SHARED_FOLDER = pathlib.Path("{folder}")
"""
        run(f"""{script}
try:
    hoplite.init()
except hoplite.settings.SettingsWarning as warning:
    assert str(warning).startswith("XDG_RUNTIME_DIR is {folder}/gone, which does not exist: "), warning
else:
    raise AssertionError
""")
        run(f"{script}assert hoplite.init().node", env={"SLURM_JOB_ID": "11"})
        # The job has created the folder.
        with Node(socket=f"{folder}/hoplite-{os.getuid()}/node.sock"):
            run(f"{script}assert hoplite.init().node is None")
