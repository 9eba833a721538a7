"""`hoplite topology probe`: echoes, groups and rates; hosts that are lost, silent, late, or the same machine."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any, Self

import pytest

from commands import COMMAND
from hoplite.topology import FORMAT
from hoplite_topology import (
    _native,
    chart,
    contention,
    heat,
    hosts,
    layout,
    planning,
    probe_agent,
    probing,
    problem,
    samples,
    surveyed,
    tournament,
)
from hoplite_topology.reach import Site
from in_process import run
from labs import needs_lab
from support import SOON, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

KEYS = {"format", "hosts", "uplinks", "nic", "times_us", "quantiles_us", "lost", "measured", "quality", "clusters"}
# A replacement for ssh: a shell on this machine, which gets the host's name.
LAUNCH = f'env NAME={{host}} {sys.executable} -c \'import os, sys; os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])\''


class Responder:
    """An echo socket whose replies are computed by a function.

    Args:
        answer: maps an echo to the datagrams to send back.
    """

    def __init__(self, answer: Callable[[bytes], list[bytes]]) -> None:
        self._answer = answer
        self._end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._end.bind(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._end.getsockname()
        self.words: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", self.address)
        self._thread.join(SOON)
        self._end.close()

    def _run(self) -> None:
        while True:
            word, sender = self._end.recvfrom(64)
            if word == b"end":
                return
            self.words.append(word)
            for answer in self._answer(word):
                self._end.sendto(answer, sender)


@pytest.fixture
def asker() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.bind(("127.0.0.1", 0))
        yield asker


def echo(word: bytes) -> bytes:
    return word + probe_agent.ANSWERED


def test_an_echo_is_random_bytes_of_each_call_and_a_number(
    asker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_agent, "PATIENCE_S_MIN", SOON)
    with Responder(lambda word: [echo(word)]) as responder:
        for _ in range(2):
            times, late = probe_agent.ask(asker, responder.address, 20, SOON)
            assert (len(times), late) == (20, 0)
    # The first one does not count.
    assert [struct.unpack("!I", word[8:])[0] for word in responder.words] == [*range(21)] * 2
    nonces = [word[:8] for word in responder.words]
    assert len(set(nonces[:21])) == len(set(nonces[21:])) == 1
    assert nonces[0] != nonces[21]


def test_an_answer_from_elsewhere_is_thrown_away(asker: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like one from another process of the network that saw or guessed the echo."""
    monkeypatch.setattr(probe_agent, "PATIENCE_S_MIN", SOON)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
        place = asker.getsockname()

        def answer(word: bytes) -> list[bytes]:
            forger.sendto(echo(word), place)
            return []

        with Responder(answer) as responder:
            times, late = probe_agent.ask(asker, responder.address, 3, 0.2)
    assert times == []
    assert late > 0


def test_echoes_that_are_dropped_are_lost_and_no_more(asker: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_agent, "PATIENCE_S_MIN", 1.0)
    with Responder(lambda word: [] if word[-1] % 5 == 4 else [echo(word)]) as responder:
        times, late = probe_agent.ask(asker, responder.address, 20, probe_agent.PATIENCE_PART * 1.0)
    assert (len(times), late) == (16, 0)


def test_answers_of_older_rounds_and_echoes_are_thrown_away(
    asker: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_agent, "PATIENCE_S_MIN", SOON)
    stale = bytes(8) + struct.pack("!I", 1)
    with Responder(lambda word: [echo(stale), word, b"", echo(word)]) as responder:
        times, late = probe_agent.ask(asker, responder.address, 10, SOON)
    assert len(times) == 10
    # The three that arrived before each reply.
    assert late == 33


def test_a_host_that_answers_nothing_is_given_up_soon(asker: socket.socket) -> None:
    with Responder(lambda _: []) as responder:
        assert probe_agent.ask(asker, responder.address, 100_000, 0.1) == ([], 0)
    assert len(responder.words) < 20


def test_two_echoes_cant_be_made_to_answer_each_other() -> None:
    agent = probe_agent.Agent("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.settimeout(SOON)
        place = ("127.0.0.1", agent.echo.getsockname()[1])
        # A reply is not an echo; the echo after it shows that it was read.
        other.sendto(echo(b"of twelve: 1"), place)
        other.sendto(b"of twelve: 2", place)
        assert other.recv(64) == echo(b"of twelve: 2")
    agent.close()


def test_a_datagram_that_cant_be_answered_ends_no_echo() -> None:
    """Its source port is 0, which only raw sockets send."""
    agent = probe_agent.Agent("127.0.0.1")
    port = agent.echo.getsockname()[1]
    try:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        pytest.skip("needs raw sockets")
    with raw, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        word = b"of twelve: 1"
        raw.sendto(struct.pack("!HHHH", 0, port, 8 + len(word), 0) + word, ("127.0.0.1", 0))
        other.settimeout(SOON)
        other.sendto(b"of twelve: 2", ("127.0.0.1", port))
        assert other.recv(64) == echo(b"of twelve: 2")
    agent.close()


def rate_between(agents: list[probe_agent.Agent]) -> object:
    told = {"peer": ["127.0.0.1", agents[1].listener.getsockname()[1]], "window": 1 << 18, "streams": 2}
    assert agents[0].answer({"do": "open", "warm_s": 0.01, "seconds": 0.05, **told}) == {}
    return agents[0].answer({"do": "go", "seconds": 0.06})["rate"]


def test_streams_without_the_key_are_few_and_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Foreign connections that send nothing, or a wrong key; a stream of the probe is still accepted."""
    received: list[tuple[object, ...]] = []
    monkeypatch.setattr(probe_agent, "_receive", lambda *words: received.append(words))
    agent = probe_agent.Agent("127.0.0.1", key=b"k" * probe_agent.KEY_BYTES)
    place = ("127.0.0.1", agent.listener.getsockname()[1])
    silent = [socket.create_connection(place) for _ in range(3 * probe_agent.STRANGERS_MAX)]
    eventually(lambda: len(agent.strangers) == probe_agent.STRANGERS_MAX)
    for stream in silent[: probe_agent.STRANGERS_MAX]:
        stream.settimeout(SOON)
        assert stream.recv(1) == b""
    with socket.create_connection(place) as wrong:
        wrong.settimeout(SOON)
        wrong.sendall(probe_agent.PREAMBLE.pack(b"x" * probe_agent.KEY_BYTES, 0.0, 0.0, 4096))
        assert wrong.recv(1) == b""
    assert received == []
    with socket.create_connection(place) as right:
        right.sendall(probe_agent.PREAMBLE.pack(agent.key, 1.0, 2.0, 4096))
        eventually(lambda: len(received) == 1)
        assert received[0][1:] == (1.0, 2.0, 4096)
    for stream in silent:
        stream.close()
    agent.close()


def test_running_out_of_descriptors_ends_no_listener() -> None:
    agents = [probe_agent.Agent("127.0.0.1") for _ in range(2)]
    place = ("127.0.0.1", agents[1].listener.getsockname()[1])
    waiting = [socket.socket() for _ in range(3)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        # The first gets the descriptor that the listener has reserved before it waited; the next ones get none.
        for stream in waiting:
            stream.connect(place)
        time.sleep(0.2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for stream in waiting:
            stream.close()
    assert rate_between(agents) != 0.0
    for agent in agents:
        agent.close()


def test_streams_between_agents_have_a_rate() -> None:
    agents = [probe_agent.Agent("127.0.0.1") for _ in range(2)]
    rate = rate_between(agents)
    assert isinstance(rate, float)
    assert rate > 1e6
    for agent in agents:
        agent.close()


def test_fping_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agent = probe_agent.Agent("127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install fping"):
        agent.answer({"do": "fping", "peer": ["127.0.0.1", 9], "count": 2, "timeout_s": 1.0})
    agent.close()


def test_fpings_times_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "fping"
    # Output of fping 5.1 on stderr; "-" is a lost echo.
    fake.write_text("#!/bin/sh\necho '127.0.0.1 : 0.044 0.021 - 0.030' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    agent = probe_agent.Agent("127.0.0.1")
    answer = agent.answer({"do": "fping", "peer": ["127.0.0.1", 9], "count": 4, "timeout_s": 1.0})
    assert answer == {"times_ns": [44000, 21000, 30000], "lost": 1, "late": 0}
    agent.close()


@pytest.mark.parametrize("count", [0, 1, 2, 7, 32])
def test_each_pair_meets_once_and_no_host_is_in_two_pairs_of_a_round(count: int) -> None:
    turns = tournament.rounds(count)
    pairs = [pair for turn in turns for pair in turn]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert len(turns) == (0 if count < 2 else count - 1 + count % 2)
    assert all(len({host for pair in turn for host in pair}) == 2 * len(turn) for turn in turns)
    assert tournament.packed(pairs, count) == turns
    some = tournament.packed(pairs[::3], count)
    assert sorted(pair for turn in some for pair in turn) == sorted(pairs[::3])
    assert all(len({host for pair in turn for host in pair}) == 2 * len(turn) for turn in some)


class Hosts:
    """Simulated hosts: each reply is a time in nanoseconds, a function of both hosts.

    Args:
        count: number of hosts.
        time_ns: time of an echo from one host to the other; None for no reply.
        rounds: number of requests after which the probe is interrupted.
    """

    def __init__(self, count: int, time_ns: Callable[[int, int], int | None], rounds: int | None = None) -> None:
        self.sites = [Site(f"h{number}", f"10.0.0.{number + 1}") for number in range(count)]
        self.absent: dict[int, str] = {}
        self.hello = {
            number: {"echo": number, "listener": number, "machine": str(number), "load": 0.0, "cores": 2}
            for number in range(count)
        }
        self.asked: list[tuple[int, int, int]] = []
        self._time_ns = time_ns
        self._left = rounds

    @property
    def present(self) -> list[int]:
        return [number for number in range(len(self.sites)) if number not in self.absent]

    def leave_out(self, number: int, reason: str) -> None:
        self.absent.setdefault(number, reason)

    def ask(self, requests: Mapping[int, dict[str, Any]], _timeout_s: float) -> dict[int, dict[str, Any]]:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left = None if self._left is None else self._left - 1
        answers = {}
        for number, request in requests.items():
            target, count = request["peer"][1], request["count"]
            self.asked.append((number, target, count))
            time = self._time_ns(number, target)
            times = [] if time is None else [time] * count
            answers[number] = {"times_ns": times, "lost": count - len(times), "late": 0}
        return answers


def probed(made: Hosts, **settings: Any) -> probing.Probed:  # noqa: ANN401 - as Settings has them
    told: Any = made
    return probing.run(probing.begin(made.sites, probing.Settings(**settings)), told)


def rack_time_ns(a: int, b: int) -> int:
    return 10_000 + a + b if a % 3 == b % 3 else 50_000 + 7 * (a + b)


@pytest.mark.parametrize("count", [1, 7])
def test_few_hosts_and_odd_counts(count: int) -> None:
    found = probed(Hosts(count, lambda a, b: 20_000 if a < b else 30_000))
    assert found.times_us == [[0.0 if a == b else 30.0 for b in range(count)] for a in range(count)]
    assert found.clusters() == [0] * count
    assert found.quality is not None
    assert found.quality.pairs_missing == 0
    low = probed(Hosts(count, lambda a, b: 20_000 if a < b else 30_000), symmetric="min", estimator="min")
    assert {time for row in low.times_us for time in row} <= {0.0, 20.0}


def test_groups_are_found_and_named_by_level() -> None:
    found = probed(Hosts(9, rack_time_ns))
    assert found.clusters() == [0, 1, 2] * 3
    assert found.groups[:3] == [("rack-0",), ("rack-1",), ("rack-2",)]

    def pods_ns(a: int, b: int) -> int:
        return 10_000 if a // 2 == b // 2 else 40_000 if a // 4 == b // 4 else 200_000

    assert probed(Hosts(8, pods_ns)).groups[5] == ("pod-1", "rack-2")


def test_a_quick_probe_sends_fewer_echoes_to_far_hosts() -> None:
    made = Hosts(24, rack_time_ns)
    found = probed(made, quick=True, count=50)
    assert found.clusters() == [0, 1, 2] * 8
    asked = {(a, b) for a, b, count in made.asked if count == 50 and a % 3 != b % 3}
    # One round is probed again at the end.
    assert len(asked) < 24 * 16 / 4


def centre_ns(count: int, seed: int) -> tuple[Callable[[int, int], int], list[int]]:
    """The times of a generated data center as its hosts would report them, and the rack of each host."""
    times, racks = _native.make_data_centre(count, seed)
    return (lambda a, b: round(1000 * times[a * count + b])), racks


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_landmarks_find_all_racks_by_a_third_of_the_pairs(seed: int, tmp_path: Path) -> None:
    count = 192
    time_ns, racks = centre_ns(count, seed)
    made = Hosts(count, time_ns)
    found = probed(made, landmarks=24, count=3)
    known: dict[int, int] = {}
    assert found.clusters() == [known.setdefault(rack, len(known)) for rack in racks]
    asked = {(min(a, b), max(a, b)) for a, b, _ in made.asked}
    pairs = count * (count - 1) // 2
    assert len(asked) + len(found.estimated) == pairs
    assert len(asked) < 0.4 * pairs
    assert f"{len(asked)} of {pairs} pairs were probed, starting with 24 landmarks" in found.notes[0]
    assert found.quality is not None
    assert found.quality.pairs_missing == 0
    # A plan from these times costs hardly more than one from all times.
    layout.write(tmp_path / "t.json", found.layout())
    rows = surveyed.read(tmp_path / "t.json").rows
    whole = [[time_ns(a, b) / 1000 if a != b else 0.0 for b in range(count)] for a in range(count)]
    for model, algorithm in (("paper", "ring"), ("congestion", "ring"), ("congestion", "halving-doubling")):
        wanted = problem.Wanted(algorithm)
        options = problem.Options(model=model, seconds=0.5, seconds_max=SOON, nic=1e10)
        best, planned = (planning.plan(times, wanted, options) for times in (whole, rows))
        assert best.machines.native.cost(wanted, model, planned.order) < 1.05 * best.cost


def test_a_probe_of_landmarks_goes_on_where_it_was(tmp_path: Path) -> None:
    time_ns, _ = centre_ns(40, 3)
    first = Hosts(40, time_ns, rounds=90)
    state = probing.begin(first.sites, probing.Settings(count=3, landmarks=6))
    told: Any = first
    with pytest.raises(KeyboardInterrupt):
        probing.run(state, told, done=lambda now, _at, _count: layout.write(tmp_path / "t.json", now.layout()))
    again: Any = Hosts(40, time_ns)
    found = probing.run(probing.resumed(layout.read(tmp_path / "t.json")), again)
    assert found.is_whole
    assert len(again.asked) < len(first.asked) + len(again.asked) < 40 * 39
    assert all(time is not None for row in found.times_us for time in row)


def test_a_silent_host_is_in_no_group_of_landmarks() -> None:
    time_ns, _ = centre_ns(40, 3)
    found = probed(Hosts(40, lambda a, b: None if 7 in (a, b) else time_ns(a, b)), landmarks=6, count=3)
    assert list(found.absent) == [7]
    assert {time for at, time in enumerate(found.times_us[7]) if at != 7} == {None}
    assert found.quality is not None
    assert found.quality.pairs_missing == 0


@pytest.mark.parametrize(
    ("count", "said"),
    [
        ("-1", "-1 is not in the range x>=0"),
        ("1", "1 landmark is too few: set 2 or more"),
        ("3", "--landmarks 3 exceeds the 2 hosts: set fewer, or 0 to probe all pairs"),
    ],
)
def test_a_count_of_landmarks_that_helps_nothing_is_refused(tmp_path: Path, count: str, said: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a 10.0.0.1\nb 10.0.0.2\n")
    code = 1 if said.startswith("--landmarks") else 2
    told = run("topology", "probe", "--hosts", hosts, "--landmarks", count, "--launch", "false", code=code)
    assert said in " ".join(told.stderr.split())


def test_a_quick_probe_of_many_hosts_has_landmarks() -> None:
    def pairs_asked(count: int, **settings: Any) -> int:  # noqa: ANN401 - as Settings has them
        made = Hosts(count, lambda a, b: 20_000 + 37 * (a + b) % 1000)
        found = probed(made, quick=True, **settings)
        asked = len({(min(a, b), max(a, b)) for a, b, _ in made.asked})
        assert asked + len(found.estimated) == count * (count - 1) // 2
        assert all(
            20 <= (time or 0) < 21 for a, row in enumerate(found.times_us) for b, time in enumerate(row) if a != b
        )
        return asked

    # If all times are equal, none of them makes a pair relevant.
    assert 24 * 128 - 12 * 23 <= pairs_asked(129) < 129 * 64 * 0.6
    assert pairs_asked(128) == 128 * 127 // 2
    assert pairs_asked(129, landmarks=0) == 129 * 64


def test_a_host_that_answers_no_echo_is_left_out_and_planned_without(tmp_path: Path) -> None:
    found = probed(Hosts(7, lambda a, b: None if 3 in (a, b) else 20_000))
    assert "h3 does not reply to echoes" in found.absent[3]
    assert found.clusters() == [0, 0, 0, None, 0, 0, 0]
    layout.write(tmp_path / "t.json", found.layout())
    given = surveyed.read(tmp_path / "t.json")
    assert [host.name for host in given.hosts] == ["h0", "h1", "h2", "h4", "h5", "h6"]
    assert "planned without h3" in given.notes[0]


def test_a_pair_without_a_time_is_noted_and_estimated(tmp_path: Path) -> None:
    found = probed(Hosts(5, lambda a, b: None if {a, b} == {1, 4} else 10_000 * (1 + abs(a - b))))
    assert found.absent == {}
    assert found.quality is not None
    assert found.quality.pairs_missing == 1
    assert "1 pairs have no time" in " ".join(found.quality.warnings)
    layout.write(tmp_path / "t.json", found.layout())
    given = surveyed.read(tmp_path / "t.json")
    assert given.rows[1][4] == 30.0
    assert "1 pairs" in given.notes[0]


def test_of_a_pair_that_answers_one_way_that_time_is_taken() -> None:
    found = probed(Hosts(4, lambda a, b: None if (a, b) == (0, 1) else 10_000))
    assert found.times_us[0][1] == 10.0
    assert found.samples.lost[0][1] == 100


def test_no_host_that_answers_is_an_error() -> None:
    with pytest.raises(probing.ProbeFailed, match="does not reply to echoes"):
        probed(Hosts(4, lambda _a, _b: None))


def test_an_interrupted_probe_goes_on_where_it_was(tmp_path: Path) -> None:
    first = Hosts(8, rack_time_ns, rounds=6)
    state = probing.begin(first.sites, probing.Settings(count=20))
    told: Any = first
    with pytest.raises(KeyboardInterrupt):
        probing.run(state, told, done=lambda now, _at, _count: layout.write(tmp_path / "t.json", now.layout()))
    again: Any = Hosts(8, rack_time_ns)
    going = probing.going_on(probing.resumed(layout.read(tmp_path / "t.json")), probing.Settings(timeout_s=3.0))
    assert (going.settings.count, going.settings.timeout_s) == (20, 3.0)
    found = probing.run(going, again)
    # Three rounds of four pairs in both directions were done; four more follow, and one is repeated at the end.
    assert len(first.asked) == 3 * 8
    assert len(again.asked) == 4 * 8 + 4
    assert found.is_whole
    assert found.times_us == probed(Hosts(8, rack_time_ns)).times_us


def test_a_silent_host_is_left_out_of_a_probe_that_goes_on() -> None:
    made = Hosts(5, lambda a, b: None if 3 in (a, b) else 20_000)
    first = probed(made)
    again: Any = Hosts(5, lambda a, b: None if 3 in (a, b) else 20_000)
    assert list(probing.run(probing.resumed(first.layout()), again).absent) == [3]


def test_a_file_of_no_probe_cant_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"format": FORMAT, "hosts": [{"name": "a"}]}))
    said = run("topology", "probe", "--resume", path, code=1).stderr
    assert "can't resume from this file" in said


def test_busy_hosts_are_warned_of() -> None:
    quiet = samples.judge(probed(Hosts(4, rack_time_ns)).samples, "p10", [("a", 0.5, 2)])
    assert quiet.warnings == []
    one_sided = probed(Hosts(4, lambda a, b: 10_000 if a < b else 20_000)).samples
    said = " ".join(samples.judge(one_sided, "p10", [("a", 0.1, 2), ("b", 9.0, 2)]).warnings)
    assert "differ by 100%" in said
    assert "1 hosts had more running tasks than cores, such as b" in said
    assert "probe again" in said
    spread = samples.Samples(2)
    for a, b in ((0, 1), (1, 0)):
        spread.take(a, b, 100, {"times_ns": [1000 * at for at in range(1, 91)], "lost": 10, "late": 2})
    quality = samples.judge(spread, "p10")
    assert (quality.loss, quality.late) == (0.1, 4)
    assert "10.0% of the echoes were lost" in " ".join(quality.warnings)
    assert "p90 is 8.2 times p10" in quality.words()


def exchanged(rack: list[int], uplink: float, seed: int, busy: float = 0.0) -> list[contention.Round]:
    """Rounds of simulated hosts in racks whose uplinks carry a number of hosts; some rounds are slow by chance."""
    chance = random.Random(seed)
    found: list[contention.Round] = []

    def measure(turn: list[tuple[int, int]]) -> contention.Round:
        crossing = [sum((rack[a] == of) != (rack[b] == of) for a, b in turn) for of in range(max(rack) + 1)]
        slowed = 0.55 if chance.random() < busy else 1.0
        rates = []
        for a, b in turn:
            share = 1.0 if rack[a] == rack[b] else min(1.0, uplink / crossing[rack[a]], uplink / crossing[rack[b]])
            rates.append((a, b, 1e9 * share * slowed * (1 - 0.15 * chance.random())))
        return rates

    for turn in contention.schedule(len(rack), seed):
        measured = measure(turn)
        if contention.is_slow(found, measured):
            measured = [(a, b, max(one, two)) for (a, b, one), (_, _, two) in zip(measured, measure(turn), strict=True)]
        found.append(measured)
        if contention.is_enough(found, len(rack)):
            break
    return found


@pytest.mark.parametrize(("sizes", "uplink"), [((4, 4), 2), ((5, 3), 1), ((2, 2), 1), ((5, 3, 8), 2)])
def test_racks_are_found_by_the_links_that_they_share(sizes: tuple[int, ...], uplink: float) -> None:
    for seed in range(3):
        rack = [number for number, size in enumerate(sizes) for _ in range(size)]
        random.Random(seed).shuffle(rack)
        known: dict[int, int] = {}
        wanted = [known.setdefault(one, len(known)) for one in rack]
        assert contention.groups(exchanged(rack, uplink, seed, busy=0.1), len(rack)) == wanted


def test_where_no_link_is_short_there_are_no_groups() -> None:
    for seed in range(3):
        assert contention.groups(exchanged([0] * 4 + [1] * 4, 8, seed, busy=0.1), 8) is None
    assert contention.groups([], 8) is None


def write_hosts(folder: Path, count: int) -> Path:
    path = folder / "hosts"
    path.write_text("".join(f"h{number} 127.0.0.{number + 1}\n" for number in range(count)))
    return path


def test_real_agents_are_probed_and_planned_for(tmp_path: Path) -> None:
    out, picture = tmp_path / "t.json", tmp_path / "t.svg"
    options = ("--launch", LAUNCH, "--python", sys.executable, "--out", out, "--picture", picture, "--json")
    done = run("topology", "probe", "--hosts", write_hosts(tmp_path, 5), "--count", 30, *options)
    document = json.loads(done.stdout)
    assert set(document) == KEYS
    assert [host["name"] for host in document["hosts"]] == [f"h{number}" for number in range(5)]
    times = document["times_us"]
    assert all((times[a][b] > 0) == (a != b) and times[a][b] == times[b][a] for a in range(5) for b in range(5))
    assert set(document["quantiles_us"]) == set(samples.QUANTILES)
    assert document["measured"]["whole"]
    assert "h0 and h1 are the same machine" in " ".join(document["measured"]["notes"])
    assert layout.read(out).hosts[4].addresses == ("127.0.0.5",)
    assert "probed 5 hosts" in done.stderr
    assert ">h4</text>" in picture.read_text()
    planned = run("topology", "plan", "--topology", out, "--algorithm", "ring", "--format", "mpich")
    assert sorted(planned.stdout.split()) == [f"h{number}:1" for number in range(5)]


def test_an_unreachable_host_is_left_out_and_reported(tmp_path: Path) -> None:
    script = tmp_path / "launch"
    script.write_text('#!/bin/sh\nif [ "$1" = h1 ]; then echo "no route to h1" >&2; exit 255; fi\nexec sh -c "$2"\n')
    script.chmod(0o755)
    options = ("--launch", f"{script} {{host}}", "--python", sys.executable, "--count", 10)
    done = run("topology", "probe", "--hosts", write_hosts(tmp_path, 4), *options)
    assert "left out: h1 has disconnected: no route to h1" in done.stdout
    assert "probed 3 hosts" in done.stderr
    one = tmp_path / "one"
    one.write_text("h1 127.0.0.2\nh2 127.0.0.3\n")
    said = run("topology", "probe", "--hosts", one, *options, code=1).stderr
    assert "only 1 of 2 hosts can be reached; h1 has disconnected: no route to h1" in said


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    command = ["topology", "probe", "--hosts", write_hosts(tmp_path, 8), "--launch", LAUNCH, "--python", sys.executable]
    process = subprocess.Popen(
        [*COMMAND, *map(str, command), "--count", "5000", "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: out.exists() and any(map(any, layout.read(out).more["measured"]["asked"])))
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=SOON)
    assert process.returncode == 130
    assert f"hoplite topology probe --resume {out}" in said
    assert not layout.read(out).more["measured"]["whole"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a 10.0.0.1\nb 10.0.0.1\n", "a and b have the same address 10.0.0.1"),
        ("a 127.0.0.1\nb 10.0.0.1\n", "a resolves to the loopback address 127.0.0.1 on this machine"),
        ("no-such-host.invalid\n", "no-such-host.invalid can't be resolved here"),
    ],
)
def test_hosts_that_cant_be_probed_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    assert said in run("topology", "probe", "--hosts", path, code=1).stderr


def test_slots_of_a_file_of_hosts_are_in_the_topology(tmp_path: Path) -> None:
    path, out = tmp_path / "hosts", tmp_path / "t.json"
    path.write_text("h0 127.0.0.1 slots=2\nh1 127.0.0.2\n")
    options = ("--launch", LAUNCH, "--python", sys.executable, "--count", 3, "--out", out)
    run("topology", "probe", "--hosts", path, *options)
    assert [host.slots for host in layout.read(out).hosts] == [2, 1]
    assert [site.slots for site in probing.resumed(layout.read(out)).sites] == [2, 1]
    planned = run("topology", "plan", "--topology", out, "--algorithm", "ring", "--format", "mpich")
    assert sorted(planned.stdout.split()) == ["h0:2", "h1:1"]


def test_a_host_may_have_an_address_and_slots(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a 10.0.0.1 slots=2\nb slots=3\n10.0.0.3\n")
    assert hosts.read_hosts(path) == [hosts.Host("a", 2, "10.0.0.1"), hosts.Host("b", 3), hosts.Host("10.0.0.3")]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--lab", 2, "--racks", "1,1"),
    ],
)
def test_options_without_effect_are_rejected(words: tuple[object, ...]) -> None:
    done = subprocess.run(
        [*COMMAND, "topology", "probe", *map(str, words)], capture_output=True, text=True, timeout=SOON, check=False
    )
    assert done.returncode == 2


def test_a_launch_command_without_its_host_is_refused(tmp_path: Path) -> None:
    path = write_hosts(tmp_path, 2)
    assert "has no {host}" in run("topology", "probe", "--hosts", path, "--launch", "ssh", code=1).stderr
    assert "can't run nothing-there" in (
        run("topology", "probe", "--hosts", path, "--launch", "nothing-there {host}", code=1).stderr
    )


def test_a_picture_has_names_a_scale_and_grey_where_there_is_no_time() -> None:
    text = chart.picture(["a<b", "c"], [[0.0, None], [12.5, 0.0]], "two hosts")
    assert text.count(">a&lt;b</text>") == 2
    assert text.count(chart.MISSING) == 1
    assert ">12.5</text>" in text
    assert "two hosts" in text
    assert text.count(">h0</text>") == 0


def test_a_png_has_the_cells_alone(tmp_path: Path) -> None:
    chart.draw(tmp_path / "t.png", ["a", "b", "c"], [[0.0, None, 9.0], [None, 0.0, 30.0], [9.0, 30.0, 0.0]], "said")
    content = (tmp_path / "t.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    assert width == height
    size = struct.unpack(">I", content[33:37])[0]
    assert content[37:41] == b"IDAT"
    lines = zlib.decompress(content[41 : 41 + size])
    first = lines[1 : 1 + 3 * width]
    cells = [first[3 * (width // 3 * at) : 3 * (width // 3 * at) + 3] for at in range(3)]
    assert cells == [heat.ITSELF, heat.MISSING, heat.colour(0.0)]


@needs_lab
@pytest.mark.lab
def test_fping_measures_a_lab() -> None:
    if shutil.which("fping") is None:
        pytest.skip("needs fping: apt-get install fping, or make bench-packages")
    options = ("--lab", 3, "--count", 5, "--no-bandwidth", "--backend", "fping", "--json")
    told = json.loads(run("topology", "probe", *options).stdout)
    assert told["measured"]["backend"] == "fping"
    assert all((time > 0) == (a != b) for a, row in enumerate(told["times_us"]) for b, time in enumerate(row))
    assert told["quality"]["pairs_missing"] == 0


@needs_lab
@pytest.mark.lab
def test_a_lab_is_measured_and_has_a_plan(tmp_path: Path) -> None:
    """Whatever times and rates are: the detected racks depend on an idle machine."""
    out = tmp_path / "t.json"
    links = ("--racks", "2,2", "--rate", "200mbit", "--uplink", "200mbit")
    told = json.loads(run("topology", "probe", *links, "--shuffle", 1, "--out", out, "--json").stdout)
    names = sorted(host["name"] for host in told["hosts"])
    assert names == sorted(told["measured"]["lab"]["rack_of"]) == [f"node{number}" for number in range(4)]
    assert len(told["clusters"]) == 4
    plan = json.loads(run("topology", "plan", "--topology", out, "--algorithm", "ring", "--json").stdout)
    assert sorted(plan["hosts"]) == names
    assert 0 < plan["cost"] <= plan["cost_worst"]


@needs_lab
@pytest.mark.lab
@pytest.mark.long
@pytest.mark.parametrize(("racks", "seed"), [("4,4", 1), ("5,3", 2)])
def test_a_probe_detects_the_racks_of_a_lab(tmp_path: Path, racks: str, seed: int) -> None:
    out = tmp_path / "t.json"
    links = ("--racks", racks, "--rate", "200mbit", "--uplink", "200mbit")
    done = run("topology", "probe", *links, "--shuffle", seed, "--out", out, "--json")
    told = json.loads(done.stdout)
    rack_of = told["measured"]["lab"]["rack_of"]
    known: dict[int, int] = {}
    assert told["clusters"] == [known.setdefault(rack_of[host["name"]], len(known)) for host in told["hosts"]]
    assert told["nic"] == pytest.approx(191e6, rel=0.1)
    assert list(told["uplinks"].values()) == pytest.approx([191e6] * 2, rel=0.1)
    plan = json.loads(run("topology", "plan", "--topology", out, "--algorithm", "ring", "--json").stdout)
    assert plan["cost_worst"] > 2 * plan["cost"]
    order = [rack_of[name] for name in plan["hosts"]]
    assert sum(a != b for a, b in zip(order, order[1:] + order[:1], strict=True)) == 2


@needs_lab
@pytest.mark.lab
@pytest.mark.long
def test_a_lab_whose_uplinks_carry_all_has_no_groups() -> None:
    told = json.loads(run("topology", "probe", "--racks", "3,3", "--rate", "100mbit", "--json").stdout)
    assert told["clusters"] == [0] * 6
    assert told["uplinks"] == {}
