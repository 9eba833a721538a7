"""Texts of a figure and their positions, as laid out by Matplotlib: finds overlaps, and texts outside the figure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row

# Free space around letters within their box, in pixels of 1/100 inch.
SLACK = 0.5


class Written(NamedTuple):
    """One text and its box, in pixels from the lower left corner."""

    text: str
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Written) -> bool:
        """Whether the boxes overlap by more than their edges."""
        across = min(self.right, other.right) - max(self.left, other.left)
        along = min(self.top, other.top) - max(self.bottom, other.bottom)
        return across > SLACK and along > SLACK


def faults(rows: Sequence[Row], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Draws all figures of rows; returns their number, and the faults of their texts."""
    from hoplite_bench import plots, tables
    from hoplite_bench.steady import picture

    def drawn() -> Sequence[Picture]:
        measurement = tables.collect(rows)
        return plots.draw(measurement) + picture.draw(measurement)

    return faults_of(drawn, monkeypatch)


def faults_of(drawn: Callable[[], Sequence[Picture]], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[str]]:
    """Draws figures; returns their number, and the faults of their texts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    written: list[Written] = []
    told: list[str] = []
    save, draw_text = Figure.savefig, Text.draw

    def draw(self: Any, renderer: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Matplotlib's
        if self.get_visible() and self.get_text().strip():
            box = self.get_window_extent(renderer)
            written.append(Written(self.get_text(), box.x0, box.y0, box.x1, box.y1))
        draw_text(self, renderer, *arguments, **options)

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Matplotlib's
        canvas = FigureCanvasAgg(self)
        # Once to lay it out.
        canvas.draw()  # type: ignore[no-untyped-call]
        written.clear()
        canvas.draw()  # type: ignore[no-untyped-call]
        width, height = canvas.get_width_height()
        title = written[0].text if written else "nothing"
        told.extend(
            f"{title}: {one.text!r} leaves the picture"
            for one in written
            if min(one.left, one.bottom) < -SLACK or one.right > width + SLACK or one.top > height + SLACK
        )
        told.extend(
            f"{title}: {one.text!r} lies upon {other.text!r}"
            for one, other in itertools.combinations(written, 2)
            if one.meets(other)
        )
        save(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Text, "draw", draw)
        patched.setattr(Figure, "savefig", savefig)
        pictures = drawn()
    return len(pictures), told
