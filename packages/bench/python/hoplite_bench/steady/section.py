"""The section of a report on steady runs: a table, figures, and the tenths of each run in an expandable part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, words
from hoplite_bench.markdown import Notes
from hoplite_bench.steady import summary
from hoplite_bench.steady.patterns import PATTERNS
from hoplite_bench.tables import unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.tables import Measurement, Place

INTRODUCTION = (
    "Long runs of communication patterns (`hoplite bench steady`). A step is the time from one new object of the "
    "server to the next. Its bound is the time that the busiest link needs for the bytes of a step, with dependent "
    "transfers in sequence. The column step has the median of the run, or the mean if steps overlap. The trend is the "
    "value of the second half divided by that of the first."
)


def section(measurement: Measurement, pictures: Sequence[str]) -> list[str]:
    """Returns lines of Markdown; empty if there are no such rows.

    Args:
        measurement: the rows of the report.
        pictures: lines that include the figures.
    """
    if not measurement.steady:
        return []
    runs = sorted(measurement.steady, key=lambda run: _order(run[1]))
    lines = ["## Steady state", "", INTRODUCTION, "", *pictures]
    several_commits = len(unique(row.commit for _, row in runs)) > 1
    for place, hosts, size in unique((place, row.hosts, row.bytes) for place, row in runs):
        own = [row for where, row in runs if (where, row.hosts, row.bytes) == (place, hosts, size)]
        lines += _group(place, hosts, size, own, commits=several_commits)
    return lines


def _group(place: Place, hosts: int, size: int, rows: Sequence[Row], *, commits: bool) -> list[str]:
    """The runs with objects of one size on one network."""
    notes = Notes()
    names = [_name(row, commit=commits) for row in rows]
    lines = []
    for name, row in zip(names, rows, strict=True):
        marks = "".join(notes.mark(remark) for remark in summary.remarks(row))
        lines.append([name + marks, *summary.cells(row)[2:]])
    tenths = max(len(summary.facts_of(row)["tenths"]) for row in rows)
    parts = []
    for name, row in zip(names, rows, strict=True):
        bound = summary.facts_of(row)["bound_s"]
        cells = [f"{words.number(one / bound)}×" for one in summary.facts_of(row)["tenths"]]
        parts.append([name, *cells, *["-"] * (tenths - len(cells))])
    return [
        f"### Objects of {words.size(size)}, {words.count(hosts, 'host')} ({place})",
        "",
        *markdown.table(["", *summary.COLUMNS[2:]], lines),
        *notes.lines(),
        *markdown.folded(
            "Step time in each tenth of a run, divided by the bound",
            markdown.table(["", *(str(number) for number in range(1, tenths + 1))], parts),
        ),
    ]


def _name(row: Row, *, commit: bool) -> str:
    """The title of a run: its pattern, deviations from the defaults, and its commit if there are several."""
    title = PATTERNS[row.op].title if row.op in PATTERNS else row.op
    more = [part for part in (row.variant, row.commit if commit else "") if part not in ("", markdown.DEFAULT)]
    return markdown.plain(", ".join([title, *more]))


def _order(row: Row) -> tuple[int, str]:
    known = list(PATTERNS)
    return (known.index(row.op) if row.op in known else len(known)), row.op
