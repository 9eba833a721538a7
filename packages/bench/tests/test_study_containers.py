"""Container set-ups of the study: what ranks share, how commands reach them, and that nothing is left."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from hoplite.errors import InvalidArgument
from hoplite_bench import processes
from hoplite_bench.containers import NAMES, bundle, container, leftovers, needs, opened
from hoplite_bench.containers.container import shared_folders
from hoplite_bench.hosts import Agents
from hoplite_bench.lab import namespaces
from hoplite_bench.systems.base import Unavailable
from labs import missing
from programs import line
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.hosts import Network

KINDS = ("net", "ipc", "pid", "mnt", "uts", "user")


def lacks(name: str) -> str:
    """What this machine lacks for a set-up; empty if nothing."""
    try:
        with opened(name, 1):
            return ""
    except Unavailable as error:
        return str(error)


def need(name: str) -> None:
    if reason := (missing() or lacks(name)):
        pytest.skip(reason)


def output(network: Network, host: str, command: str) -> str:
    """Runs a command on a host; returns its output."""
    return subprocess.run([network.rsh, host, command], check=True, capture_output=True, text=True, timeout=SOON).stdout


def spaces(network: Network, host: str) -> dict[str, int]:
    """The namespaces of commands on a host."""
    found = output(network, host, "stat --dereference --format %i " + " ".join(f"/proc/self/ns/{one}" for one in KINDS))
    return dict(zip(KINDS, map(int, found.split()), strict=True))


def own(path: str = "/proc/self/ns") -> dict[str, int]:
    """The namespaces of this process."""
    return {kind: Path(path, kind).stat().st_ino for kind in KINDS}


# For each set-up, the namespaces that differ from this machine's, and those that differ between two ranks.
OWN = {
    "bare": (set(), set()),
    "hpc": ({"mnt", "user"}, set()),
    "single": ({"net", "ipc", "pid", "mnt", "uts"}, set()),
    "cross": ({"net", "ipc", "pid", "mnt", "uts"}, {"net", "ipc", "pid", "mnt", "uts"}),
}


@pytest.mark.lab
@pytest.mark.parametrize("name", NAMES)
def test_ranks_share_what_the_set_up_says(name: str) -> None:
    need(name)
    with opened(name, 2) as network:
        first, second = spaces(network, "node0"), spaces(network, "node1")
        memory = [int(output(network, one.name, "stat --format %d /dev/shm")) for one in network.hosts]
        with Agents(network) as agents:
            assert len(agents.all({"do": "hello"})) == (2 if name == "cross" else 1)
            agents.all({"do": "folder", "group": "g", "path": str(network.rsh.parent / "g")})
            assert (network.rsh.parent / "g").is_dir()
        temporary = {output(network, host.name, "echo $TMPDIR; echo > $TMPDIR/file") for host in network.hosts}
        assert len(temporary) == (2 if name == "cross" else 1)
        assert all(Path(one.strip(), "file").parent.parent == network.rsh.parent for one in temporary)
    here = own()
    assert ({one for one in KINDS if first[one] != here[one]}, {one for one in KINDS if first[one] != second[one]}) == (
        OWN[name]
    )
    shared = os.stat("/dev/shm").st_dev  # noqa: PTH116 - like the command
    assert [one == shared for one in memory] == [name in ("bare", "hpc")] * 2
    assert (memory[0] == memory[1]) == (name != "cross")
    assert network.transports == "own"
    assert network.facts["container"] == name
    assert len({host.address for host in network.hosts}) == (2 if name == "cross" else 1)


@pytest.mark.lab
@pytest.mark.parametrize("name", NAMES)
def test_commands_have_stdin_environment_files_and_exit_status(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name)
    monkeypatch.setenv("STUDY_TEST", "with spaces; and 'quotes'")
    with tempfile.TemporaryDirectory() as folder, opened(name, 2) as network:
        command = f'read word; echo "$word $STUDY_TEST"; echo inside > {folder}/file; exit 7'
        done = subprocess.run(
            [network.rsh, "-x", "node1", command], input="hello\n", capture_output=True, text=True, timeout=SOON
        )
        assert (done.returncode, done.stdout, done.stderr) == (7, "hello with spaces; and 'quotes'\n", "")
        assert Path(folder, "file").read_text() == "inside\n"
        unknown = subprocess.run([network.rsh, "node9", "true"], capture_output=True, text=True, timeout=SOON)
        assert unknown.returncode == 255
        assert f"the container set-up {name} has no host node9: use one of node0 to node1" in unknown.stderr


@pytest.mark.lab
@pytest.mark.parametrize("name", ["hpc", "single"])
def test_temporary_files_and_the_cache_may_be_in_different_places(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name)
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as first,
        tempfile.TemporaryDirectory(dir="/tmp") as second,
    ):
        for temporary, cache in ((first, second), (second, first)):
            with monkeypatch.context() as patch:
                patch.setattr("tempfile.tempdir", temporary)
                patch.setenv("XDG_CACHE_HOME", cache)
                with opened(name, 1) as network:
                    output(network, "node0", f"echo inside > {temporary}/file; echo > {cache}/hoplite/bench/file")
            assert Path(temporary, "file").read_text() == "inside\n"
            assert Path(cache, "hoplite", "bench", "file").exists()


@pytest.mark.lab
def test_a_command_in_one_container_reaches_another() -> None:
    need("cross")
    with opened("cross", 2) as network:
        assert output(network, "node0", f"{network.rsh} node1 hostname; getent hosts node1").split() == [
            *("node1", "10.78.0.2", "node1")
        ]


@pytest.mark.lab
def test_a_command_ends_with_its_client() -> None:
    need("single")
    with opened("single", 1) as network:
        client = subprocess.Popen([network.rsh, "node0", "echo $$; exec sleep 3600"], stdout=subprocess.PIPE, text=True)
        with client:
            assert client.stdout is not None
            inside = int(client.stdout.readline())
            client.kill()
        eventually(lambda: subprocess.run([network.rsh, "node0", f"kill -0 {inside}"], stderr=-3).returncode != 0)


# Serves on a socket, and learns of the end of the first command and of its client at once, the command first.
AT_ONCE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("server", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
server = module.Server(sys.argv[2])
counts = iter((1, 2))
select = server.selector.select
def together():
    least = next(counts, 1)
    while len(found := select()) < least:
        pass
    return sorted(found, key=lambda one: one[0].data is not None)
server.selector.select = together
print("ready", flush=True)
server.serve(sys.stdin.fileno())
"""


def test_a_command_may_end_together_with_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A Unix socket's path has at most 107 bytes.
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", AT_ONCE, str(container.SERVER), "socket"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert line(server) == "ready"
            with socket.socket(socket.AF_UNIX) as client, tempfile.TemporaryFile() as silent:
                client.connect("socket")
                reader, writer = os.pipe()
                socket.send_fds(client, [b" "], [silent.fileno(), writer, silent.fileno()])
                os.close(writer)
                client.sendall(b'"echo $$; exec sleep 3600"\n')
                with os.fdopen(reader) as output:
                    os.kill(int(output.readline()), signal.SIGKILL)
            later = subprocess.run([sys.executable, str(container.CLIENT), "socket", "exit 7"], timeout=SOON)
            assert later.returncode == 7
            assert server.stdin is not None
            server.stdin.close()
            assert server.wait(SOON) == 0
        finally:
            server.kill()


# Opens a set-up, starts commands and detached processes in it, and waits to be ended.
OPEN = """
import subprocess, sys
from hoplite_bench.containers import opened
with opened(sys.argv[1], 2) as network:
    for host in network.hosts:
        subprocess.run([network.rsh, host.name, "setsid sleep 3600 >/dev/null 2>&1 </dev/null &"], check=True)
        client = subprocess.Popen([network.rsh, host.name, "sleep 3600 & echo; wait"], stdout=subprocess.PIPE)
        client.stdout.readline()
    print(network.rsh.parent, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def user(name: str) -> Iterator[tuple[subprocess.Popen[str], Path, set[psutil.Process]]]:
    """Runs a program that uses a set-up; yields it, the folder of its run, and all processes in its containers."""
    with subprocess.Popen(
        [sys.executable, "-c", OPEN, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        folder = Path(program.stdout.readline().strip())
        try:
            here = own()
            inside = set()
            for process in processes.all_ids():
                with contextlib.suppress(OSError, psutil.Error):
                    if own(f"/proc/{process}/ns")["mnt"] != here["mnt"] and str(folder) in mounts(process):
                        inside.add(psutil.Process(process))
            yield program, folder, inside
        finally:
            program.kill()


def mounts(process: int | str) -> str:
    return Path(f"/proc/{process}/mountinfo").read_text()


def control_groups(run: str) -> list[Path]:
    return [*leftovers.CONTROL_GROUPS.glob(f"{run}-*"), *leftovers.CONTROL_GROUPS.glob(f"*/{run}-*")]


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "end"), [("hpc", "killed"), ("single", "interrupted"), ("cross", "regular"), ("cross", "killed")]
)
def test_nothing_is_left(name: str, end: str) -> None:
    need(name)
    with user(name) as (program, folder, inside):
        assert sum(process.name() == "sleep" for process in inside) >= 2
        assert bool(control_groups(folder.name)) == (name != "hpc")
        if end == "regular":
            assert program.stdin is not None
            program.stdin.close()
        else:
            program.send_signal(signal.SIGINT if end == "interrupted" else signal.SIGKILL)
        code = program.wait(SOON)
        if end == "killed":
            eventually(lambda: not any(process.is_running() for process in inside))
            eventually(lambda: not control_groups(folder.name))
            # The next run removes the folder; it may be another one that starts meanwhile.
            with opened("bare", 1):
                assert not folder.exists()
        assert code == {"regular": 0, "interrupted": -signal.SIGINT, "killed": -signal.SIGKILL}[end]
        assert not any(process.is_running() for process in inside)
        assert control_groups(folder.name) == []
        assert not folder.exists()
        assert folder.name not in mounts("self")


@pytest.mark.lab
def test_leftovers_of_an_ended_owner_are_removed_and_others_stay() -> None:
    need("single")
    with subprocess.Popen(["sleep", "0"]) as ended:
        stale = f"{leftovers.PREFIX}-{ended.pid}-{namespaces.start_of(ended.pid) or 1}-0"
    owner = namespaces.start_of(os.getpid())
    living = f"{leftovers.PREFIX}-{os.getpid()}-{owner}-999"
    groups = [leftovers.CONTROL_GROUPS / "pids" / f"{run}-node0" for run in (stale, living)]
    if not groups[0].parent.exists():
        groups = [leftovers.CONTROL_GROUPS / one.name for one in groups]
    try:
        for run, group in zip((stale, living), groups, strict=True):
            leftovers.folder_of(run).mkdir()
            group.mkdir()
        with opened("single", 1):
            assert [leftovers.folder_of(run).exists() for run in (stale, living)] == [False, True]
            assert [group.exists() for group in groups] == [False, True]
    finally:
        leftovers.remove(living)
        leftovers.remove(stale)


@pytest.mark.lab
def test_a_runtime_that_fails_is_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("single")
    fake = tmp_path / "runc"
    real = shutil.which("runc")
    fake.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {real} "$@"\necho "permission denied" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(Unavailable, match=r"did not start with runc: permission denied; it needs .*--privileged"),
        opened("cross", 2),
    ):
        pass
    owner = f"{leftovers.PREFIX}-{os.getpid()}-"
    assert list(Path(tempfile.gettempdir()).glob(f"{owner}*")) == []


@pytest.mark.lab
def test_namespaces_without_permission_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("single")
    fake = tmp_path / "unshare"
    fake.write_text('#!/bin/sh\necho "unshare: unshare failed: Operation not permitted" >&2\nexit 1\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(Unavailable, match=r"Operation not permitted; it needs root with CAP_SYS_ADMIN"),
        opened("single", 1),
    ):
        pass


@pytest.mark.parametrize("name", ["hpc", "single", "cross"])
def test_a_missing_runtime_is_named_with_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite_bench.lab.needs.check", lambda: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    program, package = needs.RUNTIMES[name]
    expected = rf"'{name}' needs the command {program}: install it with `apt-get install {package}`"
    with pytest.raises(Unavailable, match=expected):
        needs.check(name)


def test_containers_without_root_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"the container set-up 'hpc' needs what a lab needs: .*run it with sudo"):
        needs.check("hpc")


def test_a_full_shared_memory_is_named_where_ranks_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite_bench.lab.needs.check", lambda: None)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(needs, "free_shared_memory", lambda: 1 << 20)
    for name in ("bare", "hpc"):
        with pytest.raises(Unavailable, match=r"/dev/shm has 1.* free, which is too little .*: delete files there"):
            needs.check(name)
    needs.check("single")
    needs.check("cross")


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("singel", 2, r"unknown container set-up 'singel' \(did you mean single\?\): choose from bare, hpc"),
        ("bare", 0, "of 0 ranks is not valid: set 1 to 16"),
        ("bare", 17, "of 17 ranks is not valid: set 1 to 16"),
    ],
)
def test_bad_arguments_are_named(name: str, ranks: int, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason), opened(name, ranks):
        pass


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(Unavailable, match=r"can't create .*: No such file or directory; set TMPDIR"), opened("bare", 1):
        pass


def test_a_folder_with_too_long_a_path_for_sockets_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    with pytest.raises(
        Unavailable, match=r"node0\.sock has \d+ bytes, but .* at most 107: set TMPDIR to a folder with"
    ):
        container.Container("runc", "name", "node0", folder)


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("name", "refused"), [("bare", "pathlib.Path.write_text"), ("single", "subprocess.Popen")])
def test_a_set_up_without_space_or_processes_is_unavailable_and_leaves_nothing(
    name: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "check", lambda _: None)
    monkeypatch.setattr(needs, "version_of", lambda _: "runc 1")
    monkeypatch.setattr(refused, refuse)
    with (
        pytest.raises(
            Unavailable, match=rf"can't create the container set-up '{name}': .*No space left on device; check"
        ),
        opened(name, 2),
    ):
        pass
    assert list(Path(tempfile.gettempdir()).glob(f"{leftovers.PREFIX}-{os.getpid()}-*")) == []


def test_an_error_of_the_user_of_a_set_up_is_not_changed() -> None:
    with pytest.raises(OSError, match="of the user"), opened("bare", 1):
        raise OSError("of the user")


def test_a_bundle_limits_neither_processes_nor_memory() -> None:
    facts = bundle.configuration(
        "name", "node0", ["program"], root="/root", binds=["/tmp"], environment={"A": "b"}, shm_bytes=1 << 30
    )
    assert "resources" not in facts["linux"]
    assert "rlimits" not in facts["process"]
    assert "CAP_SYS_PTRACE" not in facts["process"]["capabilities"]["effective"]
    assert facts["process"]["env"] == ["A=b"]
    (shared,) = [one for one in facts["mounts"] if one["destination"] == "/dev/shm"]
    assert f"size={1 << 30}" in shared["options"]
    assert {"destination": "/tmp", "type": "bind", "source": "/tmp", "options": ["rbind", "rw"]} in facts["mounts"]


def test_shared_folders_contain_temporary_files_and_the_cache_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert str(tmp_path) in shared_folders()
    assert str(tmp_path / "cache" / "hoplite" / "bench") not in shared_folders()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert {str(tmp_path / "cache"), str(tmp_path / "other" / "hoplite" / "bench")} <= set(shared_folders())
