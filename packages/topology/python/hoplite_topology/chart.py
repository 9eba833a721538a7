"""Draws the times of a probe: a cell for each pair, the names of hosts on both sides, and a scale.

The result is an SVG with text, or a PNG of the cells only. Dark means near. Needs no library.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from hoplite.errors import InvalidArgument
from hoplite_topology import heat

if TYPE_CHECKING:
    from pathlib import Path

    from hoplite_topology.probing import Probed
    from hoplite_topology.samples import Times

SIDE = 480
MARGIN = 16
LINE = 16
LETTER = 7
# If cells are lower than a line of text, only every n-th name is shown.
NAMES_EVERY_PX = 11
NAME_LETTERS_MAX = 24
SCALE = 200
MISSING = f"#{heat.MISSING.hex()}"


def caption(probed: Probed) -> str:
    """Returns the text below the figure."""
    settings = probed.settings
    note = f"{settings.estimator} of {settings.count} echoes per direction, {settings.symmetric} of both directions"
    return f"{len(probed.sites) - len(probed.absent)} of {len(probed.sites)} hosts; {note}"


def draw(path: Path, names: list[str], times: Times, note: str) -> None:
    """Draws the figure into a file.

    Args:
        path: output file; .png draws the cells without text.
        names: names of the hosts.
        times: round trips in microseconds; None, drawn gray, where there is none.
        note: text below the figure.

    Raises:
        InvalidArgument: the file is not writable.
    """
    if path.suffix == ".png":
        content = heat.png(times, range(len(times)))
    else:
        content = picture([name[:NAME_LETTERS_MAX] for name in names], times, note).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InvalidArgument(f"can't write {path}: {error.strerror}") from None


def picture(names: list[str], times: Times, note: str) -> str:
    """Returns the SVG."""
    count = len(names)
    least, most = heat.scale(times)
    cell = max(1, SIDE // max(1, count))
    side = cell * count
    longest = LETTER * max(map(len, names), default=0)
    left, top = MARGIN + longest + 6, MARGIN + LINE + longest + 6
    bar = top + side + LINE
    width = max(left + side, 2 * MARGIN + LETTER * len(note), MARGIN + SCALE + 180) + MARGIN
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bar + 4 * LINE}" font-family="monospace" '
            f'font-size="11" shape-rendering="crispEdges"><title>{html.escape(note)}</title>'
            '<rect width="100%" height="100%" fill="white"/>'
        ),
        f'<text x="{MARGIN}" y="{MARGIN + 6}">round trips between two hosts, in microseconds</text>',
    ]
    for row in range(count):
        for column in range(count):
            if row == column:
                continue
            time = times[row][column]
            part = 0.0 if time is None or most <= least else (time - least) / (most - least)
            fill = MISSING if time is None else _hex(heat.colour(part))
            label = "no reply" if time is None else f"{time:.1f} us"
            parts.append(
                f'<rect x="{left + column * cell}" y="{top + row * cell}" width="{cell}" height="{cell}" fill="{fill}">'
                f"<title>{html.escape(names[row])}, {html.escape(names[column])}: {label}</title></rect>"
            )
    every = max(1, -(-NAMES_EVERY_PX // cell))
    for at in range(0, count, every):
        word, middle = html.escape(names[at]), at * cell + cell // 2
        parts.append(f'<text x="{left - 5}" y="{top + middle + 4}" text-anchor="end">{word}</text>')
        parts.append(f'<text transform="translate({left + middle + 4} {top - 5}) rotate(-90)">{word}</text>')
    for step in range(SCALE):
        fill = _hex(heat.colour(step / (SCALE - 1)))
        parts.append(f'<rect x="{MARGIN + step}" y="{bar}" width="1.5" height="12" fill="{fill}"/>')
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        label = f"{least + part * (most - least):.3g}"
        parts.append(f'<text x="{MARGIN + part * SCALE}" y="{bar + 26}" text-anchor="{anchor}">{label}</text>')
    parts.append(f'<text x="{MARGIN + SCALE + 12}" y="{bar + 10}">us; gray: no reply</text>')
    parts.append(f'<text x="{MARGIN}" y="{bar + 3 * LINE}">{html.escape(note)}</text></svg>\n')
    return "".join(parts)


def _hex(colour: bytes) -> str:
    return f"#{colour.hex()}"
