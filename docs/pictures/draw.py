"""Draws the pictures of docs/concepts.md: a broadcast and a reduce, each growing over five frames.

`python docs/pictures/draw.py` writes the SVGs into its own directory; `--check` fails if they are out of date.
Colors have medium lightness and no background, so that the pictures are readable on light and dark pages.

The broadcast follows the rule of crates/proto/src/broadcast.rs for a large object, over links of one speed.
The reduce has the seats that crates/proto/src/reduce/shape.rs gives to five inputs in a binary tree.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent

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


def svg(description: str, frames: list[Frame], legend: Frame) -> str:
    """Sets frames in two rows of three, the legend last."""
    cells = []
    for number, frame in enumerate([*frames, legend]):
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
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {3 * WIDTH} {2 * HEIGHT}" role="img" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif">\n<title>{description}</title>\n'
        + "\n".join(cells)
        + "\n</svg>\n"
    )


# -- the broadcast ----------------------------------------------------------------------------------------------------


@dataclass
class Receiver:
    """A host that requested the object, and its source."""

    name: str
    asked: float
    sender: str


# Time of a whole object over one link. A hop costs little compared with it.
TRANSFER, HOP = 10.0, 0.2

# The source, and when each other host requests the object.
SOURCE = "A"
ARRIVALS = [("B", 0.0), ("C", 3.0), ("D", 6.0), ("E", 11.0), ("F", 12.0)]

PLACES = {"A": (46, 100), "B": (138, 100), "C": (230, 100), "D": (230, 156), "E": (46, 156), "F": (46, 212)}


def share_of(name: str, receivers: list[Receiver], now: float) -> float:
    """The share of the object that a host has: limited by its own link since its request, and by its source."""
    receiver = next((one for one in receivers if one.name == name), None)
    if receiver is None:
        return 1.0
    own = max(0.0, (now - receiver.asked - HOP) / TRANSFER)
    return min(1.0, own, share_of(receiver.sender, receivers, now - HOP))


def choose_sender(receivers: list[Receiver], now: float) -> str:
    """The holder with the smallest predicted time: relays before it, and receivers that it feeds already."""

    def depth(name: str) -> int:
        if share_of(name, receivers, now) >= 1:
            return 0
        return 1 + depth(next(one.sender for one in receivers if one.name == name))

    def rank(name: str) -> tuple[float, bool, str]:
        load = sum(one.sender == name and share_of(one.name, receivers, now) < 1 for one in receivers)
        return (depth(name) + 1) * HOP + (load + 1) * TRANSFER, name == SOURCE, name

    return min([SOURCE, *(one.name for one in receivers)], key=rank)


def broadcast() -> str:
    """The broadcast's picture."""
    receivers: list[Receiver] = []
    for name, asked in ARRIVALS:
        receivers.append(Receiver(name, asked, choose_sender(receivers, asked)))
    moments = {
        2.5: ("1. B gets the object", ["A has a complete copy.", "B receives it from A."]),
        5.5: ("2. C gets it later", ["A is busy: C receives from B", "while B still receives."]),
        8.5: ("3. D gets it later still", ["C relays while it receives.", "A still sends only one copy."]),
        15.0: ("4. E and F get it too", ["B is complete and A idle again:", "E receives from A, F from E."]),
        24.0: ("5. Done", ["A sent two of five copies.", "The next request has six sources."]),
    }
    frames = []
    for now, (title, caption) in moments.items():
        here = [one for one in receivers if one.asked <= now]
        frame = Frame(title, caption)
        for name, place in PLACES.items():
            known = name == SOURCE or any(one.name == name for one in here)
            if known:
                frame.host(place, name, share_of(name, here, now))
        for one in here:
            if share_of(one.name, here, now) < 1:
                frame.arrow(PLACES[one.sender], PLACES[one.name])
        frames.append(frame)
    signs = legend([("bar", BLUE, "share of the object received"), ("arrow", BLUE, "data in transit")])
    return svg("A broadcast grows while receivers request the object", frames, signs)


# -- the reduce -------------------------------------------------------------------------------------------------------

# Seats of a binary tree of five in order of arrival, a left subtree before its node: C is the top. P called the reduce,
# R wants the result, F comes too late.
SEATS = {"C": (98, 100), "B": (46, 156), "A": (46, 212), "E": (150, 156), "D": (150, 212)}
OTHERS = {"P": (226, 100), "R": (226, 156), "F": (226, 212)}

# Who folds the sum that a seat sends; P pulls from the top.
PARENTS = {"A": "B", "B": "C", "D": "E", "E": "C", "C": "P"}


def reduce() -> str:
    """The reduce's picture."""
    # Title and caption; whose input is there; which seats send; how much of the sum P and R have.
    five = "ABCDE"
    moments: list[tuple[str, str, str, str, float, float | None]] = [
        (
            "1. One input exists",
            "P reduces the first 5 inputs of A to F.|A takes the first position.",
            "A",
            "",
            0,
            None,
        ),
        (
            "2. Two more inputs arrive",
            "B adds what A sends to its own input,|and buffers a window of the sum for C.",
            "ABC",
            "A",
            0,
            None,
        ),
        (
            "3. Five inputs exist",
            "E adds D&#8217;s input, C adds both subtrees,|and P receives the sum block by block.",
            five,
            five,
            0.3,
            None,
        ),
        ("4. R gets the sum", "R receives the result from P|while it still grows.", five, five, 0.75, 0.55),
        ("5. Done", "F arrives too late and is not used:|inputs() returns A to E.", "ABCDEF", "", 1, 1),
    ]
    places = {**SEATS, **OTHERS}
    frames = []
    for title, caption, present, sending, result, copy in moments:
        frame = Frame(title, caption.split("|"))
        for name in "ABCDEF":
            frame.host(places[name], name, 1 if name in present else None)
        frame.host(places["P"], "P", result, color=ORANGE)
        if copy is not None:
            frame.host(places["R"], "R", copy, color=ORANGE)
        for name in sending:
            frame.arrow(places[name], places[PARENTS[name]], color=ORANGE)
        if copy is not None and copy < 1:
            frame.arrow(places["P"], places["R"], color=ORANGE)
        frames.append(frame)
    signs = [("bar", BLUE, "complete input"), ("bar", ORANGE, "share of the sum received")]
    signs += [("arrow", ORANGE, "partial sum in transit"), ("none", INK, "no input yet")]
    return svg(
        "A reduce tree grows while inputs arrive, and its result is relayed while it grows", frames, legend(signs)
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


PICTURES = {"broadcast.svg": broadcast, "reduce.svg": reduce}


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
