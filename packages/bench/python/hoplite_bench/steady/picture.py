"""Figures of steady runs: each step of a run and the bound; one figure per pattern."""

from __future__ import annotations

import itertools
import textwrap
from typing import TYPE_CHECKING, Any

from hoplite_bench import plots, words
from hoplite_bench.steady import figures, summary
from hoplite_bench.steady.patterns import PATTERNS
from hoplite_bench.tables import unique

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row
    from hoplite_bench.tables import Measurement

ABOUT = "steady"
STEP = "#D55E00"
TENTH = "#303030"
FAULT = "#56B4E9"
# An axis ends this factor above nearly all steps; the few beyond are drawn at its edge.
ROOM = 1.35
NEARLY_ALL = 0.95


def draw(measurement: Measurement) -> list[Picture]:
    """Draws the runs of each pattern.

    Raises:
        HopliteError: Matplotlib is not installed.
    """
    rows = [row for _, row in measurement.steady]
    if not rows:
        return []
    with plots.drawing():
        return [_picture(op, [row for row in rows if row.op == op]) for op in unique(row.op for row in rows)]


def _picture(op: str, rows: Sequence[Row]) -> Picture:
    """A panel for each run."""
    figure, panels = plots.grid(len(rows), columns=min(2, len(rows)), inches=(4.6, 2.1))
    for axes, row in zip(panels, rows, strict=True):
        facts = [row.variant, words.count(row.hosts, "host"), words.size(row.bytes)]
        axes.set_title(textwrap.fill(", ".join(fact for fact in facts if fact != "default"), plots.LETTERS_WIDE))
        _run(axes, row)
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(handles=list(named.values()), labels=list(named), loc="outside upper center", ncols=len(named))
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("multiple of the bound", fontsize=9)
    title = PATTERNS[op].title if op in PATTERNS else op
    caption = f"Step times of each run ({title}) in multiples of the bound; steps at the upper edge are truncated"
    return plots.written(figure, ABOUT, f"steady-{op}.svg", caption)


def _run(axes: Axes, row: Row) -> None:
    """Draws the steps of a run, its tenths, the bound, and the duration of faults."""
    facts = summary.facts_of(row)
    bound = facts["bound_s"]
    ratios = [seconds / bound for seconds in row.samples]
    top = _top(ratios)
    steps = range(1, len(ratios) + 1)
    cut = [min(ratio, top) for ratio in ratios]
    axes.plot(steps, cut, color=STEP, marker=".", markersize=3, linewidth=0.4, clip_on=False, label="a step")
    edges = [edge for edge in figures.edges(row.repeats) if edge < len(ratios)]
    for (begin, end), tenth in zip(itertools.pairwise([*edges, len(ratios)]), facts["tenths"], strict=False):
        line: dict[str, Any] = {"color": TENTH, "linewidth": 1.6, "zorder": 4, "label": "each tenth of the run"}
        axes.hlines(min(tenth / bound, top), begin + 0.5, end + 0.5, **line)
    axes.axhline(1, color="black", linewidth=1, linestyle=(0, (4, 2)), label="bound")
    ends = list(itertools.accumulate(row.samples))
    for fault in facts["faults"]:
        healed = sum(end < fault["end_s"] for end in ends) + 1
        axes.axvspan(fault["step"] + 0.5, healed + 0.5, color=FAULT, alpha=0.3, linewidth=0, label="fault")
    axes.set_xlim(0.5, len(ratios) + 0.5)
    axes.set_ylim(0, top)


def _top(ratios: Sequence[float]) -> float:
    """The end of the axis: above nearly all steps, and above the bound."""
    nearly_all = sorted(ratios)[int(NEARLY_ALL * (len(ratios) - 1))]
    return ROOM * max(1.2, nearly_all)
