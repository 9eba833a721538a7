"""The core of the bench, with systems made for it: a failure becomes a row with its reason, and the run continues."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

import bench_ports
import support
from hoplite.errors import InvalidArgument
from hoplite.tools.channels import Channel, Lost, gather
from hoplite_bench import hosts, plan
from hoplite_bench.environments import Environments
from hoplite_bench.group import START_TIMEOUT_S, Group, GroupFailed
from hoplite_bench.hosts import AgentFailed, Agents, Network
from hoplite_bench.plan import Cell, Contender
from hoplite_bench.run import Runner
from hoplite_bench.systems import Host, Launch, System, Unavailable, Variant
from hoplite_bench.systems.base import RANKS, this_python
from hoplite_bench.systems.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hoplite_bench.row import Row

bench_ports.take()

# The behavior of a system of these tests in a round.
PROGRAM = """
import os, sys, time
sys.path.insert(0, {ranks!r})
from rank import Rank, arguments, serve

class Fake(Rank):
    def prepare(self, task):
        self.task = task
        return f"of {{task.rank}}"
    def run(self, task, tokens, at):
        assert tokens == [f"of {{rank}}" for rank in range(task.ranks)], tokens
        last = task.rank == task.ranks - 1
        if behaviour == "crash" and last:
            print("out of luck", flush=True)
            os._exit(3)
        if behaviour == "hang" and last:
            time.sleep(3600)
        if behaviour == "raise" and last:
            raise OSError("no route = to = host")
        time.sleep(0.002)
    def check(self, task):
        return "element 3 is off" if behaviour == "wrong" else ""
    def disturbed(self):
        return "refusals +1" if behaviour == "disturbed" and self.task.rank == 1 else ""

parser = arguments()
parser.add_argument("behaviour")
options = parser.parse_args()
behaviour = options.behaviour
serve(Fake(), control=options.control, number=options.rank, ranks=options.ranks, version="1.2 beta")
"""


class Fake(System):
    """A system whose ranks behave according to its name."""

    def __init__(self, name: str, program: Path) -> None:
        self.name = name
        self.program = program
        self.starts = 0

    def prepare(self, environments: object) -> None:  # noqa: ARG002
        if self.name == "unavailable":
            raise Unavailable("there is no wheel for this machine")

    def variants(self, op: str) -> list[Variant]:
        return [Variant(), Variant("forced")] if op == "reduce" else [Variant()]

    def start(self, launch: Launch, group: str) -> None:  # noqa: ARG002
        self.starts += 1
        command = [*this_python(), self.program] if self.name != "missing" else ["/nonexistent/mpirun"]
        for host in launch.hosts:
            launch.spawn(host, [*command, self.name, *launch.rank_options(host)])


# Inherited by all processes that these tests start: another test process may run some of them at the same time.
MARK = {"BENCH_TEST_RUN": str(os.getpid())}


@pytest.fixture(scope="module", autouse=True)
def _mark() -> Iterator[None]:
    os.environ |= MARK
    yield
    for name in MARK:
        del os.environ[name]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """Two hosts that are both this machine, with one clock."""
    rsh = tmp_path_factory.mktemp("rsh") / "rsh"
    rsh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    rsh.chmod(rsh.stat().st_mode | stat.S_IXUSR)
    pair = [Host(0, "one", "127.0.0.1"), Host(1, "two", "127.0.0.2")]
    return Network(pair, rsh, "127.0.0.1", shared_clock=True, cidr="", rate=0, facts={"kind": "lab", "rate": 10**9})


@pytest.fixture(scope="module")
def agents(network: Network) -> Iterator[Agents]:
    # Both agents are on one network here, so each sees the other's processes; one suffices.
    with Agents(network) as agents:
        yield agents


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(PROGRAM.format(ranks=str(RANKS)))
    return path


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "PATIENCE_S", 1.0)


def measure(network: Network, agents: Agents, systems: list[System], cells: list[Cell], repeats: int = 2) -> list[Row]:
    runner = Runner(
        network, agents, systems, repeats=repeats, environments=Environments(install=False), notify=lambda _: None
    )
    runner.prepare()
    try:
        return [row for cell in cells for row in runner.measure(cell)]
    finally:
        runner.close()


def test_a_row_notes_disturbed_ranks(network: Network, agents: Agents, program: Path) -> None:
    rows = measure(network, agents, [Fake("disturbed", program), Fake("good", program)], [Cell("broadcast", 1024)])
    assert [row.note for row in rows] == ["DISTURBED WITHOUT A FAULT: disturbed's rank 1: refusals +1", ""]
    assert all(row.samples for row in rows)


def test_who_sums_one_array_of_a_host_has_no_row_of_several(network: Network, agents: Agents, program: Path) -> None:
    cells = plan.cells(["reduce"], [1024], [0.0], [1, 2])
    rows = measure(network, agents, [Wire(), Fake("good", program)], cells)
    assert [(row.system, row.inputs) for row in rows] == [("wire", 1), ("good", 1), ("good", 1), ("wire", 2)]
    assert [row.what for row in rows] == ["reduce", "reduce", "reduce", "reduce of 2 each"]


def test_the_wire_and_a_system_are_measured_and_compared(network: Network, agents: Agents, program: Path) -> None:
    fake = Fake("good", program)
    rows = measure(network, agents, [Wire(), fake], [Cell("broadcast", 2**20), Cell("reduce", 1024)])
    assert [(row.system, row.variant, row.op) for row in rows] == [
        ("wire", "stream", "broadcast"),
        ("good", "default", "broadcast"),
        ("wire", "stream", "reduce"),
        ("good", "default", "reduce"),
        ("good", "forced", "reduce"),
    ]
    for row in rows:
        assert (row.verified, row.note, len(row.samples), row.hosts) == (True, "", 2, 2)
        assert row.seconds is not None
        assert row.wire_ratio is not None
    wire, good = rows[:2]
    assert wire.wire_ratio == 1.0
    assert good.seconds is not None
    assert good.seconds["min"] >= 0.002
    assert good.version == "1.2 beta"
    assert good.cpu_seconds is not None
    assert good.peak_rss_bytes is not None
    assert good.peak_rss_bytes > 2**20
    assert fake.starts == 1


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crash", "crash's rank 1 has hung up; a process exited with status 3; its last line: 'out of luck'"),
        ("hang", "no answer within .* s from hang's rank 1"),
        ("raise", "raise's rank 1 failed: OSError: no route = to = host"),
        ("wrong", "wrong result: wrong's rank 0: element 3 is off"),
        ("missing", "the request 'spawn' failed on one: FileNotFoundError: .*/nonexistent/mpirun"),
        ("unavailable", "there is no wheel for this machine"),
    ],
)
def test_what_a_broken_system_does_is_its_row_and_the_rest_goes_on(
    network: Network, agents: Agents, program: Path, behaviour: str, reason: str
) -> None:
    rows = measure(network, agents, [Wire(), Fake(behaviour, program), Fake("good", program)], [Cell("gather", 4096)])
    wire, broken, good = rows
    assert (wire.verified, good.verified, broken.verified) == (True, True, False)
    assert (broken.samples, broken.seconds, broken.wire_ratio) == ([], None, None)
    assert re.search(reason, broken.note), broken.note
    assert marked() == []


def test_a_system_that_always_fails_is_given_up(network: Network, agents: Agents, program: Path) -> None:
    crash = Fake("crash", program)
    rows = measure(network, agents, [crash], [Cell("gather", 4 * size) for size in range(1, 8)], repeats=1)
    assert crash.starts == 4
    assert rows[-1].note.startswith("failed in 4 earlier cells, most recently: crash's rank 1 has hung up")


def test_a_cell_that_does_not_fit_notes_the_memory_that_it_needs(
    network: Network, agents: Agents, program: Path
) -> None:
    (row,) = measure(network, agents, [Fake("good", program)], [Cell("allreduce", 2**40)])
    assert row.note.startswith("does not fit: needs about 4096.0 GiB, but ")


def test_a_group_that_is_not_measured_does_not_run(network: Network, agents: Agents, program: Path) -> None:
    group = Group(Fake("good", program), "default", network, agents, 2**20)
    group.start()
    try:
        group.freeze()
        states = {process.status() for process in marked()}
        assert states == {psutil.STATUS_STOPPED}
        group.thaw()
        assert group.round("reduce", 4, variant="default", seed=1, timeout_s=20, weigh=False).seconds > 0
    finally:
        group.stop()
    assert marked() == []


def test_late_participants_count_from_the_last_call(network: Network, agents: Agents, program: Path) -> None:
    group = Group(Fake("good", program), "default", network, agents, 2**20)
    group.start()
    try:
        began = time.monotonic()
        late = group.round("reduce", 4, variant="default", seed=1, arrival_s=0.5, timeout_s=20, weigh=False)
        # The second rank called half a second after the first; that half second does not count.
        assert late.seconds <= time.monotonic() - began - 0.5
    finally:
        group.stop()


def test_hosts_without_a_common_clock_are_timed_by_the_bench(network: Network, agents: Agents, program: Path) -> None:
    far = replace(network, shared_clock=False)
    group = Group(Fake("good", program), "default", far, agents, 2**20)
    group.start()
    try:
        began = time.monotonic()
        late = group.round("reduce", 4, variant="default", seed=1, arrival_s=0.5, timeout_s=20, weigh=False)
        # The second rank slept half a second, which does not count, and then 2 ms, which count.
        assert 0.002 <= late.seconds <= time.monotonic() - began - 0.5
        began = time.monotonic()
        trip = group.round("rtt", 4, variant="default", seed=1, arrival_s=0.5, timeout_s=20, weigh=False)
        assert 0.002 <= trip.seconds <= time.monotonic() - began - 0.5
    finally:
        group.stop()


def test_a_group_that_was_ended_does_no_round(network: Network, agents: Agents, program: Path) -> None:
    group = Group(Fake("good", program), "default", network, agents, 2**20)
    group.start()
    group.stop()
    with pytest.raises(GroupFailed):
        group.round("reduce", 4, variant="default", seed=1, timeout_s=5, weigh=False)


def test_ranks_that_never_come_are_named_by_number(
    network: Network, agents: Agents, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hoplite_bench.group.START_TIMEOUT_S", 1.0)
    program.write_text("import time; time.sleep(3600)")
    with pytest.raises(GroupFailed, match="0 of 2 ranks connected within 1 s"):
        Group(Fake("good", program), "default", network, agents, 2**20).start()
    assert START_TIMEOUT_S > 1
    assert marked() == []


def test_agents_end_what_they_started_when_the_bench_is_killed(network: Network, program: Path, tmp_path: Path) -> None:
    script = tmp_path / "bench.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(support.__file__).parent)]!r}
        from test_bench_run import Agents, Fake, Group, Host, Network
        pair = [Host(0, "one", "127.0.0.1"), Host(1, "two", "127.0.0.2")]
        place = Network(pair, Path({str(network.rsh)!r}), "", shared_clock=True, cidr="", rate=0, facts={{}})
        with Agents(place) as agents:
            group = Group(Fake("good", Path({str(program)!r})), "default", place, agents, 2**20)
            group.start()
            group.freeze()
            print("up", flush=True)
            sys.stdin.read()
        """)
    )
    with subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "up\n"
        assert len(marked()) == 2
        bench.send_signal(signal.SIGKILL)
    psutil.wait_procs(marked(), timeout=20)
    assert marked() == []


def test_an_agent_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    rsh = tmp_path / "rsh"
    rsh.write_text("#!/bin/sh\nexit 255\n")
    rsh.chmod(0o755)
    place = Network([Host(0, "a", "127.0.0.1")], rsh, "", shared_clock=True, cidr="", rate=0, facts={})
    with pytest.raises(AgentFailed, match="a has hung up"):
        Agents(place)


def marked() -> list[psutil.Process]:
    """The running processes of the groups of these tests."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if MARK.items() <= environment.items() and "_HOPLITE_BENCH_GROUP" in environment:
                found.append(process)
    return found


def test_turns_come_in_another_order_each_time_and_the_same_from_the_same_seed() -> None:
    who = [Contender(name, "default", "default") for name in "abcdef"]
    order = [one.system for one in plan.turns(who, 4, seed=7)]
    assert order == [one.system for one in plan.turns(who, 4, seed=7)]
    repeats = ["".join(order[at : at + 6]) for at in range(0, 24, 6)]
    assert {"".join(sorted(repeat)) for repeat in repeats} == {"abcdef"}
    assert len(set(repeats)) == 4
    assert list(plan.turns([], 3, seed=1)) == []


def test_cells_come_small_ones_first_and_bad_ones_are_named() -> None:
    assert [str(cell) for cell in plan.cells(["rtt", "reduce"], [1024, 4], [0.0])] == [
        "rtt of 4 bytes",
        "reduce of 4 bytes",
        "rtt of 1024 bytes",
        "reduce of 1024 bytes",
    ]
    assert str(Cell("reduce", 4, 0.1)) == "reduce of 4 bytes arriving every 0.1 s"
    several = plan.cells(["broadcast", "reduce"], [4], [0.0], [2, 1])
    assert [str(cell) for cell in several] == [
        "broadcast of 4 bytes",
        "reduce of 4 bytes",
        "reduce of 4 bytes, 2 inputs per host",
    ]
    for bad, message in (
        ((["bcast"], [4], [0.0]), "unknown operation 'bcast'"),
        ((["rtt"], [6], [0.0]), "6 bytes are not an array of float32"),
        ((["rtt"], [4], [-1.0]), "an arrival interval of -1.0 s"),
        ((["reduce"], [4], [0.0], [9]), "9 inputs per host are out of range: set 1 to 8"),
        ((["rtt"], [4], [0.0], [2]), "several inputs per host apply to sums, not to rtt: add reduce or allreduce"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            plan.cells(*bad)


def test_small_cells_have_more_rounds_and_every_step_a_deadline() -> None:
    assert [Cell("rtt", size).rounds(1e-4) for size in (4, 2**16, 2**20, 2**25)] == [15, 15, 5, 1]
    assert [Cell("rtt", 4).rounds(seconds) for seconds in (0.0, 0.005, 0.02, 2.0)] == [15, 10, 3, 3]
    assert [Cell("rtt", 2**25).rounds(seconds) for seconds in (0.0, 2.0)] == [1, 1]
    # The slowest peer, on 8 hosts at 1 Gbit/s, takes 15 wire times for 32 MiB: 4 s.
    assert plan.step_timeout_s(Cell("allreduce", 2**25), 8, 10**9) > 8


def test_lines_are_gathered_from_many_and_the_silent_are_named() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    try:
        channels = [Channel(f"rank {number}", end.fileno(), end.fileno()) for number, (end, _) in enumerate(pairs)]
        for number, (_, other) in enumerate(pairs):
            other.sendall(f"line {number}\nsecond".encode())
        assert gather(channels, 5) == ["line 0", "line 1", "line 2"]
        pairs[1][1].sendall(b" one\n")
        with pytest.raises(Lost, match=r"no answer within 0 s from rank 0, rank 2"):
            gather(channels, 0.05)
        pairs[2][1].close()
        with pytest.raises(Lost, match="rank 2 has hung up"):
            gather(channels, 5)
        with pytest.raises(Lost, match="rank 2 has hung up"):
            channels[2].send("anybody?")
    finally:
        for pair in pairs:
            for end in pair:
                end.close()


def test_hosts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the cluster\nlocalhost 127.0.0.5 eth1 # rack one\n\n127.0.0.6\n")
    network = hosts.of_file(path, rsh="true", rate=10**10)
    assert [(host.number, host.name, host.address, host.interface) for host in network.hosts] == [
        (0, "localhost", "127.0.0.5", "eth1"),
        (1, "127.0.0.6", "127.0.0.6", ""),
    ]
    assert not network.shared_clock
    for text, message in (
        ("localhost\n", "lists 1 hosts"),
        ("a b c d\n", r":1: 'a b c d' is malformed: write name \[address \[interface\]\]"),
        ("localhost no.such.host.invalid\n", ":1: can't resolve the address of 'localhost'"),
    ):
        path.write_text(text)
        with pytest.raises(InvalidArgument, match=message):
            hosts.of_file(path, rsh="true")
    with pytest.raises(InvalidArgument, match="the remote shell 'no-such-shell' was not found"):
        hosts.of_file(path, rsh="no-such-shell")


def test_the_error_of_an_unavailable_environment_has_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="omit --no-install to install it"):
        Environments(tmp_path, install=False).python("none", ["numpy==2.4.6"])
