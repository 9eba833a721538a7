"""The sections on the fastest library: of each operation in each set-up, and where the set-up changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, words
from hoplite_bench.study import matrix, sections
from hoplite_bench.study.collected import CLEAR, Case
from hoplite_bench.study.times import SAMPLES_MIN, best, contender_of, measured, time_of
from hoplite_bench.tables import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Change, Study


def fastest(study: Study) -> list[str]:
    """The fastest library of each operation in each set-up, with the most workers."""
    lines = []
    for layer in study.layers:
        for op in (*matrix.OPS, *matrix.TRAINING):
            case = Case(layer, op, study.workers, study.has_gpu(layer, op))
            cells = [study.of(case, container) for container in study.containers]
            if any(map(measured, cells)):
                lines.append([str(case), *map(_first, cells)])
    if not lines:
        return []
    text = (
        "The median of the fastest library, what moved its data, and after *or* the libraries that are not known to be "
        "slower, because the confidence intervals overlap. Of training, the whole step counts."
    )
    return [
        "## Fastest library in each set-up",
        "",
        text,
        "",
        *markdown.table(["operation", *study.containers], lines),
    ]


def _first(rows: list[Row]) -> str:
    first = best(rows)
    if first is None:
        return sections.NONE
    others = [row for row in measured(rows) if row is not first and time_of(row).overlaps(time_of(first))]
    also = f"<br>or {', '.join(_name(row) for row in others)}" if others else ""
    return _winner(first) + also


def changes(study: Study) -> list[str]:
    """Names the cells in which the set-up changes the fastest library, with the transports as evidence."""
    cases, found = study.cases(), study.changes()
    least = sections.percent(CLEAR - 1)
    lines = ["## Where the container set-up changes the fastest library", ""]
    if not cases:
        text = f"Not tested: in no operation, two libraries have {SAMPLES_MIN} samples or more in two set-ups."
        return [*lines, text, ""]
    if not found:
        text = (
            f"Nowhere in {words.count(len(cases), 'compared case')} (operation, number of workers and layer): one "
            f"library is the fastest in all set-ups, or the difference is below {least} or within the spread of the "
            "samples."
        )
        return [*lines, text, ""]
    grouped = _grouped(found)
    text = (
        f"In {len(grouped)} of {words.count(len(cases), 'compared case')} (operation, number of workers and layer). "
        "A case is compared if two libraries have times in two set-ups. The table has the fastest library of each "
        f"set-up. For two set-ups, the fastest library of each takes at least {least} longer than that of the other in "
        "the other's set-up, and their confidence intervals do not overlap. × is that ratio, the smaller of the two "
        "directions, for the pair of set-ups in which it is largest. Both times of a ratio are from one set-up, where "
        "systems took turns."
    )
    rows = []
    for case, own in grouped.items():
        cells = [best(study.of(case, container)) for container in study.containers]
        top = own[0]
        pair = f"{words.number(top.ratio)}× {top.one.container} and {top.other.container}"
        rows.append([str(case), *(_winner(row) for row in cells), pair])
    return [*lines, text, "", *markdown.table(["operation", *study.containers, "×"], rows)]


def _grouped(changes: Sequence[Change]) -> dict[Case, list[Change]]:
    found: dict[Case, list[Change]] = {}
    for change in changes:
        found.setdefault(change.case, []).append(change)
    return found


def _winner(row: Row | None) -> str:
    if row is None:
        return sections.NONE
    by = f"<br>{' + '.join(row.transport)}" if row.transport else ""
    return f"{_name(row)} {words.seconds(median(row))}{by}"


def _name(row: Row) -> str:
    return markdown.plain(str(contender_of(row)))
