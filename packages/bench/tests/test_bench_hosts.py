"""The bench on hosts without a shared clock: how they are reached, what their agents do, and what is measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest

import bench_ports
import host_names
from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench import agent as agent_module
from hoplite_bench import hosts, machine, plan, session
from hoplite_bench.agent import GROUP_VARIABLE, MARK, Agent
from hoplite_bench.environments import Environments
from hoplite_bench.hosts import AgentFailed, Agents, Network
from hoplite_bench.places import python_path
from hoplite_bench.results import Results
from hoplite_bench.systems import OPS, Host
from hoplite_bench.systems.base import this_python
from support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

bench_ports.take()

PYTHON_PATH = python_path()
# Prints a line, and then waits to be ended.
UP = "import sys, time; print('up', flush=True); time.sleep(3600)"


def reach(folder: Path, script: str = "") -> Path:
    """A command like ssh that reaches this machine by any name; `script` is what a login shell there runs first."""
    rsh = folder / "rsh"
    rsh.write_text(f'#!/bin/sh\nname=$1\nshift\n{script}\nexec sh -c "$*"\n')
    rsh.chmod(0o755)
    return rsh


def named(rsh: Path, *names: str, shared_clock: bool = True) -> Network:
    pair = [Host(number, name, f"127.0.0.{number + 1}") for number, name in enumerate(names)]
    return Network(pair, rsh, "127.0.0.1", shared_clock=shared_clock, cidr="", rate=0, facts={"kind": "hosts"})


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """An agent in this process."""
    (tmp_path / "logs").mkdir()
    agent = Agent(tmp_path / "logs")
    yield agent
    agent.close()


def start(agent: Agent, group: str, code: str, *words: str) -> psutil.Process:
    """Starts a Python program of a group, and waits for its first output."""
    pid = agent.spawn(group, [sys.executable, "-u", "-c", code, *words], {})["pid"]
    log = agent.started[group][-1][1]
    eventually(lambda: log.read_text() != "")
    return psutil.Process(pid)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder with a short path: a Unix socket's has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


# Maps two files of shared memory that it creates, and waits to be ended.
SEGMENTS = """
import mmap, os, sys, time
for name in sys.argv[1:]:
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.truncate(file, 4096)
    globals()[name] = mmap.mmap(file, 4096)
print('up', flush=True)
time.sleep(3600)
"""


def test_shared_memory_of_killed_processes_is_removed_unless_others_use_it(agent: Agent) -> None:
    names = [f"/dev/shm/hoplite-bench-test-{os.getpid()}-{kind}" for kind in ("own", "shared")]
    try:
        start(agent, "first", SEGMENTS, *names)
        start(agent, "second", SEGMENTS, names[1])
        agent.kill("first")
        assert [Path(name).exists() for name in names] == [False, True]
        agent.kill("second")
        assert not Path(names[1]).exists()
    finally:
        for name in names:
            Path(name).unlink(missing_ok=True)


# Maps a file for reading and writing, and another one like a library; waits to be ended.
MAPPED = """
import mmap, os, sys, time
found, library = (os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in sys.argv[1:])
os.truncate(library, 4096)
maps = [mmap.mmap(found, 4096), mmap.mmap(library, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)]
print('up', flush=True)
time.sleep(3600)
"""


def test_files_in_shared_memory_that_a_group_found_or_only_read_stay(agent: Agent) -> None:
    found, library = (Path(f"/dev/shm/hoplite-bench-test-{os.getpid()}-{kind}") for kind in ("found", "library"))
    try:
        found.write_bytes(bytes(4096))
        clock = agent_module.CLOCK_REALTIME_COARSE
        eventually(lambda: time.clock_gettime_ns(clock) > found.stat().st_ctime_ns)
        start(agent, "first", MAPPED, str(found), str(library))
        agent.kill("first")
        assert [found.exists(), library.exists()] == [True, True]
    finally:
        found.unlink(missing_ok=True)
        library.unlink(missing_ok=True)


def test_hosts_of_a_file_are_measured_and_nothing_is_left(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    file = tmp_path / "hosts"
    file.write_text("one 127.0.0.1\ntwo 127.0.0.2\n")
    network = hosts.of_file(file, rsh=str(reach(tmp_path, "echo welcome; printf 'to '")))
    settings = session.Settings(["hoplite"], plan.cells(OPS, [4, 2**20], [0.0]), 1)
    rows = session.measure(network, settings, Results(tmp_path / "rows.jsonl"))
    assert {row.system for row in rows} == {"wire", "hoplite"}
    assert {row.op for row in rows if row.system == "hoplite"} == set(OPS)
    assert [row.note for row in rows if not row.verified] == []
    assert {row.machine["kernel"] for row in rows} == {os.uname().release}
    assert {row.build for row in rows} == {machine.build()}
    assert not any("others" in row.machine for row in rows)
    assert list(temporary.iterdir()) == []
    weighed = [row for row in rows if row.bytes == 2**20 and row.system == "hoplite"]
    assert all(row.cpu_seconds is not None and row.cpu_seconds > 0 for row in weighed)
    assert all(row.peak_rss_bytes is not None and row.peak_rss_bytes > 2**20 for row in weighed)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(tmp_path: Path) -> None:
    with Agents(named(reach(tmp_path), "one")) as agents:
        # While stopped, it does not reply.
        process = agents._processes[0]
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(AgentFailed, match=r"the request 'hello' failed: no answer within 0 s from one"):
            agents.all({"do": "hello"}, timeout_s=0.05)
        process.send_signal(signal.SIGCONT)
        assert agents.all({"do": "exited", "group": "none"}) == [{"exited": []}]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", r"output of one: 'Permission denied \(publickey\)\.'"),
        ("exit 255", "one has hung up.*; check that .* HOST` works, and install hoplite-bench .* interpreter .*python"),
        (
            """echo 'raise ModuleNotFoundError("no psutil")' > {folder}/psutil.py
            set -- "$(echo "$*" | sed s,PYTHONPATH=,PYTHONPATH={folder}:,)" """,
            "no psutil.*install hoplite-bench",
        ),
    ],
)
def test_the_error_of_an_unreachable_host_has_the_reason(tmp_path: Path, script: str, reason: str) -> None:
    with pytest.raises(AgentFailed, match=reason):
        Agents(named(reach(tmp_path, script.replace("{folder}", str(tmp_path))), "one"))


def told(monkeypatch: pytest.MonkeyPatch, *machines: dict[str, Any]) -> None:
    """Makes the agents report these machines."""
    asked = Agents.all

    def answer(self: Agents, request: dict[str, Any], *, timeout_s: float = 30.0) -> list[dict[str, Any]]:
        here = asked(self, request, timeout_s=timeout_s)
        if request["do"] != "machine":
            return here
        pairs = zip(here, machines, strict=True)
        return [
            {"facts": one["facts"] | new.get("facts", {}), "build": new.get("build", "release")} for one, new in pairs
        ]

    monkeypatch.setattr(Agents, "all", answer)


def test_other_machines_are_in_the_row_and_another_hoplite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = named(reach(tmp_path), "one", "two", shared_clock=False)
    with monkeypatch.context() as patch:
        told(patch, {"facts": {"cores": 4}}, {"facts": {"cores": 64, "kernel": "7.1"}})
        with Agents(network) as agents:
            assert agents.machine["cores"] == 4
            assert agents.machine["others"] == "two has cores 64, kernel 7.1"
    with monkeypatch.context() as patch:
        told(patch, {}, {"facts": {"version": "0.0.1"}})
        with pytest.raises(AgentFailed, match=r"two has hoplite 0\.0\.1, this machine has "):
            Agents(network)
    with monkeypatch.context() as patch:
        told(patch, {}, {"build": "debug"})
        with pytest.raises(AgentFailed, match="two has a debug build"):
            Agents(network)


def test_systems_are_installed_in_the_same_folder_on_all_hosts(tmp_path: Path) -> None:
    root = tmp_path / "environments"
    with Agents(named(reach(tmp_path), "one", "two", shared_clock=False)) as agents:
        assert agents.prepare("wire", Environments(root, install=False)) == ""
        reason = agents.prepare("dask", Environments(root, install=False))
    assert reason.startswith(f"one: dask is not installed in {root}/dask-python")
    assert reason.endswith(": omit --no-install to install it")


def test_what_an_agent_starts_has_the_python_path_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The bench's NumPy would hide that of a system's own environment.
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    network = named(reach(tmp_path), "one")
    says = "import os; open({!r}, 'w').write(os.environ.get('PYTHONPATH', 'none'))"
    with Agents(network) as agents:
        for name, python in (("plain", [sys.executable]), ("this", this_python())):
            said = tmp_path / name
            argv = [*python, "-c", says.format(str(said))]
            agents.one(network.hosts[0], {"do": "spawn", "group": "g", "argv": argv, "env": {}})
            eventually(lambda said=said: said.exists() and said.read_text() != "")  # type: ignore[misc]
        assert (tmp_path / "plain").read_text() == "none"
        assert (tmp_path / "this").read_text() == PYTHON_PATH


def test_a_group_has_a_folder_until_it_is_killed(agent: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "group"
    for _ in range(2):
        # Hosts that share files create it concurrently.
        agent.answer({"do": "folder", "group": "g", "path": str(folder)})
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "0").mkdir()
    (folder / "0" / "left.log").write_text("of a process")
    agent.kill("g")
    assert not folder.exists()


def test_logs_of_groups_that_come_and_go_are_not_mixed(agent: Agent) -> None:
    start(agent, "first", UP)
    start(agent, "second", UP)
    agent.kill("first")
    start(agent, "third", UP)
    logs = [log for started in agent.started.values() for _, log in started]
    assert len(set(logs)) == 2
    assert all(log.exists() for log in logs)


def test_what_starts_while_a_group_is_frozen_is_frozen_too(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    # A process is started between a look and its signals: here after each of the first looks.
    started = [start(agent, "g", UP)]
    looked = agent.look

    def look(group: str) -> None:
        looked(group)
        if len(started) < 3:
            started.append(start(agent, "g", UP))

    monkeypatch.setattr(agent, "look", look)
    agent.freeze("g")
    assert len(started) == 3
    assert {process.status() for process in started} == {psutil.STATUS_STOPPED}


def test_what_does_not_stop_is_named(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(agent, "g", UP)
    monkeypatch.setattr(agent_module, "FREEZE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(agent, "signal", lambda *_: None)
    with pytest.raises(TimeoutError, match=rf"processes \[{process.pid}\] did not stop"):
        agent.freeze("g")
    monkeypatch.undo()


# Waits until the given file exists, works for a while in a thread that ends, and prints a line.
WORKS = """
import pathlib, sys, threading, time
print("up", flush=True)
go = pathlib.Path(sys.argv[1])
while not go.exists():
    time.sleep(0.005)
def work():
    while time.thread_time() < 0.2:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
print("done", flush=True)
time.sleep(3600)
"""


def test_a_process_that_ends_while_it_is_looked_at_is_gone(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.spawn("g", [sys.executable, "-c", UP], {})
    status = psutil.Process.status

    def ends(process: psutil.Process) -> str:
        for popen, _ in agent.started["g"]:
            popen.kill()
            popen.wait()
        return str(status(process))

    monkeypatch.setattr(psutil.Process, "status", ends)
    assert agent.kill("g") == {}


def test_processor_time_has_threads_that_ended_and_is_never_negative(agent: Agent, tmp_path: Path) -> None:
    works = start(agent, "g", WORKS, str(tmp_path / "go"))
    ends = start(agent, "g", UP)
    agent.look("g")
    assert agent.begin("g") == {"cpu_seconds": 0.0, "peak_rss_bytes": 0}
    (tmp_path / "go").touch()
    log = agent.started["g"][0][1]
    eventually(lambda: "done" in log.read_text())
    both = agent.usage("g")
    assert both["cpu_seconds"] >= 0.2
    for process in (ends, works):
        process.kill()
        process.wait(20)
    assert agent.usage("g") == {"cpu_seconds": 0.0, "peak_rss_bytes": 0}


# Allocates 64 MiB that it shares with its children, each of which reads all of it.
SHARES = """
import mmap, os, sys, time
memory = mmap.mmap(-1, 64 << 20)
memory.write(b"x" * len(memory))
ready, notify = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        assert memory[:].count(b"x") == len(memory)
        os.write(notify, b".")
        time.sleep(3600)
told = b""
while len(told) < 3:
    told += os.read(ready, 3)
print("up", flush=True)
time.sleep(3600)
"""


def test_memory_that_processes_share_counts_once(agent: Agent) -> None:
    start(agent, "g", SHARES)
    agent.look("g")
    assert len(agent.members["g"]) == 4
    agent.begin("g")
    # Private memory is about 10 MiB per process; the 64 MiB counted for all four would be 256 MiB.
    assert 64 << 20 < agent.usage("g")["peak_rss_bytes"] < 160 << 20


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, None])
def test_an_agent_that_is_ended_ends_what_it_started(tmp_path: Path, how: signal.Signals | None) -> None:
    folder = tmp_path / "group"
    group = f"of-{os.getpid()}"
    command = [sys.executable, "-m", "hoplite_bench.agent"]
    requests = [
        {"do": "folder", "group": group, "path": str(folder), "number": 0},
        {"do": "spawn", "group": group, "argv": [sys.executable, "-c", UP], "env": {}, "number": 1},
    ]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "TMPDIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        for request in requests:
            agent.stdin.write(json.dumps(request) + "\n")
        agent.stdin.flush()
        answers = [agent.stdout.readline() for _ in range(3)]
        assert answers[:2] == ["\n", f"{MARK} 0 {{}}\n"]
        started = psutil.Process(json.loads(answers[2].removeprefix(f"{MARK} 1 "))["pid"])
        # A process that has not begun its program yet has the environment of its parent.
        eventually(lambda: started.environ().get(GROUP_VARIABLE) == group)
        if how is None:
            agent.stdin.close()
        else:
            agent.send_signal(how)
        agent.wait(20)
        assert agent.returncode == (0 if how is None else 128 + how)
    with contextlib.suppress(psutil.NoSuchProcess):
        started.wait(20)
    assert not started.is_running()
    assert list(tmp_path.iterdir()) == []


def written(folder: Path, *lines: str) -> Path:
    path = folder / "hosts"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a 127.0.1.1", "b 192.0.2.7"],
            r"a resolves to the loopback address 127\.0\.1\.1 on this machine, .* write its",
        ),
        (["a 127.0.0.1", "a 127.0.0.2"], r":2: a at 127\.0\.0\.2 is a duplicate of a at 127\.0\.0\.1"),
        (["a 127.0.0.1", "b 127.0.0.1"], r":2: b at 127\.0\.0\.1 is a duplicate of a at 127\.0\.0\.1"),
    ],
)
def test_hosts_that_cannot_reach_each_other_are_refused(tmp_path: Path, lines: Sequence[str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        hosts.of_file(written(tmp_path, *lines), rsh="true")


def test_ranks_connect_where_the_first_other_machine_reaches_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"10.0.0.1": "10.0.0.1", "10.0.0.2": "10.0.0.1", "172.16.0.9": "172.16.0.1"}

    class Probe:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def connect(self, where: tuple[str, int]) -> None:
            if where[0] not in ways:
                raise OSError(101, "Network is unreachable")
            self.way = ways[where[0]]

        def getsockname(self) -> tuple[str, int]:
            return self.way, 0

    monkeypatch.setattr("hoplite_bench.hosts.socket.socket", Probe)
    there = written(tmp_path, "a 10.0.0.1", "b 10.0.0.2", "c 172.16.0.9")
    assert hosts.of_file(there, rsh="true").control == "10.0.0.1"
    assert hosts.of_file(written(tmp_path, "c 172.16.0.9", "a 10.0.0.1"), rsh="true").control == "172.16.0.1"
    with pytest.raises(InvalidArgument, match=r"no route to d at 192\.0\.2\.1: Network is unreachable"):
        hosts.of_file(written(tmp_path, "d 192.0.2.1", "a 10.0.0.1"), rsh="true")


def test_a_debug_build_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.__build__", "debug")
    with pytest.raises(HopliteError, match="make build"):
        machine.refuse_debug_build()


@pytest.mark.parametrize("name", host_names.ONE_WORD, ids=ascii)
def test_a_file_of_hosts_has_names_of_hosts(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"{name} 127.0.0.1\nother 127.0.0.2\n")
    with pytest.raises(InvalidArgument, match=r"host|name|address") as told:
        hosts.of_file(path, rsh="sh")
    assert str(told.value).isprintable()


@pytest.mark.parametrize("line", ["h0 -oProxyCommand=x", "h0 127.0.0.1 eth0,eth1", "h0 127.0.0.1 --mca"])
def test_other_words_of_a_line_are_looked_at_too(tmp_path: Path, line: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"{line}\nother 127.0.0.2\n")
    with pytest.raises(InvalidArgument, match=r"is not a network interface|not the name or address"):
        hosts.of_file(path, rsh="sh")
