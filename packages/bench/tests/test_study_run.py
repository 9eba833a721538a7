"""A run of the study with systems made for it: set-ups that are missing, resumed runs, transports, the estimate."""

from __future__ import annotations

import contextlib
import io
import stat
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import bench_ports
from hoplite_bench import session, transport
from hoplite_bench.hosts import Network
from hoplite_bench.progress import Watch
from hoplite_bench.results import Results
from hoplite_bench.row import WIRE
from hoplite_bench.study import evidence, matrix, run
from hoplite_bench.systems import Host
from hoplite_bench.systems.base import RANKS, Unavailable
from hoplite_bench.systems.wire import Wire
from test_bench_run import PROGRAM, Fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hoplite_bench.row import Row
    from hoplite_bench.transport import Transport

bench_ports.take()

MISSING = "the container set-up 'cross' needs the command runc: install it with `apt-get install runc`"


class Place:
    """Set-ups that are all processes of this machine, and what was opened; "cross" is missing."""

    def __init__(self, folder: Path) -> None:
        self.opened: list[tuple[str, int]] = []
        self.missing = {"cross"}
        self._rsh = folder / "rsh"
        self._rsh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
        self._rsh.chmod(self._rsh.stat().st_mode | stat.S_IXUSR)

    @contextlib.contextmanager
    def open(self, name: str, ranks: int) -> Iterator[Network]:
        if name in self.missing:
            raise Unavailable(MISSING)
        self.opened.append((name, ranks))
        hosts = [Host(number, f"node{number}", "127.0.0.1", "lo") for number in range(ranks)]
        facts = {"kind": "study", "container": name, "hosts": ranks}
        yield Network(hosts, self._rsh, "", shared_clock=True, cidr="", rate=0, facts=facts, transports="own")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path)
    monkeypatch.setattr(run, "opened", place.open)
    program = tmp_path / "fake.py"
    program.write_text(PROGRAM.format(ranks=str(RANKS)))
    monkeypatch.setattr(session, "choose", lambda names: [Wire(), *(Fake(name, program) for name in names)])
    return place


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The messages of a run."""
    text = io.StringIO()
    monkeypatch.setattr(run, "Watch", lambda: Watch(Console(file=text, width=400)))
    return text


@pytest.fixture(autouse=True)
def _watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Determines transports without the kernel; lists the payloads."""
    payloads: list[int] = []

    def used(_ranks: Sequence[int], payload_bytes: int, work: Callable[[], object]) -> Transport:
        work()
        payloads.append(payload_bytes)
        return transport.Transport((transport.CMA,), {"payload_bytes": payload_bytes, "cma_bytes": payload_bytes})

    monkeypatch.setattr(transport, "used", used)
    return payloads


def measure(
    *containers: str,
    systems: Sequence[str] = ("good",),
    workers: Sequence[int] = (1, 2),
    results: Results | None = None,
) -> list[Row]:
    cells = matrix.cells(containers, ["gather", "allreduce"], workers, 4096)
    return run.measure(run.Settings(systems, cells, repeats=2, install=False), results or Results(None))


def seen(rows: Sequence[Row]) -> list[tuple[str, str, int, int]]:
    return [(row.container, row.op, row.hosts, len(row.samples)) for row in rows if row.system == "good"]


def test_each_number_of_ranks_opens_a_set_up_once_and_one_worker_alone_has_a_reason(
    place: Place, said: io.StringIO
) -> None:
    rows = measure("bare", "single")
    assert place.opened == [("bare", 3), ("single", 3), ("bare", 2), ("single", 2)]
    assert seen(rows) == [
        (name, op, hosts, samples)
        for name in ("bare", "single")
        for op, hosts, samples in (("gather", 2, 2), ("allreduce", 1, 0), ("gather", 3, 2), ("allreduce", 2, 2))
    ]
    assert {row.note for row in rows if row.hosts == 1} == {matrix.ALONE}
    assert {row.layer for row in rows} == {"shell"}
    assert "8 cells of up to 2 systems, about" in said.getvalue()


def test_a_set_up_that_is_missing_has_rows_with_the_reason_and_the_rest_goes_on(
    place: Place, said: io.StringIO
) -> None:
    rows = measure("cross", "bare", workers=[2])
    assert place.opened == [("bare", 3), ("bare", 2)]
    assert seen(rows) == [
        ("cross", "gather", 3, 0),
        ("cross", "allreduce", 2, 0),
        ("bare", "gather", 3, 2),
        ("bare", "allreduce", 2, 2),
    ]
    assert {row.note for row in rows if row.container == "cross"} == {MISSING}
    assert said.getvalue().count(MISSING) == 1


def test_a_system_that_fails_or_is_missing_has_rows_with_the_reason(place: Place, said: io.StringIO) -> None:
    rows = measure("bare", systems=["unavailable", "wrong", "good"], workers=[2])
    notes = {row.system: row.note for row in rows if row.op == "gather"}
    assert notes["good"] == ""
    assert notes["unavailable"] == "there is no wheel for this machine"
    assert "element 3 is off" in notes["wrong"]
    assert said.getvalue().count("unavailable can't run here") == 1
    assert place.opened


def test_a_resumed_run_measures_only_what_is_missing(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    measure("bare", workers=[2], results=Results(out))
    first = out.read_text()
    place.missing.clear()
    rows = measure("bare", "cross", workers=[2], results=Results(out, resume=True))
    assert out.read_text().startswith(first)
    assert seen(rows)[2:] == [("cross", "gather", 3, 2), ("cross", "allreduce", 2, 2)]


def test_rows_with_samples_stay_when_their_set_up_is_gone(place: Place, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    place.missing.clear()
    measure("cross", workers=[2], results=Results(out))
    place.missing.add("cross")
    rows = measure("cross", workers=[2], results=Results(out, resume=True))
    assert seen(rows) == [("cross", "gather", 3, 2), ("cross", "allreduce", 2, 2)]


def test_transports_are_determined_with_the_most_workers_once(
    place: Place,
    tmp_path: Path,
    _watched: list[int],  # noqa: PT019 - its value matters here
) -> None:
    out = tmp_path / "rows.jsonl"
    cells = matrix.cells(["bare"], ["gather"], [1, 2], 1 << 20)
    settings = run.Settings(["good"], cells, repeats=1, install=False)
    rows = run.measure(settings, Results(out))
    assert _watched == [2 << 20], "two workers send an array each; one worker has the same transports"
    told = [row for row in rows if row.system != WIRE]
    assert [row.transport for row in told] == [["CMA"], ["CMA"]]
    assert {row.lab[evidence.FIELD]["workers"] for row in told} == {2}
    assert all(not row.transport for row in rows if row.system == WIRE)
    more = matrix.cells(["bare"], ["gather"], [1, 2, 3], 1 << 20)
    run.measure(run.Settings(["good"], more, repeats=1, install=False), Results(out, resume=True))
    assert _watched == [2 << 20, 3 << 20], "more workers may use other transports"
    assert place.opened


def test_transports_are_known_to_a_resumed_run_for_the_same_size(
    place: Place,
    tmp_path: Path,
    _watched: list[int],  # noqa: PT019 - its value matters here
) -> None:
    out = tmp_path / "rows.jsonl"
    for workers, nbytes in ((2, 1 << 20), (1, 1 << 20), (1, 2 << 20)):
        cells = matrix.cells(["bare"], ["gather"], [workers], nbytes)
        run.measure(run.Settings(["good"], cells, repeats=1, install=False), Results(out, resume=out.exists()))
    assert _watched == [2 << 20, 2 << 20], "another size is watched again: one worker sends 2 MiB"
    assert place.opened


def test_a_transport_that_can_t_be_determined_has_the_reason(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: Any) -> Transport:  # noqa: ANN401
        raise OSError("no /proc")

    monkeypatch.setattr(transport, "used", used)
    rows = measure("bare", workers=[2])
    row = next(row for row in rows if row.system == "good" and row.op == "gather")
    assert row.samples
    assert not row.transport
    assert evidence.described(row.lab[evidence.FIELD]) == "no /proc"
    assert place.opened


def test_evidence_is_described_in_words() -> None:
    found = {"workers": 4, "payload_bytes": 4 << 20, "interface_bytes": 5 << 20, "loopback_bytes": 100, "cma_bytes": -1}
    assert evidence.described(found) == "4.00 MiB to move with 4 workers: 5.00 MiB through network interfaces"
    found |= {"interface_bytes": 0, "shared_segments": 2, "shared_touched_bytes": 1 << 20, "cma_refused": 1}
    assert evidence.described(found).endswith("1.00 MiB used of 2 shared mappings, 1 call of CMA refused")
    ring = found | {"shared_touched_bytes": 1 << 18, "cma_bytes": 0, "cma_refused": 0}
    assert evidence.described(ring).endswith("256 KiB used of 2 shared mappings (by elimination)")
    assert "elimination" not in evidence.described(ring | {"cma_bytes": 4 << 20})


def test_measurements_that_do_not_fit_are_announced(place: Place, said: io.StringIO) -> None:
    cells = matrix.cells(["cross"], ["gather"], [4], 1 << 40)
    rows = run.measure(run.Settings(["good"], cells, repeats=1, install=False), Results(None))
    assert "2 of 2 measurements do not fit into" in said.getvalue()
    assert [row.note for row in rows] == [MISSING, MISSING]
    assert not place.opened
