"""Which node of its host a process uses: `hoplite node` before an embedded one, and those of its own job."""

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
from commands import run as command
from hoplite import Node, sockets
from programs import go, line, run, started
from support import SOON, Later, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TELL = 'import hoplite; hp = hoplite.init(); print(hp.status()["id"], hp.node is not None)'

# Says which node it uses and where that serves, and goes on until it is told to end.
WORKER = """
import hoplite
hp = hoplite.init()
print(hp.status()["id"], hp.node and hp.node.socket, flush=True)
input()
hoplite.shutdown()
"""


@contextlib.contextmanager
def host_node(env: Mapping[str, str] | None = None) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """`hoplite node` as a user starts it, ready: without a socket of its own."""
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


@pytest.mark.parametrize("is_said", [False, True], ids=["default", "given"])
def test_an_embedded_node_does_not_keep_hoplite_node_from_its_socket(
    is_said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a worker that was faster: the next ones use the host's node, which names the worker."""
    path = sockets.default_socket()
    if is_said:
        path = tmp_path / "own.sock"
        monkeypatch.setenv("HOPLITE_SOCKET", str(path))
    with started(WORKER) as worker:
        embedded, beside = line(worker).split()
        assert Path(beside) == path.with_name(f"{path.stem}-embedded.sock")
        assert run(TELL).split() == [embedded, "False"]
        assert json.loads(command("status", "--json").stdout)["id"] == embedded
        with host_node() as (ready, process):
            assert ready["socket"] == str(path)
            assert process.stderr is not None
            warning = process.stderr.readline()
            assert warning.startswith(f"warning: process {worker.pid} ({sys.executable} -c ")
            assert beside in warning
            assert "HOPLITE_ADDRESS=local" in warning
            assert run(TELL).split() == [ready["id"], "False"]
            assert json.loads(command("status", "--json").stdout)["id"] == ready["id"]
        go(worker)
        assert worker.wait(SOON) == 0
    assert not Path(beside).exists()


def test_a_second_node_of_the_host_does_not_start() -> None:
    with Node() as node:
        said = command("node", "--listen", "127.0.0.1:0", code=1).stderr
        assert f"process {os.getpid()} (" in said
        assert f"already serves the socket {node.socket}" in said
        assert "--socket" in said
    with host_node() as (ready, process):
        assert f"process {process.pid} (" in command("node", "--listen", "127.0.0.1:0", code=1).stderr
        own = sockets.runtime_dir() / "mine.sock"
        with hoplite.Node(socket=own):
            pass
        # A node that a program starts is reached by what the program knows.
        with hoplite.Node() as other:
            assert other.socket != ready["socket"]


@pytest.mark.parametrize("is_said", [False, True], ids=["variable", "argument"])
def test_local_waits_for_the_node_of_the_host(is_said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And uses no other, though a worker that was started otherwise has one."""
    if not is_said:
        monkeypatch.setenv("HOPLITE_ADDRESS", "local")
    address = "local" if is_said else None
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
        said = command("status", code=1, HOPLITE_ADDRESS="local").stderr
        assert f"node-embedded.sock (process {worker.pid}" in said
        go(worker)
        assert worker.wait(SOON) == 0


def test_local_is_not_the_node_that_this_process_has() -> None:
    run("""
import hoplite
with hoplite.init() as own, hoplite.Node() as node:
    assert own.node is not None
    with hoplite.init("local") as client:
        assert client.status()["id"] == node.id
""")


@pytest.mark.parametrize("attach", [hoplite.connect, hoplite.init])
def test_a_node_that_is_starting_is_waited_for(attach: Callable[..., hoplite.Client], tmp_path: Path) -> None:
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


def test_slurm_jobs_embed_apart() -> None:
    """Names of one are free in the other, and the end of one is no end of the other's node.

    The names of these tests are short: they are in the paths of sockets.
    """
    first, second = ({"SLURM_JOB_ID": job} for job in ("11", "12"))
    with started(f"import os\nos.environ.update({first})" + WORKER) as worker:
        identity, path = line(worker).split()
        assert Path(path).name == "node-slurm11-embedded.sock"
        assert run(TELL, env=first).split() == [identity, "False"]
        for other in (second, {}, {"SLURM_JOB_ID": "../11"}):
            assert run(TELL, env=other).split()[1] == "True"
        assert json.loads(command("status", "--json", SLURM_JOB_ID="11").stdout)["id"] == identity
        # Who looks from outside of the job is told where it is.
        said = command("status", code=1).stderr
        assert f"{path} (process {worker.pid}" in said
        go(worker)
        assert worker.wait(SOON) == 0


def test_slurm_jobs_use_their_node() -> None:
    job = {"SLURM_JOB_ID": "11"}
    with host_node() as (of_user, _):
        assert run(TELL, env=job).split() == [of_user["id"], "False"]
        with host_node(job) as (of_job, _):
            assert Path(of_job["socket"]).name == "node-slurm11.sock"
            assert run(TELL, env=job).split() == [of_job["id"], "False"]
            assert run(TELL.replace("init()", 'init("local")'), env=job).split() == [of_job["id"], "False"]
            for other in ({"SLURM_JOB_ID": "12"}, {}):
                assert run(TELL, env=other).split() == [of_user["id"], "False"]


def test_a_node_whose_runtime_folder_was_removed_makes_its_socket_again(tmp_path: Path) -> None:
    """As at a logout: who comes later finds the node, and not an empty one."""
    with host_node() as (ready, process), hoplite.connect(ready["socket"]) as client:
        ref = client.put(b"kept", name="kept/1")
        for removed in (Path(ready["socket"]), tmp_path / "hoplite"):
            if removed.is_dir():
                shutil.rmtree(removed)
            else:
                removed.unlink()
            eventually(lambda: sockets.is_served(ready["socket"]))
            assert (tmp_path / "hoplite").stat().st_mode & 0o777 == 0o700
            assert run(TELL).split() == [ready["id"], "False"]
            with hoplite.init() as late:
                assert bytes(late.get(ref, timeout=SOON)) == b"kept"
        process.terminate()
        assert process.wait(SOON) == 0
    assert not Path(ready["socket"]).exists()


def test_a_node_that_can_not_have_its_socket_again_reports_it_once_and_leaves_anothers_alone() -> None:
    with host_node() as (ready, process), socket.socket(socket.AF_UNIX) as other:
        path = Path(ready["socket"])
        path.unlink()
        other.bind(str(path))
        other.listen()
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "ERROR" in said
        assert "the file of this node's socket was removed" in said
        assert str(path) in said
        process.terminate()
        rest = process.communicate(timeout=SOON)[1]
        assert "socket" not in rest
        assert path.exists()
        assert process.returncode == 0


def test_no_runtime_folder_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node that a process would have found may go on without its socket."""
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
        # The job has made it.
        with Node(socket=f"{folder}/hoplite-{os.getuid()}/node.sock"):
            run(f"{script}assert hoplite.init().node is None")
