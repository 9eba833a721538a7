"""A picture of up to six frames in two rows, as SVG: boxes for hosts with what they have, arrows for what they send.

Colors have medium lightness and no background, so that the pictures are readable on light and dark pages. It does not
know what the frames show.
"""

from __future__ import annotations

from dataclasses import dataclass, field

INK = "#7d8590"
BLUE = "#3b82f6"
ORANGE = "#e0801a"

WIDTH, HEIGHT = 276, 248
BOX_WIDTH, BOX_HEIGHT = 62, 36


@dataclass
class Frame:
    """One moment: a caption, and what is drawn below it."""

    title: str
    caption: list[str]
    parts: list[str] = field(default_factory=list)

    def words(self, x: float, y: float, text: str, *, size: int = 12, color: str = INK, style: str = "") -> None:
        """Writes words that are centred at a place."""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" text-anchor="middle"{style}>{text}</text>'
        )

    def host(self, place: tuple[float, float], name: str, share: float | None, *, color: str = BLUE) -> None:
        """Draws a host; `share` of its copy is there, None if it has none."""
        x, y = place
        dash = ' stroke-dasharray="3 3"' if share is None else ""
        self.parts.append(
            f'<rect x="{x - BOX_WIDTH / 2:g}" y="{y - BOX_HEIGHT / 2:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            f'rx="5" fill="none" stroke="{INK}" stroke-width="1.4"{dash}/>'
        )
        if share is None:
            self.words(x, y + 4, name)
            return
        self.words(x, y - 2, name)
        inside = BOX_WIDTH - 12
        bar = f'x="{x - inside / 2:g}" y="{y + 6:g}" height="6" rx="1.5"'
        self.parts.append(f'<rect {bar} width="{inside}" fill="{INK}" fill-opacity="0.28"/>')
        if share > 0:
            self.parts.append(f'<rect {bar} width="{max(inside * min(share, 1), 2):.1f}" fill="{color}"/>')

    def arrow(self, source: tuple[float, float], target: tuple[float, float], *, color: str = BLUE) -> None:
        """Draws which box sends to which, from the edge of one box to the edge of another."""
        (x1, y1), (x2, y2) = edge(source, target), edge(target, source)
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        tip = [(x2, y2), (x2 - 9 * dx - 4 * dy, y2 - 9 * dy + 4 * dx), (x2 - 9 * dx + 4 * dy, y2 - 9 * dy - 4 * dx)]
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2 - 8 * dx:.1f}" y2="{y2 - 8 * dy:.1f}" '
            f'stroke="{color}" stroke-width="2"/>'
            f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in tip)}" fill="{color}"/>'
        )


def edge(here: tuple[float, float], there: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the middle of one box to that of another leaves the first, and a little air."""
    dx, dy = there[0] - here[0], there[1] - here[1]
    across = (BOX_WIDTH / 2 + 4) / abs(dx) if dx else float("inf")
    along = (BOX_HEIGHT / 2 + 4) / abs(dy) if dy else float("inf")
    share = min(across, along)
    return here[0] + dx * share, here[1] + dy * share


def svg(description: str, frames: list[Frame], legend: Frame | None = None) -> str:
    """Sets frames in rows of three, the legend last."""
    cells = []
    for number, frame in enumerate([*frames, *([legend] if legend else [])]):
        x, y = WIDTH * (number % 3), HEIGHT * (number // 3)
        titled = Frame("", [], [*frame.parts])
        titled.words(WIDTH / 2, 22, frame.title, size=14, style=' font-weight="bold"')
        for row, line in enumerate(frame.caption):
            titled.words(WIDTH / 2, 41 + 16 * row, line)
        border = (
            f'<rect x="3" y="3" width="{WIDTH - 6}" height="{HEIGHT - 6}" rx="8" fill="none" stroke="{INK}" '
            'stroke-opacity="0.35"/>'
            if frame is not legend
            else ""
        )
        cells.append(f'<g transform="translate({x} {y})">\n{border}\n' + "\n".join(titled.parts) + "\n</g>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * WIDTH} {-(-len(cells) // 3) * HEIGHT}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif">\n<title>{description}</title>\n'
        + "\n".join(cells)
        + "\n</svg>\n"
    )


def legend(signs: list[tuple[str, str, str]]) -> Frame:
    """Explains the signs: each by kind, color and meaning."""
    frame = Frame("", [])
    for row, (kind, color, meaning) in enumerate(signs):
        place = (56.0, 84 + 46.0 * row)
        if kind == "arrow":
            frame.arrow((place[0] - 62, place[1]), (place[0] + 62, place[1]), color=color)
        else:
            frame.host(place, "host", None if kind == "none" else 0.6 if "share" in meaning else 1.0, color=color)
        frame.words(98, place[1] + 4, meaning, style=' style="text-anchor: start"')
    return frame
