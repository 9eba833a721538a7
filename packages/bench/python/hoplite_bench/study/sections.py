"""The tables of a study's report: breakdown, training, best and worst, each next to the published figures.

Figures of this machine are compared with published ones only as ratios inside one set-up, or between two set-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import markdown, words
from hoplite_bench.markdown import Notes
from hoplite_bench.row import STREAM, WIRE
from hoplite_bench.study import matrix, paper, times
from hoplite_bench.study.collected import Case
from hoplite_bench.study.times import Contender, best, contender_of, deviation, measured, published_time
from hoplite_bench.systems.base import TRAIN_ALLREDUCE, TRAIN_PS
from hoplite_bench.tables import median

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Study

# Parts of a breakdown, with the titles of their columns.
PARTS = {"collective": "collective", "staging": "staging copies", "send": "send"}
# Of training by operation; a part that begins with "of which" is inside those before it.
TRAINING_PARTS = {
    TRAIN_PS: {
        "train": "computation",
        "broadcast": "broadcast",
        "gather": "gather and average",
        "average": "of which average",
        "staging": "of which staging copies",
    },
    TRAIN_ALLREDUCE: {
        "train": "computation",
        "collective": "allreduce",
        "staging": "of which staging copies",
        "average": "average",
    },
}
# Columns of the totals of training, the last of which is compared, and why.
TOTALS: dict[str, dict[str, Callable[[Row], float]]] = {
    TRAIN_PS: {"epoch": median, "broadcast + gather": lambda row: published_time(row).middle},
    TRAIN_ALLREDUCE: {"epoch": median},
}
BASES = {
    TRAIN_PS: "The published times of training contain no computation, so × bare compares broadcast + gather.",
    TRAIN_ALLREDUCE: "× bare compares whole epochs, as the published table does.",
}
NOT_COMPARED = (
    "Not compared with the others: its inputs and results stay in the shared memory of a node, where programs view "
    "them, so nothing is copied between program and node."
)
# Operations of the parts of training, in tables 11 and 12.
TRAINED_AS = {
    "broadcast": (TRAIN_PS, "broadcast"),
    "gather": (TRAIN_PS, "gather"),
    "allreduce": (TRAIN_ALLREDUCE, "collective"),
}
GROUPS = {"shell": "shell", "torch": "PyTorch", "training": "PyTorch, training"}
NONE = "-"


def breakdown(study: Study, op: str) -> list[str]:
    """The parts of an operation for each set-up and contender, as in tables 2 to 4.

    They are of the shell, and on arrays in memory of GPUs, for which the shell has no system, of PyTorch.
    """
    number = paper.TABLES.get(op)
    lines = [f"Table {number} of the published study." if number else "Not in the published study's tables.", ""]
    if any(study.cell(container, op, matrix.SHELL) for container in study.containers):
        lines += _breakdown(study, op, matrix.SHELL, on_gpu=False)
    if study.has_gpu(matrix.TORCH, op):
        lines += ["Through PyTorch, with tensors in memory of a GPU:", ""]
        lines += _breakdown(study, op, matrix.TORCH, on_gpu=True)
    return [f"### {words.title(op)}", "", *lines]


def _breakdown(study: Study, op: str, layer: str, *, on_gpu: bool) -> list[str]:
    published = paper.SHELL.get(op, {})
    notes = Notes()
    rows = []
    for container in study.containers:
        compared = study.of(Case(layer, op, study.workers, on_gpu), container)
        first = best(compared)
        theirs = published.get(container, {})
        theirs_best = min((parts.total for parts in theirs.values() if not parts.suspect), default=None)
        for row in study.cell(container, op, layer):
            if on_gpu and not times.on_gpu(row):
                continue
            line = [matrix.CONTAINERS[container], _name(row)]
            if not row.samples:
                line += [f"no figure{notes.mark(f'{words.name(row.system)}: {row.note}')}", *[NONE] * 4]
            else:
                line += [_part(row, part) for part in PARTS]
                is_compared = first is not None and row in compared
                line += [_total(row), _times_of(row, first) if is_compared else NONE + notes.mark(NOT_COMPARED)]
            line.append(_published_ratio(theirs.get(row.system), theirs_best, notes))
            rows.append(line)
    header = ["set-up", "library", *PARTS.values(), "total", "× fastest", "published × fastest"]
    return [*markdown.table(header, rows), *notes.lines()]


def _times_of(row: Row, other: Row | None) -> str:
    return NONE if other is None else f"{words.number(median(row) / median(other))}×"


def _name(row: Row) -> str:
    return markdown.plain(str(contender_of(row)))


def _published_ratio(parts: paper.Parts | None, fastest: float | None, notes: Notes) -> str:
    if parts is None or fastest is None:
        return NONE
    return f"{words.number(parts.total / fastest)}×{_suspect(parts.suspect, notes)}"


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
    wire = {name: study.row(name, op, Contender(WIRE, STREAM)) for name in study.containers}
    published = paper.TRAINED[op]
    titles, totals = TRAINING_PARTS[op], TOTALS[op]
    parts = [part for part in titles if any(part in row.breakdown for row in study.rows if row.op == op)]
    rows = []
    for container in study.containers:
        for row in study.cell(container, op, matrix.TORCH):
            line = [matrix.CONTAINERS[container], _name(row)]
            if not row.samples:
                line += [f"no figure{notes.mark(f'{words.name(row.system)}: {row.note}')}"]
                line += [NONE] * (len(parts) + len(totals))
            else:
                line += [_epoch(study, row.breakdown.get(part)) for part in parts]
                line += [_epoch(study, total(row)) for total in totals.values()]
                line += [_over(row, of_bare.get(contender_of(row)))]
            line.append(_over(wire[container], wire.get("bare")))
            theirs, bare = published[container].get(row.system), published["bare"].get(row.system)
            line.append(_published_over(theirs, bare, notes) if theirs and bare else NONE)
            rows.append(line)
    if not rows:
        return []
    header = ["set-up", "library", *(titles[part] for part in parts), *totals, "× bare", "wire × bare"]
    steps = paper.steps(study.workers)
    return [
        f"### {title}",
        "",
        (
            f"Table {number} of the published study. An epoch has {paper.SAMPLES} samples in batches of {paper.BATCH}, "
            f"so {steps} steps with {words.count(study.workers, 'worker')}; times are {steps} times the median of the "
            f"measured steps. {BASES[op]}"
        ),
        "",
        *markdown.table([*header, "published × bare"], rows),
        *notes.lines(),
    ]


def _epoch(study: Study, seconds: float | None) -> str:
    return NONE if seconds is None else words.seconds(seconds * paper.steps(study.workers))


def _over(row: Row | None, bare: Row | None) -> str:
    """The ratio of two times that have samples, and whether their ranges overlap."""
    if row is None or bare is None or not row.samples or not bare.samples:
        return NONE
    one, other = published_time(row), published_time(bare)
    mark = "" if row is bare or not one.overlaps(other) else ", within the spread"
    return f"{words.number(one.middle / other.middle)}×{mark}"


def _published_over(theirs: paper.Training, bare: paper.Training, notes: Notes) -> str:
    return f"{words.number(theirs.total / bare.total)}×{_suspect(theirs.suspect or bare.suspect, notes)}"


def _suspect(reason: str, notes: Notes) -> str:
    return notes.mark(f"Published, perhaps an error of the source: {reason}.") if reason else ""


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
            line += [_extreme(study, low, group), _extreme(study, high, group) if high is not low else NONE]
            line.append(f"{words.number(high[1] / low[1])}×" if high is not low else NONE)
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
            f"{words.count(study.workers, 'worker')}. A time of training is that of {paper.steps(study.workers)} steps."
            " Set-ups are measured one after another, so a ratio near 1 may be chance."
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


def _extreme(study: Study, found: tuple[Row, float], group: str) -> str:
    row, seconds = found
    steps = paper.steps(study.workers) if group == "training" else 1
    return f"{_name(row)}, {row.container}: {words.seconds(seconds * steps)}"


def _published(one: paper.Extreme) -> str:
    return f"{one.library}, {one.container}"


def all_times(study: Study) -> list[str]:
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
