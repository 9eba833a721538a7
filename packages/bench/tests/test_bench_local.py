"""Operations of a single host: a row for every case, whatever is missing, and no samples of wrong results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from click.testing import CliRunner

from hoplite.errors import HopliteError, InvalidArgument
from hoplite_bench import local, local_cases
from hoplite_bench.cli.bench_local import local as command
from hoplite_bench.environments import Environments
from hoplite_bench.row import from_line, read, to_line
from hoplite_bench.systems import Unavailable, hoplite_cpp

if TYPE_CHECKING:
    from hoplite_bench.row import Row

SIZE = 4096
OPS = {"memcpy", "put", "get", "get_repeated", "create_seal", "put_get", "reduce", "write_location", "look_up"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("peers") is None:
        monkeypatch.setattr(hoplite_cpp, "found", no_library)
    monkeypatch.setattr(local, "SAMPLE_S", 0.002)
    monkeypatch.setattr(local_cases, "IN_FLIGHT_EACH", 2)


def no_library() -> NoReturn:
    raise Unavailable("libhoplite is not installed")


def measured(folder: Path, repeats: int) -> list[Row]:
    return list(local.measure(sizes=[SIZE], repeats=repeats, environments=Environments(folder, install=False)))


def test_every_case_is_a_row_with_a_note_if_it_is_not_installed(tmp_path: Path) -> None:
    rows = measured(tmp_path, 2)
    assert {row.op for row in rows} == OPS
    assert len({row.key() for row in rows}) == len(rows)
    for row in rows:
        assert from_line(to_line(row)) == row
        assert (row.hosts, row.wire_ratio) == (1, None)
        if row.system in ("ray", "hoplite-cpp"):
            assert row.seconds is None
            assert "is not installed" in row.note
        else:
            assert len(row.samples) == 2, row
            assert row.verified
            assert row.version


def test_a_wrong_result_is_a_row_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cases, "wrong", lambda *_, **__: "element 3 of 1024 is 5.0 instead of 4.0")
    rows = measured(tmp_path, 1)
    for row in rows:
        if row.op == "reduce":
            assert row.note == "WrongResult: element 3 of 1024 is 5.0 instead of 4.0"
            assert not row.verified
            assert row.seconds is None
        elif row.system == "hoplite":
            assert row.verified


@pytest.mark.peers
@pytest.mark.timeout(120)  # the first time it is compiled
def test_the_program_in_cpp_measures_the_operations_of_python(tmp_path: Path) -> None:
    try:
        hoplite_cpp.found()
    except Unavailable as error:
        pytest.skip(str(error))
    ours = {(row.op, row.variant): row for row in measured(tmp_path, 1) if row.system == "hoplite-cpp"}
    assert set(ours) == {(op, variant) for op in local_cases.CPP_OPS for variant in ("embedded", "attached")}
    assert [row.note for row in ours.values() if not row.verified] == []


def test_a_program_that_does_not_start_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "compiled_program", lambda *_: Path("/bin/false"))
    rows = [row for row in measured(tmp_path, 1) if row.system == "hoplite-cpp"]
    assert len(rows) == 2 * len(local_cases.CPP_OPS)
    assert all("the program in C++" in row.note and not row.samples for row in rows)


def test_a_debug_build_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoplite.__build__", "debug")
    with pytest.raises(HopliteError, match="a debug build is too slow to measure"):
        measured(tmp_path, 1)


def test_a_size_that_is_no_array_of_float32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="1023 bytes are not a whole number of float32"):
        next(local.measure(sizes=[1023], environments=Environments(tmp_path)))


def test_the_command_prints_what_it_writes_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    out = tmp_path / "rows.jsonl"
    options = ["--sizes", "4KiB", "--repeats", "1", "--no-install", "--out", str(out), "--json"]
    done = CliRunner().invoke(command, options, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [from_line(json.dumps(row)) for row in json.loads(done.stdout)] == read([out])


def test_a_size_that_is_not_understood_is_named() -> None:
    done = CliRunner().invoke(command, ["--sizes", "4KiB,big"])
    assert done.exit_code == 2
    assert "'big' is not a size" in done.output
