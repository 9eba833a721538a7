"""Texts of a figure and their positions, as laid out by Matplotlib: finds overlaps, and texts outside the figure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from hoplite_bench.plots import Picture
    from hoplite_bench.row import Row

# Free space around letters within their box, in points, the unit of SVG.
SLACK = 0.36


class Written(NamedTuple):
    """One text and its box, in points from the lower left corner."""

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
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    written: list[Written] = []
    told: list[str] = []
    save, draw_figure, draw_text = Figure.savefig, Figure.draw, Text.draw

    def draw_all(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Matplotlib's
        # A figure is drawn twice, first to lay it out.
        written.clear()
        draw_figure(self, *arguments, **options)

    def draw(self: Any, renderer: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Matplotlib's
        if self.get_visible() and self.get_text().strip():
            box = self.get_window_extent(renderer)
            written.append(Written(self.get_text(), box.x0, box.y0, box.x1, box.y1))
        draw_text(self, renderer, *arguments, **options)

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - Matplotlib's
        save(self, *arguments, **options)
        width, height = 72 * self.get_size_inches()
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

    with monkeypatch.context() as patched:
        patched.setattr(Text, "draw", draw)
        patched.setattr(Figure, "draw", draw_all)
        patched.setattr(Figure, "savefig", savefig)
        pictures = drawn()
    return len(pictures), told
