"""Draws the histogram of docs/topology/results.md from the committed results of a simulation.

`hoplite topology simulate --algorithm ring --json > docs/topology/orders.json` creates the results. `python
docs/topology/histogram.py` writes orders.svg next to them. `--check` fails if that is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import drawing

FOLDER = Path(__file__).parent

HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 30, 45
BARS = 50


def histogram(document: dict[str, Any]) -> str:
    """Draws the times of random orders as bars, and the best time of a planned order as a line."""
    times: list[float] = [time / 1000 for time in document["random_us"]]
    planned: dict[str, float] = {name: time / 1000 for name, time in document["planned_us"].items()}
    most: float = max(times) * 1.02
    step = most / BARS
    counts = [0] * BARS
    for time in times:
        counts[min(BARS - 1, int(time / step))] += 1
    wide, high = drawing.WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    base = TOP + high

    def x(time: float) -> float:
        return LEFT + time / most * wide

    parts = []
    for at, count in enumerate(counts):
        tall = count / max(counts) * high
        parts.append(drawing.bar(x(at * step), base - tall, wide / BARS - 1, tall, drawing.BLUE))
    best = min(planned.values())
    said = f"{document['bytes'] / 1e6:g} MB, {document['machines']} machines, {len(times)} random orders, simulated"
    parts += [
        drawing.line(x(best), TOP - 6, x(best), base, stroke=drawing.ORANGE, width=2),
        drawing.text(x(best) + 6, TOP + 4, f"planned: {best:.0f} ms", fill=drawing.ORANGE),
        drawing.line(LEFT, base, drawing.WIDTH - RIGHT, base),
        *(drawing.text(x(at), base + 16, f"{at:g}", anchor="middle") for at in drawing.ticks(most)),
        drawing.text(LEFT + wide / 2, base + 36, f"ms for {said}", anchor="middle"),
        drawing.text(LEFT - 6, base, "0", anchor="end"),
        drawing.text(LEFT - 6, TOP + 4, str(max(counts)), anchor="end"),
        drawing.text(LEFT - 38, TOP - 14, f"orders in each {step:.0f} ms", anchor="start"),
    ]
    title = f"Simulated times of {len(times)} random orders and of planned ones"
    return drawing.picture(title, HEIGHT, parts)


def main() -> None:
    """Writes the picture, or compares it with --check."""
    document = json.loads((FOLDER / "orders.json").read_text())
    drawing.keep(FOLDER / "orders.svg", histogram(document), "histogram.py")


if __name__ == "__main__":
    main()
