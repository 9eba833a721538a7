"""Drawing functions of the scripts in this folder: SVG elements, colors, ticks of an axis, and the check of a file.

Text is gray and the background transparent, so that a picture is readable on a light page and on a dark one.
"""

from __future__ import annotations

import html
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

INK = "#7d8590"
BLUE = "#3b82f6"
ORANGE = "#e0801a"
GREEN = "#2f9e63"
WIDTH = 640
STEPS = (0.25, 0.5, 1, 2, 5, 10, 50, 100, 200, 250, 500, 1000, 5000, 1e9)
TICKS_MAX = 9


def picture(title: str, height: float, parts: list[str]) -> str:
    """Returns an SVG document."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">'
    )
    return "\n".join([head, f"<title>{html.escape(title)}</title>", *parts]) + "</svg>\n"


def text(x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK) -> str:
    """Returns text at a position."""
    coloured = "" if fill == INK else f' fill="{fill}"'
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}"{placed}{coloured}>{html.escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK, width: float = 1) -> str:
    """Returns a line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width:g}"/>'


def bar(x: float, y: float, wide: float, high: float, fill: str) -> str:
    """Returns a filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{fill}"/>'


def dot(x: float, y: float, stroke: str) -> str:
    """Returns a ring for one of several measurements, visible on a bar and next to it."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="white" fill-opacity="0.7" stroke="{stroke}"/>'


def ticks(most: float) -> list[float]:
    """Returns round numbers from 0 to `most`."""
    step = next(size for size in STEPS if most / size <= TICKS_MAX)
    return [at * step for at in range(int(most / step) + 1)]


def keep(file: Path, drawn: str, script: str) -> None:
    """Writes a picture. With --check, ends the script with an error if the file differs."""
    if "--check" not in sys.argv[1:]:
        file.write_text(drawn)
    elif not file.exists() or file.read_text() != drawn:
        sys.exit(f"{file} is out of date: run docs/topology/{script}")
