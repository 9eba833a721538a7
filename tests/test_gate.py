"""The comparison of the performance gate: verdicts, spreads, the record and its acceptance. Nothing is measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import gate.__main__ as command
from gate import conditions, record, table
from gate.figures import NODES, WIRE, Failed, Figure
from gate.record import Recorded, Verdict
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

COMMIT, DATE = "0123456789ab", "2030-01-02"
FIELDS: dict[str, Any] = {
    "value": 2.0, "spread": 0.1, "unit": WIRE, "better": "lower", "runs": 3, "commit": COMMIT, "date": DATE,
    "reason": "first",
}  # fmt: skip


def recorded(value: float = 2.0, spread: float = 0.1, **other: Any) -> Recorded:  # noqa: ANN401 - any field
    fields: dict[str, Any] = {
        "unit": WIRE,
        "better": "lower",
        "runs": 3,
        "commit": COMMIT,
        "date": DATE,
        "reason": "first",
    }
    return Recorded(value=value, spread=spread, **(fields | other))


def verdict(value: float, known: Recorded | None, **other: Any) -> Verdict:  # noqa: ANN401 - any field
    figure = Figure("cell/figure", [value], **({"unit": WIRE} | other))
    (one,) = record.compare([figure], {} if known is None else {"cell/figure": known}, ["cell"])
    return one.verdict


@pytest.mark.parametrize(
    ("value", "better", "expected"),
    [
        (2.0, "lower", Verdict.OK),
        (2.19, "lower", Verdict.OK),
        (2.21, "lower", Verdict.WORSE),
        (1.83, "lower", Verdict.OK),
        (1.80, "lower", Verdict.BETTER),
        (2.21, "higher", Verdict.BETTER),
        (1.80, "higher", Verdict.WORSE),
    ],
)
def test_a_figure_is_worse_only_beyond_its_spread(value: float, better: str, expected: Verdict) -> None:
    assert verdict(value, recorded(better=better), better=better) is expected


def test_a_count_of_nodes_has_no_spread() -> None:
    known = recorded(0.0, 0.0, unit=NODES)
    assert verdict(0.0, known, unit=NODES) is Verdict.OK
    assert verdict(1.0, known, unit=NODES) is Verdict.WORSE
    assert verdict(0.0, recorded(1.0, 0.0, unit=NODES), unit=NODES) is Verdict.BETTER


def test_a_figure_without_a_record_fails() -> None:
    assert verdict(1.0, None) is Verdict.NEW
    assert verdict(2.0, recorded(unit="× MPICH")) is Verdict.NEW
    assert Verdict.NEW.fails


def test_a_recorded_figure_of_a_chosen_cell_that_was_not_measured_fails() -> None:
    record_ = {"cell/figure": recorded(), "other/figure": recorded()}
    (one,) = record.compare([], record_, ["cell"])
    assert (one.name, one.verdict) == ("cell/figure", Verdict.MISSING)
    assert one.verdict.fails


def test_the_spread_covers_repeats_and_runs() -> None:
    assert record.spread_of([[1.0]], WIRE) == record.SPREAD_MIN
    assert record.spread_of([[1.0], [1.1], [1.05]], WIRE) == pytest.approx(0.2)
    steady, noisy = [1.0] * 9, [0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2]
    assert record.spread_of([steady], WIRE) < record.spread_of([noisy], WIRE) < record.spread_of([noisy[::4]], WIRE)
    assert record.spread_of([[1.0, 1.2]], WIRE) > record.spread_of([[1.0, 1.1]], WIRE) > record.SPREAD_MIN
    assert record.spread_of([[0.0], [1.0]], NODES) == 0


def accepted(known: dict[str, Recorded], *figures: Figure, runs: int = 1, reason: str = "why") -> dict[str, Recorded]:
    values = {figure.name: [figure.values] * runs for figure in figures}
    return record.accept(known, figures, values, commit=COMMIT, date=DATE, reason=reason)


def test_accepted_figures_keep_a_bounded_history() -> None:
    known: dict[str, Recorded] = {}
    for number in range(1, record.HISTORY_MAX + 3):
        known = accepted(known, Figure("cell/figure", [float(number)], WIRE), reason=f"reason {number}")
    one = known["cell/figure"]
    assert (one.value, one.reason, one.commit, one.date) == (record.HISTORY_MAX + 2, "reason 12", COMMIT, DATE)
    assert [old["reason"] for old in one.history] == [f"reason {number}" for number in range(11, 1, -1)]


def test_a_spread_shrinks_only_after_three_runs() -> None:
    known, figure = {"cell/figure": recorded(spread=0.5)}, Figure("cell/figure", [2.0], WIRE)
    assert accepted(known, figure, runs=2)["cell/figure"].spread == 0.5
    assert accepted(known, figure, runs=3)["cell/figure"].spread == record.SPREAD_MIN


def test_acceptance_replaces_only_the_measured_cells() -> None:
    known = {"cell/old": recorded(), "other/figure": recorded()}
    assert set(accepted(known, Figure("cell/figure", [1.0], WIRE))) == {"cell/figure", "other/figure"}


@pytest.mark.parametrize("reason", ["", " \n"])
def test_an_empty_reason_is_rejected(reason: str) -> None:
    with pytest.raises(HopliteError, match="ACCEPT is empty"):
        command.gate("", reason)


def test_changed_crates_are_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "changed_crates", lambda: ["crates/proto/src/lib.rs"])
    with pytest.raises(HopliteError, match=r"crates/proto/src/lib.rs differ"):
        command.gate("", "why")


def test_the_record_survives_its_file(tmp_path: Path) -> None:
    known = accepted({"cell/figure": recorded()}, Figure("cell/figure", [1.0, 3.0], WIRE))
    record.write(tmp_path / "gate.json", known)
    assert record.read(tmp_path / "gate.json") == known


def test_a_missing_record_has_a_next_step(tmp_path: Path) -> None:
    with pytest.raises(record.BadRecord, match=r"is missing: restore it .* ACCEPT"):
        record.read(tmp_path / "gate.json")


@pytest.mark.parametrize(
    "document",
    [
        "<<<<<<< HEAD",
        "[]",
        '{"figures": []}',
        "[" * 100_000,
        *(
            json.dumps({"figures": {"cell/figure": fields}})
            for fields in (
                3,
                {},
                FIELDS | {"value": "1"},
                FIELDS | {"value": -1},
                FIELDS | {"value": True},
                FIELDS | {"spread": float("nan")},
                FIELDS | {"better": "faster"},
                FIELDS | {"reason": None},
                FIELDS | {"history": {}},
                FIELDS | {"surplus": 1},
            )
        ),
    ],
)
def test_a_malformed_record_has_a_next_step(document: str, tmp_path: Path) -> None:
    path = tmp_path / "gate.json"
    path.write_text(document)
    with pytest.raises(record.BadRecord, match=r"gate.json is malformed: .*; restore it"):
        record.read(path)


def test_a_word_that_begins_no_cell_is_rejected() -> None:
    assert command.chosen("broadcast slow-first")[-1] == "slow-first"
    assert len(command.chosen("broadcast")) == 4
    assert command.chosen("") == command.CELLS
    with pytest.raises(HopliteError, match=r"no cell begins with 'slow-frist', did you mean slow-first\?"):
        command.chosen("slow-frist")


class Scripted:
    """A group of two cells, whose runs have scripted values; a text is an error."""

    def __init__(self, *runs: dict[str, float | str]) -> None:
        self.runs = list(runs)
        self.cells, self.needs_root = ["a", "b"], False
        self.measured: list[list[str]] = []

    def measure(self, cells: Collection[str]) -> Iterator[Figure | Failed]:
        self.measured.append(list(cells))
        for cell, value in self.runs.pop(0).items():
            if isinstance(value, str):
                raise HopliteError(value)
            yield Figure(f"{cell}/figure", [value], WIRE)


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Replaces all cells, and the record: both figures are 2 within 10 %."""
    group = Scripted()
    monkeypatch.setattr(command, "GROUPS", [group])
    monkeypatch.setattr(command, "CELLS", group.cells)
    monkeypatch.setattr(command, "RECORD", tmp_path / "gate.json")
    monkeypatch.setattr(command, "LOG", tmp_path / "runs.jsonl")
    monkeypatch.setattr(conditions, "ROOT", tmp_path)
    monkeypatch.setattr(conditions, "wait_idle", lambda: None)
    monkeypatch.setattr(conditions, "check", lambda **_: None)
    monkeypatch.setattr(conditions, "changed_crates", list)
    record.write(tmp_path / "gate.json", {"a/figure": recorded(), "b/figure": recorded()})
    return group


def test_figures_within_their_spread_are_green(scripted: Scripted) -> None:
    scripted.runs = [{"a": 2.1, "b": 1.0}]
    assert command.gate("", None) == 0


def test_a_figure_that_is_worse_twice_is_red(scripted: Scripted) -> None:
    scripted.runs = [{"a": 2.0, "b": 3.0}, {"b": 2.9}]
    assert command.gate("", None) == 1
    assert scripted.measured == [["a", "b"], ["b"]]


def test_a_figure_that_is_worse_once_is_green(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted.runs = [{"a": 2.0, "b": 3.0}, {"b": 2.0}]
    assert command.gate("", None) == 0
    assert "WORSE" not in capsys.readouterr().out


def test_a_failed_cell_keeps_the_figures_of_the_others(scripted: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    scripted.runs = [{"a": 2.0, "b": "the lab is gone"}]
    assert command.gate("", None) == 1
    out = capsys.readouterr().out
    assert "a/figure" in out
    assert "b         FAILED: HopliteError: the lab is gone" in out
    assert "MISSING" not in out


def test_acceptance_takes_all_runs_of_the_commit(scripted: Scripted) -> None:
    scripted.runs = [{"a": 2.0, "b": 2.0}, {"a": 2.1, "b": 2.0}, {"a": 2.2, "b": 4.0}]
    assert command.gate("", None) == 0
    assert command.gate("", None) == 0
    assert command.gate("", "b does more") == 0
    known = record.read(command.RECORD)
    assert (known["a/figure"].value, known["a/figure"].runs, known["a/figure"].reason) == (2.1, 3, "b does more")
    assert known["b/figure"].spread == 2.0


def test_the_table_has_a_line_for_each_figure() -> None:
    figures = [Figure("a/figure", [3.0], WIRE, shown="9 ms"), Figure("b/figure", [1.0], NODES)]
    known = {"a/figure": recorded(), "c/figure": recorded()}
    lines = list(table.lines(record.compare(figures, known, ["a", "b", "c"]), [Failed("c", "two\nlines")]))
    assert lines == [
        "figure    recorded  allowed  now                 verdict",
        "a/figure  2.00      ≤ 2.20   3.00 × wire (9 ms)  WORSE",
        "b/figure  -         -        1 nodes             NEW: accept it",
        "c         FAILED: two lines",
    ]
