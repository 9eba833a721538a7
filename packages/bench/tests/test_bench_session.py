"""A whole run of the bench: its file of rows, its output, how it ends, and what its commands refuse."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import bench_ports
import support
from bench_rows import row
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.tools import progress
from hoplite.tools.cli import output
from hoplite_bench import local, local_cases, machine, plan, session
from hoplite_bench.cli import bench, bench_local, bench_options
from hoplite_bench.hosts import AgentFailed, Network
from hoplite_bench.lab import LabError
from hoplite_bench.plan import Cell, Contender
from hoplite_bench.progress import Forecast, Watch
from hoplite_bench.results import Results
from hoplite_bench.row import BadRow, read, to_line
from hoplite_bench.systems import Host
from hoplite_bench.systems.base import RANKS, Unavailable
from hoplite_bench.systems.wire import Wire
from labs import needs_lab
from support import eventually
from test_bench_run import PROGRAM, Fake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row

bench_ports.take()

FACTS = {"kind": "lab", "rate": 10**9}


@pytest.fixture
def network(tmp_path: Path) -> Network:
    """Two hosts that are both this machine, with one clock."""
    rsh = tmp_path / "rsh"
    rsh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    rsh.chmod(rsh.stat().st_mode | stat.S_IXUSR)
    pair = [Host(0, "one", "127.0.0.1"), Host(1, "two", "127.0.0.2")]
    return Network(pair, rsh, "127.0.0.1", shared_clock=True, cidr="", rate=0, facts=FACTS)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "fake.py"
    path.write_text(PROGRAM.format(ranks=str(RANKS)))
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def measured(system: str = "wire", **fields: Any) -> Row:  # noqa: ANN401
    """A row of the network of these tests, from this machine and commit."""
    facts: dict[str, Any] = machine.facts()
    commit = facts.pop("commit")
    variant = "stream" if system == "wire" else "default"
    told = {"hosts": 2, "bytes": 4, "lab": FACTS, "machine": facts, "commit": commit, "variant": variant} | fields
    return row(system=system, **told)


def fill(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(to_line(one) + "\n" for one in rows))


def settings(*ops: str) -> session.Settings:
    return session.Settings([], plan.cells(ops or ["broadcast"], [4], [0.0]), 1)


def choose(monkeypatch: pytest.MonkeyPatch, *systems: Any) -> None:  # noqa: ANN401
    monkeypatch.setattr(session, "choose", lambda _: [Wire(), *systems])


def test_a_run_that_is_resumed_measures_only_what_is_missing(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(monkeypatch, Fake("good", program))
    session.measure(network, settings("broadcast"), Results(out))
    first = out.read_text()
    with pytest.raises(InvalidArgument, match="already has rows: add --resume"):
        Results(out)
    rows = session.measure(network, settings("broadcast", "gather"), Results(out, resume=True))
    assert out.read_text().startswith(first)
    assert [(row.op, row.system) for row in rows] == [
        ("broadcast", "wire"),
        ("broadcast", "good"),
        ("gather", "wire"),
        ("gather", "good"),
    ]
    assert read([out]) == rows


def test_a_cell_of_which_a_system_is_missing_is_measured_again_for_all(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, wire = measured(lab={"kind": "lab", "rate": 1}), measured()
    fill(out, [elsewhere, wire])
    choose(monkeypatch, Fake("good", program))
    rows = session.measure(network, settings(), Results(out, resume=True))
    assert [row.system for row in rows] == ["wire", "good"]
    assert rows[0].samples != wire.samples
    # The row of another network stays, but is not part of this run.
    assert read([out]) == [elsewhere, *rows]


def test_rows_are_there_until_those_that_replace_them_are(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(out, [measured()])
    before = out.read_bytes()
    choose(monkeypatch, Fake("good", program))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hoplite_bench.run.Runner.measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.measure(network, settings(), Results(out, resume=True))
    assert out.read_bytes() == before


def test_rows_of_systems_that_are_not_chosen_now_stay(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = [measured(), measured("good"), measured("other")]
    fill(out, there)
    choose(monkeypatch, Fake("good", program))
    assert session.measure(network, settings(), Results(out, resume=True)) == there
    assert capsys.readouterr().err == "1 of 1 cells are already done\n"
    choose(monkeypatch, Fake("good", program), Fake("new", program))
    rows = session.measure(network, settings(), Results(out, resume=True))
    assert [row.system for row in rows] == ["other", "wire", "good", "new"]
    assert read([out])[0] == there[2]
    assert "rows of other are kept, but were not interleaved with this measurement\n" in capsys.readouterr().err


def test_rows_come_in_the_order_of_the_cells(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(out, [measured(op="gather"), measured("good", op="gather")])
    choose(monkeypatch, Fake("good", program))
    rows = session.measure(network, settings("reduce", "gather"), Results(out, resume=True))
    assert [row.op for row in rows] == ["reduce"] * 3 + ["gather"] * 2


@pytest.mark.parametrize(("reason", "again"), [("out of luck", True), ("there is no wheel for this machine", False)])
def test_what_has_no_samples_is_measured_again_but_not_what_still_can_not_run(
    network: Network, program: Path, out: Path, monkeypatch: pytest.MonkeyPatch, reason: str, again: bool
) -> None:
    fill(out, [measured(), measured("unavailable", samples=[], wire_ratio=None, verified=False, note=reason)])
    choose(monkeypatch, Fake("unavailable", program))
    before = out.read_bytes()
    rows = session.measure(network, settings(), Results(out, resume=True))
    assert (out.read_bytes() != before) == again
    assert rows[1].note == "there is no wheel for this machine"


@pytest.mark.parametrize(
    ("path", "says"),
    [("no/such/rows", "No such file or directory"), (".", "Is a directory")],
    ids=["no folder", "a folder"],
)
def test_a_file_that_can_not_be_written_is_an_error_before_anything_is_measured(
    tmp_path: Path, path: str, says: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"can't write rows to .*: {says}; set another --out"):
        Results(tmp_path / path)


def test_a_last_line_that_is_not_finished_is_left_out_with_a_word(out: Path) -> None:
    whole, cut = to_line(measured()), to_line(measured("good"))
    said: list[str] = []
    out.write_text(f"{whole}\n{cut[:99]}")
    results = Results(out, resume=True, warn=said.append)
    assert said == [f"the last line of {out} is incomplete and is ignored"]
    results.add([measured(op="rtt")])
    assert read([out]) == [measured(), measured(op="rtt")]
    # Only its end-of-line is missing.
    out.write_text(f"{whole}\n{cut}")
    said.clear()
    results = Results(out, resume=True, warn=said.append)
    results.add([measured(op="rtt")])
    assert read([out]) == [measured(), measured("good"), measured(op="rtt")]
    assert said == []


def test_a_broken_line_amid_others_is_refused_and_the_file_left_alone(out: Path) -> None:
    for broken in (b'{"no": "row"}\n', b"\xff\n"):
        out.write_bytes(broken)
        with pytest.raises(BadRow, match=r"rows\.jsonl"):
            Results(out, resume=True)
        assert out.read_bytes() == broken


@pytest.mark.parametrize("other", [{"commit": "fedcba"}, {"machine": {"cores": 999}}], ids=["commit", "machine"])
def test_rows_of_another_commit_or_machine_cause_one_warning(
    network: Network,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    other: dict[str, Any],
) -> None:
    choose(monkeypatch)
    fill(out, [measured(), measured("good"), measured(lab={"kind": "local"}, **other)])
    session.measure(network, settings(), Results(out, resume=True))
    assert "warning" not in capsys.readouterr().err
    fill(out, [measured(), measured("good", **other)])
    session.measure(network, settings(), Results(out, resume=True))
    assert "warning: 1 of 2 existing rows are from another commit or machine" in capsys.readouterr().err


def test_a_link_to_the_file_stays_one(tmp_path: Path, out: Path) -> None:
    fill(out, [measured()])
    link = tmp_path / "link"
    link.symlink_to(out)
    Results(link, resume=True).add([measured(note="fresh")])
    assert link.is_symlink()
    assert [row.note for row in read([out])] == ["fresh"]


# -- What people see ---------------------------------------------------------------------------------------------------


def test_what_is_left_is_expected_at_the_pace_of_each_system() -> None:
    now = 0.0
    small, large = Cell("rtt", 4), Cell("rtt", 2**20)
    slow, quick = Contender("slow", "default", ""), Contender("quick", "default", "")
    turns = {(one, cell): (10.0, 10) for one in (slow, quick) for cell in (small, large)}
    forecast = Forecast(turns, lambda: now)
    assert forecast.left_s() == 400
    for _ in range(10):
        now += 50
        forecast.turned(slow, small)
        now += 10
        forecast.turned(quick, small)
    # One takes five times as long as expected, which is adopted gradually; the other as long as expected.
    assert 400 < forecast.left_s() < 600
    forecast.close(small)
    assert 400 < forecast.left_s() < 600
    forecast.close(large)
    assert forecast.left_s() == 0


def test_who_fails_in_a_cell_has_nothing_left_there() -> None:
    failed = Contender("failed", "default", "")
    small, large = Cell("rtt", 4), Cell("rtt", 2**20)
    forecast = Forecast({(failed, small): (1.0, 6), (failed, large): (1.0, 6)}, lambda: 0.0)
    forecast.turned(failed, small)
    forecast.close(small)
    assert forecast.left_s() == pytest.approx(6, rel=0.1)


def test_a_watch_shows_cells_the_current_step_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    said = io.StringIO()
    one, cell = Contender("a", "default", ""), Cell("rtt", 4)
    with Watch(Console(file=said, force_terminal=True, width=120)) as watch:
        watch.begin({(one, cell): (3600.0, 2), (one, Cell("rtt", 8)): (3600.0, 2)}, 2)
        watch.notify("a ring[2]: rtt")
        watch.turned(one, cell)
        watch.close(cell)
        # One turn took no time, so the two of the other cell are expected to take less than two hours.
        shown = r"1 of 2 cells, about 0:0[01]:\d\d left.*a ring\[2\]: rtt"
        eventually(lambda: re.search(shown, said.getvalue()) is not None)


@pytest.mark.parametrize("text", ["no [/usr/lib] here", "on [node0:1] [bold]it[/bold] fails"])
def test_brackets_mean_nothing(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = io.StringIO()
    Watch(Console(file=said)).say(text + "\nnor in a second line")
    assert said.getvalue() == text + " nor in a second line\n"
    output.print_table(("[/b]",), [(text,)])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["[/b]", text]


def test_the_table_has_systems_side_by_side_and_each_reason_once_below(capsys: pytest.CaptureFixture[str]) -> None:
    failed: dict[str, Any] = {"samples": [], "wire_ratio": None, "verified": False}
    why = "ImportError: no wheel\n  in [/usr/lib]" + " and so on" * 30
    bench._print(
        [
            measured(samples=[0.001], wire_ratio=1.0),
            measured("hoplite", samples=[0.002], wire_ratio=2.0),
            measured("mpich", note=why, **failed),
            measured(op="reduce", samples=[0.001], wire_ratio=1.0),
            measured("hoplite", op="reduce", samples=[0.003], wire_ratio=3.0),
            measured("mpich", op="reduce", note=why, **failed),
            measured("mpich", op="reduce", variant="ring", samples=[0.004], wire_ratio=4.0),
        ]
    )
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "op size wire Hoplite MPICH",
        "broadcast 4 B 1.00 ms 2.00 ms 2.00× no figure [1]",
        "reduce 4 B 1.00 ms 3.00 ms 3.00× 4.00 ms 4.00× [2]",
        f"[1] MPICH: {' '.join(why.split())}",
        f"[2] MPICH default: {' '.join(why.split())}",
    ]


# -- How it ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_run_that_is_ended_cleans_up(
    network: Network, program: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # With a short path: a Unix socket's has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    script = tmp_path / "bench.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path[:0] = {[str(Path(__file__).parent), str(Path(support.__file__).parent)]!r}
        import click
        from test_bench_run import Fake, Host, Network, Wire
        from hoplite.tools import cli
        from hoplite_bench import plan, session
        from hoplite_bench.results import Results
        from hoplite_bench.cli import bench_options
        pair = [Host(0, "one", "127.0.0.1"), Host(1, "two", "127.0.0.2")]
        place = Network(pair, Path({str(network.rsh)!r}), "", shared_clock=True, cidr="", rate=0, facts={{}})
        session.choose = lambda _: [Wire(), Fake("hang", Path({str(program)!r}))]

        @click.command()
        def test():
            with bench_options.running(Path("rows")):
                session.measure(place, session.Settings([], plan.cells(["reduce"], [4], [0.0]), 9), Results(None))

        cli.hoplite.add_command(test)
        sys.argv = ["hoplite", "test"]
        session.Watch.turned = lambda *_: print("up", flush=True)
        cli.main()
        """)
    )
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as run:
        assert run.stdout is not None
        # The wire runs, and the next system is starting or hangs.
        assert run.stdout.readline() == "up\n"
        assert list(folder.glob("hoplite-bench-*"))
        run.send_signal(number)
        _, said = run.communicate(timeout=50)
    assert run.returncode == code, said
    assert said.strip() == "stopped; finished rows are in rows; to continue, repeat the command with --resume"
    assert [str(path) for path in folder.rglob("*")] == []
    folder.rmdir()


# -- The commands ------------------------------------------------------------------------------------------------------


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hoplite.tools.cli", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


LAB = ("--lab", "4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "set exactly one of --lab 8"),
        ((*LAB, "--sizes", "many"), "'many' is not a size"),
        ((*LAB, "--arrival", ""), "the list is empty"),
        ((*LAB, "--arrival", "soon"), "'soon' is not a list of seconds"),
        (("--racks", "2,x"), "'2,x' is not valid: write the numbers of hosts per rack"),
        ((*LAB, "--uplink", "1gbit"), "--uplink needs racks"),
        ((*LAB, "--rsh", "rsh"), "--rsh applies to real hosts"),
        (("--hosts", __file__, "--flow-cap", "1gbit"), "--flow-cap applies to hosts of a lab"),
        ((*LAB, "--resume"), "--resume continues the file of --out"),
        ((*LAB, "--pods", "1,1"), "--pods needs racks"),
        (("--racks", "2,2", "--pod-uplink", "1gbit"), "--pod-uplink needs pods"),
        (("--rate", "1gbit", "local"), "--rate can't precede local: see hoplite bench local --help"),
    ],
)
def test_options_without_effect_are_a_usage_error(words: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(bench.bench, words, prog_name="hoplite bench")
    assert done.exit_code == 2
    assert message in " ".join(done.output.replace("│", "").split())


def test_words_sizes_and_times_count_once() -> None:
    command = bench.bench.make_context(
        "bench", ["--ops", "rtt,rtt", "--sizes", "1KiB,1024", "--arrival", "0,0.0,0.1", "--systems", "ray,wire,ray"]
    )
    found = [command.params[name] for name in ("ops", "sizes", "arrival", "systems")]
    assert found == [["rtt"], [1024], [0.0, 0.1], ["ray", "wire"]]


@pytest.mark.parametrize(("words", "rate"), [((), 0), (("--rate", "25gbit"), 25 * 10**9)])
def test_the_rate_of_real_hosts_is_the_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], rate: int
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.5\n127.0.0.6\n")
    seen = []

    def measure(network: Network, *_: object) -> list[Row]:
        seen.append(network.rate)
        return []

    monkeypatch.setattr(session, "measure", measure)
    options = ["--hosts", str(hosts), "--rsh", "true", "--json", *words]
    assert CliRunner().invoke(bench.bench, options, catch_exceptions=False).exit_code == 0
    assert seen == [rate]


def test_errors_of_the_commands_have_a_next_step(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"no": "row"}) + "\n")
    hoplite = ("--lab", "2", "--systems", "hoplite")
    for words, message, step in (
        ((*hoplite, "--ops", "bcast"), "unknown operation 'bcast'", "--help"),
        (("--lab", "4", "--systems", "nccl"), "unknown system 'nccl'", "--help"),
        ((*hoplite, "--out", str(rows)), "add --resume to continue", "--help"),
        (
            (*hoplite, "--out", str(rows), "--resume"),
            "rows.jsonl:1: the row lacks the fields arrival_s",
            "delete that line",
        ),
        ((*hoplite, "--out", str(tmp_path / "no" / "rows")), "No such file or directory; set another --out", "--help"),
        (("local", "--out", str(rows)), "add --resume to continue", "--help"),
        (("local", "--out", str(tmp_path / "no" / "rows")), "No such file or directory; set another --out", "--help"),
    ):
        done = run(*words)
        assert done.returncode == 1, done.stderr
        assert message in done.stderr
        assert step in done.stderr.partition("try: ")[2], done.stderr
        assert "hoplite status" not in done.stderr


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (BadRow("x"), "delete that line"),
        (AgentFailed("x"), "ssh HOST true"),
        (Unavailable("x"), "--systems"),
        (LabError("x"), "--hosts FILE"),
        (HopliteError("x"), "--resume"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_of_a_run_has_a_step_that_helps(error: HopliteError, step: str) -> None:
    with pytest.raises(output.Failure, match="x") as failed, bench_options.running(Path("rows")):
        raise error
    assert step in failed.value.step


def test_the_error_of_a_debug_build_names_the_command_that_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.__build__", "debug")
    for command in (bench.bench, bench_local.local):
        with pytest.raises(output.Failure, match="a debug build is too slow to measure") as failed:
            CliRunner().invoke(command, ["--sizes", "4"], catch_exceptions=False, standalone_mode=False)
        assert "make build" in failed.value.step


def test_local_goes_on_where_it_was_interrupted(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "compiled_program", lambda *_: Path("/bin/false"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.setattr(local, "SAMPLE_S", 0.002)
    monkeypatch.setattr(local_cases, "IN_FLIGHT_EACH", 2)
    options = ["--sizes", "4KiB", "--repeats", "1", "--no-install", "--out", str(out), "--json"]

    def measured_now(*words: str) -> list[Row]:
        done = CliRunner().invoke(bench_local.local, [*options, *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return read([out])

    first = measured_now()
    of_size = [one for one in first if one.op not in ("write_location", "look_up")]
    # As if it had been killed before the last row, which is of the directory.
    fill(out, first[:-1])
    second = measured_now("--resume")
    assert [one for one in second if one in first] == of_size
    assert sorted(one.key() for one in second) == sorted(one.key() for one in first)


@needs_lab
@pytest.mark.lab
def test_two_hosts_of_a_lab_measure_hoplite(out: Path) -> None:
    done = run("--lab", "2", "--systems", "hoplite", "--sizes", "1KiB,1MiB", "--repeats", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = read([out])
    assert {row.op for row in rows if row.system == "hoplite"} == {"rtt", "broadcast", "gather", "reduce", "allreduce"}
    assert all(row.verified and not row.note for row in rows), [row.note for row in rows]
    assert {row.lab["rate"] for row in rows} == {10**9}


@needs_lab
@pytest.mark.lab
def test_racks_of_a_lab_are_a_variant_of_hoplite(out: Path) -> None:
    cell = ["--systems", "hoplite", "--ops", "broadcast,reduce", "--sizes", "128KiB", "--repeats", "1"]
    done = run("--racks", "1,1,1", "--pods", "2,1", *cell, "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = [row for row in read([out]) if row.system == "hoplite"]
    assert all(row.verified and not row.note for row in rows), [row.note for row in rows]
    assert {tuple(row.lab["pods"]) for row in rows} == {(2, 1)}
    assert [(row.op, row.variant) for row in rows] == [
        ("broadcast", "default"),
        ("broadcast", "racks configured"),
        ("reduce", "default"),
        ("reduce", "racks configured"),
    ]


def test_an_unknown_system_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown system 'mpch'.*mpich"):
        session.choose(["mpch"])
