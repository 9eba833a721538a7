"""`hoplite study` as a command: refused options, files that are not rows, and a small run for scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import bench_ports
from hoplite.errors import HopliteError
from hoplite.tools.cli.output import Failure
from hoplite_bench.cli import bench_options
from hoplite_bench.cli.study import study
from hoplite_bench.row import read, to_line
from hoplite_bench.study import matrix, run
from study_rows import matrix_rows, study_row

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

bench_ports.take()


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(study, [str(word) for word in arguments])


def refused(*arguments: object) -> str:
    """The message with which a command is refused, with its next step."""
    done = invoke(*arguments)
    assert done.exit_code != 0
    if isinstance(done.exception, Failure):
        return f"{done.exception}; try: {done.exception.step}"
    return str(done.exception) if isinstance(done.exception, HopliteError) else done.output


@pytest.fixture(autouse=True)
def _not_measured(monkeypatch: pytest.MonkeyPatch) -> list[run.Settings]:
    """Lists what would be measured."""
    asked: list[run.Settings] = []

    def measure(settings: run.Settings, _results: Any) -> list[Any]:  # noqa: ANN401
        asked.append(settings)
        return []

    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(bench_options, "refuse_debug_build", lambda: None)
    return asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--containers", "docker"], "unknown container set-up 'docker'"),
        (["--systems", "glo"], "did you mean gloo"),
        (["--systems", "torch-mpi", "--layers", "shell"], "add torch to --layers"),
        (["--ops", "scatter"], "unknown operation 'scatter'"),
        (["--ops", "train-ps", "--layers", "shell"], "training is of PyTorch only"),
        (["--workers", "0"], "0 workers are out of range"),
        (["--bytes", "6"], "not an array of float32"),
        (["--quick", "--full"], "contradict each other"),
        (["--full", "--bytes", "1MiB"], "omit --bytes"),
        (["--resume"], "add --out DIR"),
        (["--quick", "report", "rows"], "can't precede report"),
    ],
)
def test_bad_options_are_refused(options: list[str], message: str) -> None:
    assert message in refused(*options)


def test_a_folder_that_can_t_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path,
    _not_measured: list[run.Settings],  # noqa: PT019 - its value matters here
) -> None:
    (tmp_path / "file").write_text("")
    assert "can't create the folder" in refused("--out", tmp_path / "file" / "study")
    assert "is a file" in refused("--out", tmp_path / "file")
    assert "can't create the folder" in refused("--out", "/proc/study")
    (tmp_path / "rows.jsonl").write_text(to_line(study_row("mpich", "bare", "gather", 1)) + "\n")
    assert "already has rows: add --resume" in refused("--out", tmp_path)
    assert not _not_measured


def test_the_default_is_the_published_matrix(_not_measured: list[run.Settings]) -> None:  # noqa: PT019
    assert invoke().exit_code == 0
    (settings,) = _not_measured
    assert settings.repeats == 10
    assert {cell.container for cell in settings.cells} == set(matrix.CONTAINERS)
    assert {(cell.op, cell.workers) for cell in settings.cells if cell.op in matrix.OPS} == {
        (op, workers) for op in matrix.OPS for workers in (1, 2, 3, 4)
    }
    assert {"mpich", "openmpi", "gloo", "hoplite", "torch-mpi", "torch-gloo", "torch-hoplite"} <= set(settings.systems)
    assert {cell.nbytes for cell in settings.cells if cell.op in matrix.OPS} == {64 << 20}


def test_quick_is_a_part_of_it_that_options_can_change(_not_measured: list[run.Settings]) -> None:  # noqa: PT019
    assert invoke("--quick").exit_code == 0
    assert invoke("--quick", "--containers", "bare", "--systems", "gloo", "--repeats", "1").exit_code == 0
    assert invoke("--full").exit_code == 0
    quick, less, full = _not_measured
    assert {cell.workers for cell in quick.cells} == {1, 2}
    assert len({cell.container for cell in quick.cells}) == 2
    assert (quick.repeats, {cell.nbytes for cell in quick.cells}) == (3, {8 << 20})
    assert (list(less.systems), less.repeats, {cell.container for cell in less.cells}) == (["gloo"], 1, {"bare"})
    assert 10**9 in {cell.nbytes for cell in full.cells}


def test_a_report_of_a_folder_or_a_file(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(to_line(row) + "\n" for row in matrix_rows(workers=(2,))))
    for source in (tmp_path, rows):
        done = invoke("report", source, "--out", tmp_path / "report", "--no-plots")
        assert (done.exit_code, done.output) == (0, f"{tmp_path / 'report' / 'report.md'}\n")


def test_bad_rows_are_refused_with_a_next_step(tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "report"
    assert "does not exist" in refused("report", tmp_path / "none", "--out", out)
    assert "rows.jsonl does not exist; try: pass the folder" in refused("report", tmp_path, "--out", out)
    rows.write_text(to_line(study_row("mpich", "bare", "gather", 1)) + "\n{broken\n")
    assert f"{rows}:2: not JSON" in refused("report", rows, "--out", out)
    other = study_row("mpich", "cross", "gather", 1, machine={"cores": 64})
    rows.write_text("".join(to_line(row) + "\n" for row in (study_row("mpich", "bare", "gather", 1), other)))
    assert "from 2 machines" in refused("report", rows, "--out", out)
    rows.write_text(to_line(other) + "\n")
    (tmp_path / "file").write_text("")
    assert "set another folder with --out" in refused("report", rows, "--out", tmp_path / "file" / "out", "--no-plots")
    assert not out.exists()


def test_the_rows_of_a_small_run_have_the_fields_of_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bench_options, "refuse_debug_build", lambda: None)
    small = ["--containers", "bare", "--systems", "hoplite", "--ops", "gather,allreduce", "--workers", "2"]
    done = invoke("--quick", *small, "--bytes", "1MiB", "--repeats", "2", "--json", "--out", tmp_path / "study")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert len(told) == 6, "two variants and the wire, in two cells"
    for fields in told:
        assert (fields["container"], len(fields["samples"]), fields["verified"]) == ("bare", 2, True)
        assert fields["layer"] == "shell"
        assert fields["repeats"] == 2
    assert {name for fields in told for name in fields["breakdown"]} >= {"collective", "staging"}
    assert all(fields["lab"]["transport_evidence"] for fields in told if fields["system"] == "hoplite")
    written = read([tmp_path / "study" / "rows.jsonl"])
    assert sorted(map(to_line, written)) == sorted(to_line(type(written[0])(**fields)) for fields in told)
