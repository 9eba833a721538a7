"""Draws round-trip times as a heat map: the machines in the given order, and in the planned order.

The result is a PNG with one or more pixels per pair and no text, or an SVG with two such images and text. Dark means
near. Needs no library.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Rows = Sequence[Sequence[float | None]]

# From near to far, dark violet to yellow: the palette viridis, which is perceptually uniform, also in grayscale.
COLOURS = [
    (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
    (170, 220, 50), (253, 231, 37),
]  # fmt: skip
SIDE = 384
GAP = 16
# The colors of a machine paired with itself, and of a pair without a time.
ITSELF, MISSING = b"\xff\xff\xff", b"\xc8\xc8\xc8"


def draw(path: Path, rows: list[list[float]], order: list[int], caption: str) -> None:
    """Draws the heat map into a file.

    Args:
        path: output file, which ends with .svg or .png.
        rows: round-trip times.
        order: the machine of each rank.
        caption: text below the figure.

    Raises:
        InvalidArgument: the file has another extension, or is not writable.
    """
    given, found = png(rows, range(len(rows))), png(rows, order)
    if path.suffix == ".svg":
        content = _svg(given, found, rows, caption).encode()
    elif path.suffix == ".png":
        content = png(rows, range(len(rows)), order)
    else:
        raise InvalidArgument(f"the picture must be a .svg or .png file, not {path.name}")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidArgument(f"can't write {path}: {error}") from None


def scale(rows: Rows) -> tuple[float, float]:
    """The times of the first and the last color, without outliers, which would make all others look alike."""
    cells = ((row, column, time) for row, line in enumerate(rows) for column, time in enumerate(line))
    times = sorted(time for row, column, time in cells if row != column and time is not None)
    if not times:
        return 0.0, 1.0
    return times[len(times) // 100], times[len(times) - 1 - len(times) // 100]


def colour(part: float) -> bytes:
    """The color of a value between 0 (near) and 1."""
    place = min(max(part, 0.0), 1.0) * (len(COLOURS) - 1)
    low = min(int(place), len(COLOURS) - 2)
    rest = place - low
    return bytes(round(a + (b - a) * rest) for a, b in zip(COLOURS[low], COLOURS[low + 1], strict=True))


def png(rows: Rows, *orders: Sequence[int]) -> bytes:
    """Draws an image for each order, side by side; gray where there is no time."""
    least, most = scale(rows)
    table = [colour(step / 255) for step in range(256)]
    factor = 255 / (most - least) if most > least else 0.0
    size = max(1, SIDE // len(rows))
    height = max(map(len, orders)) * size

    def cell(row: int, column: int) -> bytes:
        time = rows[row][column]
        if row == column:
            return ITSELF
        return MISSING if time is None else table[min(255, max(0, round((time - least) * factor)))]

    lines = []
    for line in range(height):
        parts = []
        for order in orders:
            if line // size >= len(order):
                parts.append(ITSELF * (len(order) * size))
            else:
                parts += [cell(order[line // size], column) * size for column in order]
            parts.append(ITSELF * GAP)
        lines.append(b"\0" + b"".join(parts[:-1]))
    width = (len(lines[0]) - 1) // 3

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(b"".join(lines), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _svg(given: bytes, found: bytes, rows: list[list[float]], caption: str) -> str:
    least, most = scale(rows)
    stops = "".join(
        f'<stop offset="{at / (len(COLOURS) - 1):.3f}" stop-color="rgb{colour}"/>' for at, colour in enumerate(COLOURS)
    )

    def image(content: bytes, x: int, title: str) -> str:
        data = base64.b64encode(content).decode()
        return (
            f'<text x="{x}" y="20">{title}</text><image x="{x}" y="30" width="{SIDE}" height="{SIDE}" '
            f'style="image-rendering: pixelated" href="data:image/png;base64,{data}"/>'
        )

    width, top = 2 * SIDE + 3 * GAP, SIDE + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 70}" font-family="sans-serif" '
        f'font-size="13"><title>{html.escape(caption)}</title><rect width="100%" height="100%" fill="white"/>'
        f'<defs><linearGradient id="times">{stops}</linearGradient></defs>'
        + image(given, GAP, "as given")
        + image(found, SIDE + 2 * GAP, "by rank")
        + f'<rect x="{GAP}" y="{top + 12}" width="160" height="12" fill="url(#times)"/>'
        f'<text x="{GAP + 168}" y="{top + 23}">{least:.3g} to {most:.3g} us between two machines</text>'
        f'<text x="{GAP}" y="{top + 52}">{html.escape(caption)}</text></svg>\n'
    )
