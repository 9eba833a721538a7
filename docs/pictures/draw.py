"""Draws the pictures of docs/concepts.md, docs/algorithms.md and docs/train-and-serve.md.

`python docs/pictures/draw.py` writes the SVGs into its own directory; `--check` fails if they are out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

import broadcasts
import reduces
import shapes
import weights

FOLDER = Path(__file__).parent

PICTURES = {
    "broadcast.svg": broadcasts.growing,
    "timeline.svg": broadcasts.timeline,
    "reduce.svg": reduces.growing,
    "order.svg": reduces.out_of_order,
    "shapes.svg": shapes.shapes,
    "ring.svg": shapes.ring,
    "weights.svg": weights.parts,
}


def main() -> int:
    """Writes the pictures, or checks them."""
    wrong = 0
    for name, draw in PICTURES.items():
        if "--check" not in sys.argv[1:]:
            (FOLDER / name).write_text(draw())
        elif (FOLDER / name).read_text() != draw():
            sys.stderr.write(f"docs/pictures/{name} is not what draw.py draws: run make docs\n")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
