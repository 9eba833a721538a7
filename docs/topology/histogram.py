"""Draws the picture of docs/topology/README.md from the committed results of a simulation.

`hoplite topology simulate --algorithm ring --json > docs/topology/orders.json` makes those, `python
docs/topology/histogram.py` writes the SVG beside them, `--check` fails if it is not what would be written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

INK = "#7d8590"
BLUE = "#3b82f6"
ORANGE = "#e0801a"
WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 50, 20, 30, 45
BARS = 50


def histogram(document: dict[str, Any]) -> str:
    """The times of random orders as bars, and those of planned ones as lines."""
    times: list[float] = [time / 1000 for time in document["random_us"]]
    planned: dict[str, float] = {name: time / 1000 for name, time in document["planned_us"].items()}
    most: float = max(times) * 1.02
    step = most / BARS
    counts = [0] * BARS
    for time in times:
        counts[min(BARS - 1, int(time / step))] += 1
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(time: float) -> float:
        return LEFT + time / most * wide

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">'
    )
    parts = [
        head,
        f"<title>Simulated times of {len(times)} random orders and of planned ones</title>",
    ]
    for at, count in enumerate(counts):
        tall = count / max(counts) * high
        parts.append(
            f'<rect x="{x(at * step):.1f}" y="{TOP + high - tall:.1f}" width="{wide / BARS - 1:.1f}" '
            f'height="{tall:.1f}" fill="{BLUE}"/>'
        )
    best = min(planned.items(), key=lambda plan: plan[1])
    parts.append(
        f'<line x1="{x(best[1]):.1f}" y1="{TOP - 6}" x2="{x(best[1]):.1f}" y2="{TOP + high}" stroke="{ORANGE}" '
        f'stroke-width="2"/><text x="{x(best[1]) + 6:.1f}" y="{TOP + 4}" fill="{ORANGE}">'
        f"planned: {best[1]:.0f} ms</text>"
    )
    base = TOP + high
    parts.append(f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}" stroke="{INK}"/>')
    tick = next(size for size in (50, 100, 200, 250, 500, 1000, 5000, 1e9) if most / size <= 9)
    parts += [
        f'<text x="{x(at * tick):.1f}" y="{base + 16}" text-anchor="middle">{at * tick:g}</text>'
        for at in range(int(most / tick) + 1)
    ]
    parts.append(
        f'<text x="{LEFT + wide / 2:.1f}" y="{base + 36}" text-anchor="middle">ms for {document["bytes"] / 1e6:g} MB, '
        f"{document['machines']} machines, {len(times)} random orders, simulated</text>"
    )
    parts.append(f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{max(counts)}</text></svg>\n')
    return "\n".join(parts)


def main() -> None:
    """Writes the picture, or compares it."""
    file = FOLDER / "orders.svg"
    drawn = histogram(json.loads((FOLDER / "orders.json").read_text()))
    if "--check" not in sys.argv[1:]:
        file.write_text(drawn)
    elif not file.exists() or file.read_text() != drawn:
        sys.exit(f"{file} is not what docs/topology/histogram.py draws: run it")


if __name__ == "__main__":
    main()
