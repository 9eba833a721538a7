"""Rows of a measurement: they survive a round trip, and a malformed one is reported by file, line and field."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from bench_rows import all_kinds, row
from hoplite_bench.row import OMITTED, BadRow, Row, from_line, read, spread, to_line

if TYPE_CHECKING:
    from pathlib import Path

# A row that is not of `bench steady` or `study` is written without the facts of one.
FIELDS = [field.name for field in dataclasses.fields(Row) if field.name not in OMITTED]
# The facts of a row of `study`.
STUDY: dict[str, Any] = {
    "container": "single",
    "layer": "shell",
    "transport": ["shared memory", "CMA"],
    "breakdown": {"collective": 0.25, "staging": 0.5},
}


def line(**changes: Any) -> str:  # noqa: ANN401
    """The line of a row with some fields replaced."""
    return json.dumps(dataclasses.asdict(row()) | changes)


def refusal(folder: Path, text: str) -> str:
    """The error of reading a file whose third line is this one, after a valid and a blank line."""
    path = folder / "rows.jsonl"
    path.write_text(f"{to_line(row())}\n\n{text}\n")
    with pytest.raises(BadRow) as refused:
        read([path])
    message = str(refused.value)
    assert message.startswith(f"{path}:3: ")
    return message


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    rows = all_kinds()
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("".join(f"{to_line(one)}\n" for one in rows[:7]))
    second.write_text("\n" + "\n".join(to_line(one) for one in rows[7:]))
    assert read([first, second]) == rows


def test_a_line_has_the_fields_in_the_order_of_the_row() -> None:
    assert list(json.loads(to_line(row()))) == FIELDS


def test_the_facts_of_the_study_are_written_and_read_again() -> None:
    studied = row(**STUDY)
    assert from_line(to_line(studied)) == studied
    assert {name: json.loads(to_line(studied))[name] for name in STUDY} == STUDY


def test_whole_numbers_may_stand_where_seconds_do() -> None:
    assert from_line(line(samples=[1, 2, 3], seconds={"min": 1, "median": 2, "max": 3}, arrival_s=0)).samples == [
        1,
        2,
        3,
    ]


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    fields = dataclasses.asdict(row())
    del fields["wire_ratio"]
    assert refusal(tmp_path, json.dumps(fields)).endswith("lacks the fields wire_ratio")


def test_a_row_from_before_there_were_several_inputs_has_one() -> None:
    fields = dataclasses.asdict(row())
    del fields["inputs"]
    assert from_line(json.dumps(fields)).inputs == 1


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    assert "has unknown fields: colour, weight" in refusal(tmp_path, line(weight=1, colour=2))


# One field of each kind.
WRONG: dict[str, list[Any]] = {
    "system": [None],
    "hosts": [None, "8", 8.0, True, -1],
    "arrival_s": [None, "0", True, -0.1, float("inf")],
    "seconds": [0.5, {"min": "1"}, {"min": -1.0}],
    "samples": [None, ["0.1"], [-1.0], [float("nan")]],
    "wire_ratio": ["1", -1],
    "verified": [None, 1],
    "peak_rss_bytes": ["1", 1.5],
    "machine": [None, []],
    "transport": [None, "TCP", [1]],
    "breakdown": [None, {"staging": "1"}],
}


def test_a_value_of_the_wrong_kind_is_named_with_its_field(tmp_path: Path) -> None:
    for name, values in WRONG.items():
        for value in values:
            assert f": {name} is {value!r}, not " in refusal(tmp_path, line(**{name: value}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[1]", "a list is not a row"),
        ('"row"', "a str is not a row"),
        ("null", "a NoneType is not a row"),
        (line(seconds={"min": 0.011, "median": 0.0115, "max": 0.0125}), "but the row's samples result in"),
        (line(seconds={"median": 0.012}), "but the row's samples result in"),
        (line(seconds=None), "seconds are None, but the row's samples result in"),
        (line(samples=[], note="too slow"), "but the row's samples result in None"),
        (line(samples=[], seconds=None), "neither samples nor a note with the reason"),
    ],
)
def test_what_does_not_agree_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


def test_a_row_that_could_not_run_needs_only_its_reason() -> None:
    failed = row(samples=[], verified=False, wire_ratio=None, cpu_seconds=None, peak_rss_bytes=None, note="no binary")
    assert from_line(to_line(failed)) == failed


def test_the_spread_of_an_even_number_of_samples_has_its_middle_between_two() -> None:
    assert spread([4.0, 1.0, 2.0, 3.0]) == {"min": 1.0, "median": 2.5, "max": 4.0}
    assert spread([]) is None


def test_cells_of_a_run_differ_in_their_key() -> None:
    rows = [one for one in all_kinds() if one.hosts == 8]
    assert len({one.key() for one in rows}) == len(rows)
