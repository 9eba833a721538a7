"""Figures of a study, in place of figures 13 to 23 of the published one: latency by workers, all libraries, training.

A system has the color and marker that it has in the report of the bench. The same rows produce the same bytes.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from hoplite_bench import plots, words
from hoplite_bench.markdown import DEFAULT
from hoplite_bench.row import WIRE
from hoplite_bench.study import matrix, paper
from hoplite_bench.study.times import Contender, contender_of, measured, workers_of
from hoplite_bench.tables import median, unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row
    from hoplite_bench.study.collected import Study

# Numbers of the published figures, by layer and operation.
FIGURES = {
    (matrix.SHELL, "broadcast"): "13 and 14",
    (matrix.SHELL, "gather"): "15",
    (matrix.SHELL, "allgather"): "16",
    (matrix.SHELL, "allreduce"): "17 and 18",
    (matrix.TORCH, "broadcast"): "19",
    (matrix.TORCH, "gather"): "20",
    (matrix.TORCH, "allreduce"): "21",
}
OVERVIEWS = {matrix.SHELL: "22", matrix.TORCH: "23"}
LAYERS = {matrix.SHELL: "shell", matrix.TORCH: "PyTorch"}
# Parts of a training step from the bottom to the top of a bar, with color.
PARTS = {
    "train": ("computation", "#b8b8b8"),
    "gather": ("gather", "#0072B2"),
    "broadcast": ("broadcast", "#E69F00"),
    "collective": ("allreduce", "#009E73"),
    "average": ("average", "#CC79A7"),
}
# The part of the space of a set-up that its bars take.
BAR = 0.84
# A bar below this part of the highest one has its value next to it.
LOW = 0.05


def draw(study: Study) -> list[Picture]:
    """Draws all figures for which a study has samples.

    Raises:
        HopliteError: Matplotlib is not installed.
    """
    found = []
    with plots.drawing():
        for layer in study.layers:
            ops = [op for op in matrix.OPS if _has(study, layer, op)]
            found += [_against_workers(study, layer, op) for op in ops]
            if ops:
                found.append(_overview(study, layer, ops))
        trained = [op for op in matrix.TRAINING if _has(study, matrix.TORCH, op)]
        if trained:
            found.append(_training(study, trained))
    return found


def _has(study: Study, layer: str, op: str) -> bool:
    return any(row.samples and (row.layer, row.op) == (layer, op) for row in study.rows)


def _against_workers(study: Study, layer: str, op: str) -> Picture:
    """A panel per set-up: latency by number of workers, all with the same axes."""
    contenders = [one for one in study.contenders(layer, [op]) if _measured(study, op, one)]
    figure, panels = plots.grid(len(study.containers), columns=2)
    counts = sorted({workers_of(row) for row in study.rows if row.op == op and row.samples})
    for axes, container in zip(panels, study.containers, strict=True):
        axes.set_title(matrix.CONTAINERS[container])
        for place, contender in enumerate(contenders):
            rows = [row for row in _measured(study, op, contender) if row.container == container]
            _line(axes, sorted(rows, key=workers_of), contender, 2 * place / max(len(contenders) - 1, 1) - 1)
        _note_absent(axes, study, container, op, layer)
        axes.set_xticks(counts)
        axes.set_xlim(counts[0] - 0.5, counts[-1] + 0.5)
        axes.grid(visible=False, axis="x")
    _same_axis(panels)
    title = f"{words.title(op)} of {words.size(study.nbytes)}, {LAYERS[layer]}: latency by number of workers"
    published = FIGURES.get((layer, op))
    like = f", as figure{'s' if published and 'and' in published else ''} {published} of the published study"
    caption = title + (like if published else "")
    return _finish(figure, contenders, f"study-{layer}-{op}.svg", caption, "number of workers", "latency")


def _measured(study: Study, op: str, contender: Contender) -> list[Row]:
    return [row for row in measured(study.rows) if row.op == op and contender_of(row) == contender]


def _line(axes: Axes, rows: Sequence[Row], contender: Contender, place: float) -> None:
    """Medians with the fastest and the slowest sample, shifted sideways because equal ones would cover each other."""
    if not rows:
        return
    middles = [median(row) for row in rows]
    axes.errorbar(
        [workers_of(row) + 0.22 * place for row in rows],
        middles,
        yerr=[
            [middle - min(row.samples) for row, middle in zip(rows, middles, strict=True)],
            [max(row.samples) - middle for row, middle in zip(rows, middles, strict=True)],
        ],
        elinewidth=0.8,
        markeredgecolor="white",
        markeredgewidth=0.5,
        label=str(contender),
        **_look(contender),
    )


def _look(contender: Contender) -> dict[str, Any]:
    color, marker = plots.style(contender.system)
    other = {} if contender.variant == DEFAULT else {"linestyle": (0, (3, 1.5)), "marker": "*", "markersize": 8}
    return {"color": color, "marker": marker, **other}


def _note_absent(axes: Axes, study: Study, container: str, op: str, layer: str) -> None:
    """Names the contenders without samples in a panel, at its lower edge."""
    rows = [row for row in study.rows if (row.container, row.op, row.layer) == (container, op, layer)]
    rows = [row for row in rows if row.system != WIRE]
    there = {contender_of(row) for row in rows if row.samples}
    absent = [one for one in unique(map(contender_of, rows)) if one not in there]
    if absent:
        told = textwrap.fill(f"no figure: {', '.join(map(str, absent))}", plots.LETTERS_SMALL)
        axes.text(0.99, 0.01, told, transform=axes.transAxes, **{**plots.SMALL, "ha": "right", "va": "bottom"})


def _same_axis(panels: Sequence[Axes]) -> None:
    """Gives all panels one logarithmic axis, with space for the note at the lower edge."""
    limits = [axes.dataLim for axes in panels if math.isfinite(axes.dataLim.minposy)]
    low, high = min(limit.minposy for limit in limits), max(limit.y1 for limit in limits)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylim(low * 0.9 / (high / low) ** 0.2, high * 1.15)
        plots.ticks(axes)


def _overview(study: Study, layer: str, ops: Sequence[str]) -> Picture:
    """A panel per operation: a bar for each library in each set-up, with the most workers."""
    contenders = [one for one in study.contenders(layer, ops) if any(_measured(study, op, one) for op in ops)]
    figure, panels = plots.grid(len(ops), columns=min(2, len(ops)), inches=(4.6, 2.3))
    for axes, op in zip(panels, ops, strict=True):
        axes.set_title(words.title(op))
        rows = {
            name: [row for one in contenders if (row := study.row(name, op, one)) is not None]
            for name in study.containers
        }
        width = BAR / len(contenders)
        top = max(max(row.samples) for own in rows.values() for row in own if row.samples)
        for at, own in enumerate(rows.values()):
            for place, row in enumerate(own):
                _bar(axes, at + (place - (len(own) - 1) / 2) * width, width, row, top)
        axes.set_xticks(range(len(study.containers)), study.containers)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(plots.engineer())
    size, count = words.size(study.nbytes), words.count(study.workers, "worker")
    caption = (
        f"All libraries in each set-up, {LAYERS[layer]}, {count}, {size} per rank, as figure {OVERVIEWS[layer]} of the "
        "published study; lines show the fastest and the slowest sample"
    )
    return _finish(figure, contenders, f"study-{layer}-all.svg", caption, "", "latency")


def _bar(axes: Axes, x: float, width: float, row: Row, top: float) -> None:
    """A bar with the range of its samples; its value if it is too low to see, or a text without samples."""
    contender = contender_of(row)
    color, _ = plots.style(contender.system)
    word: dict[str, Any] = {"rotation": 90, "color": color, "ha": "center", "va": "bottom", "fontsize": 6}
    if not row.samples:
        axes.text(x, 0, " no figure", **word)
        return
    hatch = "" if contender.variant == DEFAULT else "////"
    axes.bar(
        x, median(row), width * 0.92, color=color, hatch=hatch, edgecolor="white", linewidth=0, label=str(contender)
    )
    axes.vlines(x, min(row.samples), max(row.samples), color="#303030", linewidth=0.9)
    if max(row.samples) < LOW * top:
        axes.text(x, max(row.samples), f" {words.seconds(median(row))}", **word)


def _training(study: Study, ops: Sequence[str]) -> Picture:
    """A panel per kind of training: an epoch of each library in each set-up, by parts."""
    titles = {"train-ps": "Parameter server", "train-allreduce": "Allreduce"}
    contenders = [one for one in study.contenders(matrix.TORCH, ops) if any(_measured(study, op, one) for op in ops)]
    figure, panels = plots.grid(len(ops), columns=len(ops), inches=(4.6, 2.7))
    for axes, op in zip(panels, ops, strict=True):
        axes.set_title(titles[op])
        labels = []
        width = BAR / len(contenders)
        for at, container in enumerate(study.containers):
            for place, contender in enumerate(contenders):
                x = at + (place - (len(contenders) - 1) / 2) * width
                labels.append((x, str(contender).removeprefix("torch ")))
                _stack(axes, x, width, study.row(container, op, contender), paper.steps(study.workers))
        axes.set_xticks([x for x, _ in labels], [name for _, name in labels], rotation=90, fontsize=7)
        axes.tick_params(axis="x", length=0)
        for at, container in enumerate(study.containers):
            axes.text(at, 1, container, transform=axes.get_xaxis_transform(), **plots.SMALL)
        axes.margins(y=0.12)
        axes.grid(visible=False, axis="x")
        axes.yaxis.set_major_formatter(plots.engineer())
    caption = (
        f"An epoch of training ({paper.steps(study.workers)} steps) with {words.count(study.workers, 'worker')} by "
        "parts, as tables 5 and 6 of the published study; the outline is the whole step, and the gather of a parameter "
        "server contains the average"
    )
    return _finish(figure, [], "study-training.svg", caption, "", "time of an epoch")


def _stack(axes: Axes, x: float, width: float, row: Row | None, steps: int) -> None:
    """The parts of a step upon each other, within the outline of the whole step."""
    if row is None or not row.samples:
        axes.text(x, 0, " no figure", rotation=90, ha="center", va="bottom", fontsize=6, color="#606060")
        return
    bottom = 0.0
    for part, (label, color) in PARTS.items():
        # The average of a parameter server is a part of its gather.
        inside = part == "average" and "gather" in row.breakdown
        height = 0.0 if inside else row.breakdown.get(part, 0.0) * steps
        if height:
            axes.bar(x, height, width * 0.9, bottom=bottom, color=color, label=label)
        bottom += height
    axes.bar(x, median(row) * steps, width * 0.9, fill=False, edgecolor="black", linewidth=0.7, label="step")


def _finish(figure: Figure, contenders: Sequence[Contender], name: str, caption: str, x: str, y: str) -> Picture:
    """Labels the axes, places one legend above all panels, and renders the figure."""
    order = [*map(str, contenders), *(label for label, _ in PARTS.values())]
    plots.add_legend(figure, order, inches=1.4)
    if x:
        figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)
    return plots.written(figure, "study", name, caption)
