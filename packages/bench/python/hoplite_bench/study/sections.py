"""The tables of a study's report: breakdown, training, best and worst, each next to the published figures.

Figures of this machine are compared with published ones only as ratios inside one set-up, or between two set-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, words
from hoplite_bench.markdown import Notes
from hoplite_bench.study import matrix, paper
from hoplite_bench.study.collected import Contender, best, contender_of, deviation, measured
from hoplite_bench.tables import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Study

# Parts of a breakdown, with the titles of their columns.
PARTS = {"collective": "collective", "staging": "staging copies", "send": "send"}
TRAINING_PARTS = {
    "broadcast": "broadcast",
    "gather": "gather",
    "average": "average",
    "collective": "allreduce",
    "train": "computation",
}
# Operations of the parts of training, in tables 11 and 12.
TRAINED_AS = {
    "broadcast": ("train-ps", "broadcast"),
    "gather": ("train-ps", "gather"),
    "allreduce": ("train-allreduce", "collective"),
}
GROUPS = {"shell": "shell", "torch": "PyTorch", "training": "PyTorch, training"}
NONE = "-"


def breakdown(study: Study, op: str) -> list[str]:
    """The parts of an operation for each set-up and contender of the shell, as in tables 2 to 4."""
    number = paper.TABLES.get(op)
    published = paper.SHELL.get(op, {})
    notes = Notes()
    rows = []
    for container in study.containers:
        own = study.cell(container, op, matrix.SHELL)
        first = best(study.competing(container, op, matrix.SHELL))
        theirs = published.get(container, {})
        theirs_best = min((parts.total for parts in theirs.values()), default=None)
        for row in own:
            line = [matrix.CONTAINERS[container], markdown.variant(row)]
            if not row.samples or first is None:
                line += [f"no figure{notes.mark(f'{words.name(row.system)}: {row.note}')}", *[NONE] * 4]
            else:
                line += [_part(row, part) for part in PARTS]
                line += [_total(row), f"{words.number(median(row) / median(first))}×"]
            line.append(_published_ratio(theirs.get(row.system), theirs_best, notes))
            rows.append(line)
    title = f"Table {number} of the published study" if number else "Not in the published study's tables"
    header = ["set-up", "library", *PARTS.values(), "total", "× fastest", "published × fastest"]
    return [f"### {words.title(op)}", "", f"{title}.", "", *markdown.table(header, rows), *notes.lines()]


def _published_ratio(parts: paper.Parts | None, fastest: float | None, notes: Notes) -> str:
    if parts is None or fastest is None:
        return NONE
    mark = notes.mark(f"Published, perhaps an error of the source: {parts.suspect}.") if parts.suspect else ""
    return f"{words.number(parts.total / fastest)}×{mark}"


def _part(row: Row, part: str) -> str:
    """Seconds of a part and its share of the total."""
    value = row.breakdown.get(part)
    if value is None:
        return NONE
    return f"{words.seconds(value)} ({percent(value / median(row))})"


def percent(share: float) -> str:
    """Formats a share: 0.123 is "12 %"."""
    return f"{100 * share:.0f} %"


def _total(row: Row) -> str:
    return f"{words.seconds(median(row))} ±{percent(deviation(row))}"


def training(study: Study, op: str, number: int, title: str) -> list[str]:
    """One epoch of training for each set-up and contender, as in tables 5 and 6."""
    notes = Notes()
    of_bare = {contender_of(row): row for row in measured(study.cell("bare", op, matrix.TORCH))}
    published = paper.TRAINED[op]
    rows = []
    parts = [part for part in TRAINING_PARTS if any(part in row.breakdown for row in study.rows if row.op == op)]
    for container in study.containers:
        for row in study.cell(container, op, matrix.TORCH):
            line = [matrix.CONTAINERS[container], markdown.variant(row)]
            if not row.samples:
                line += [f"no figure{notes.mark(f'{words.name(row.system)}: {row.note}')}", *[NONE] * (len(parts) + 1)]
            else:
                line += [_epoch(row.breakdown.get(part)) for part in parts]
                line += [_epoch(median(row)), _over(row, of_bare.get(contender_of(row)))]
            theirs, bare = published[container].get(row.system), published["bare"].get(row.system)
            line.append(f"{words.number(theirs.total / bare.total)}×" if theirs and bare else NONE)
            rows.append(line)
    if not rows:
        return []
    header = ["set-up", "library", *(TRAINING_PARTS[part] for part in parts), "epoch", "× bare", "published × bare"]
    return [
        f"### {title}",
        "",
        f"Table {number} of the published study. Times of {paper.STEPS} steps, each the median of the measured steps.",
        "",
        *markdown.table(header, rows),
        *notes.lines(),
    ]


def _epoch(seconds: float | None) -> str:
    return NONE if seconds is None else words.seconds(seconds * paper.STEPS)


def _over(row: Row, bare: Row | None) -> str:
    return NONE if bare is None else f"{words.number(median(row) / median(bare))}×"


def extremes(study: Study) -> list[str]:
    """The best and the worst set-up and library of each operation, as in tables 7 to 12."""
    rows = []
    for group, (first, second, published) in paper.EXTREMES.items():
        for op in [*published, *(["allgather"] if group != "training" else [])]:
            found = _candidates(study, group, op)
            if not found:
                continue
            low, high = min(found, key=lambda one: one[1]), max(found, key=lambda one: one[1])
            line = [f"{op} ({GROUPS[group]})", f"{first} and {second}" if op in published else NONE]
            line += [f"{_where(low[0])}: {_time(low, group)}", f"{_where(high[0])}: {_time(high, group)}"]
            line.append(f"{words.number(high[1] / low[1])}×")
            if op in published:
                least, most = published[op]
                line += [_published(least), _published(most), f"{words.number(most.seconds / least.seconds)}×"]
            else:
                line += [NONE] * 3
            rows.append(line)
    header = ["operation", "tables", "best", "worst", "ratio", "published best", "published worst", "published ratio"]
    return [
        "## Best and worst",
        "",
        (
            f"Tables 7 to 12 of the published study: the fastest and the slowest of all set-ups and libraries, with "
            f"{words.count(study.workers, 'worker')}. A time of training is that of {paper.STEPS} steps."
        ),
        "",
        *markdown.table(header, rows),
    ]


def _candidates(study: Study, group: str, op: str) -> list[tuple[Row, float]]:
    """The rows of an operation with their seconds; of training, those of a part."""
    layer = matrix.TORCH if group == "training" else group
    told, part = TRAINED_AS[op] if group == "training" else (op, "")
    rows = [row for container in study.containers for row in measured(study.competing(container, told, layer))]
    seconds: Callable[[Row], float | None] = (lambda row: row.breakdown.get(part)) if part else median
    return [(row, value) for row in rows if (value := seconds(row)) is not None]


def _where(row: Row) -> str:
    return f"{markdown.variant(row)}, {row.container}"


def _time(found: tuple[Row, float], group: str) -> str:
    return words.seconds(found[1] * (paper.STEPS if group == "training" else 1))


def _published(one: paper.Extreme) -> str:
    return f"{one.library}, {one.container}"


def times(study: Study) -> list[str]:
    """Every median with its spread, in expandable tables: a row per set-up, number of workers and contender."""
    lines = []
    for layer in study.layers:
        for op in (*matrix.OPS, *matrix.TRAINING):
            contenders = study.contenders(layer, [op])
            if contenders:
                lines += markdown.folded(f"{words.title(op)}, {layer}", _times(study, op, layer, contenders))
    return ["## All times", "", *lines]


def _times(study: Study, op: str, layer: str, contenders: Sequence[Contender]) -> list[str]:
    notes = Notes()
    rows = []
    counts = sorted({matrix.workers_of(op, row.hosts) for row in study.rows if row.op == op})
    for container in study.containers:
        for workers in counts:
            own: Mapping[Contender, Row] = {contender_of(row): row for row in study.cell(container, op, layer, workers)}
            if own:
                cells = [markdown.spread(own.get(contender), notes) for contender in contenders]
                rows.append([f"{matrix.CONTAINERS[container]}, {words.count(workers, 'worker')}", *cells])
    return [*markdown.table(["", *map(str, contenders)], rows), *notes.lines()]
