"""The pictures of docs/algorithms.md: the shapes of a reduce, and the steps of a ring."""

from __future__ import annotations

from canvas import BLUE, INK, ORANGE, Frame, svg

# -- the shapes -------------------------------------------------------------------------------------------------------

# Hosts of three inputs in order of arrival, and the caller P.
SHAPES: list[tuple[str, str, dict[str, tuple[float, float]], dict[str, str]]] = [
    (
        "Chain, d = 1",
        "Each link carries S.|The input of A makes 3 hops.",
        {"A": (46, 212), "B": (46, 156), "C": (46, 100), "P": (190, 100)},
        {"A": "B", "B": "C", "C": "P"},
    ),
    (
        "Binary tree, d = 2",
        "Into B, the link carries 2 S.|The input of A makes 2 hops.",
        {"A": (46, 212), "B": (98, 156), "C": (150, 212), "P": (98, 100)},
        {"A": "B", "C": "B", "B": "P"},
    ),
    (
        "Star, d = n",
        "Into P, the link carries 3 S.|Each input makes 1 hop.",
        {"A": (46, 200), "B": (138, 200), "C": (230, 200), "P": (138, 110)},
        {"A": "P", "B": "P", "C": "P"},
    ),
]


def shapes() -> str:
    """The three shapes of a reduce of three inputs."""
    frames = []
    for title, caption, places, parents in SHAPES:
        frame = Frame(title, caption.split("|"))
        for name, place in places.items():
            frame.host(place, name, 0 if name == "P" else 1, color=BLUE)
        for name, parent in parents.items():
            frame.arrow(places[name], places[parent], color=ORANGE)
        frames.append(frame)
    return svg("A reduce of the inputs of A, B and C to the caller P, as a chain, a binary tree and a star", frames)


# -- the ring ---------------------------------------------------------------------------------------------------------

SEATS = 4
RING = [(70.0, 100.0), (206.0, 100.0), (206.0, 200.0), (70.0, 200.0)]
CELL = 22


def seat(frame: Frame, number: int, inputs: list[int]) -> None:
    """Draws a host of the ring: for each part a column, as high as the number of inputs in its sum."""
    x, y = RING[number]
    for part, count in enumerate(inputs):
        left, height = x - 2 * CELL + part * CELL, 32 * count / SEATS
        color = ORANGE if count == SEATS else BLUE
        frame.parts.append(
            f'<rect x="{left + 2:g}" y="{y + 16 - height:g}" width="{CELL - 4}" height="{height:g}" rx="1.5" '
            f'fill="{color}"/>'
        )
    frame.parts.append(
        f'<rect x="{x - 2 * CELL - 3:g}" y="{y - 20:g}" width="{4 * CELL + 6}" height="40" rx="5" fill="none" '
        f'stroke="{INK}" stroke-width="1.4"/>'
    )


def ring() -> str:
    """The six steps of an allreduce of four hosts."""
    # The number of inputs in the sum of each part at each host.
    state = [[1] * SEATS for _ in range(SEATS)]
    frames = []
    for step in range(1, 2 * SEATS - 1):
        is_scatter = step < SEATS
        title = f"{step}. {'Reduce-scatter' if is_scatter else 'All-gather'}"
        frame = Frame(
            title,
            ["Each host adds a part to its own", "and sends it on in the next step."]
            if is_scatter
            else ["Each host passes a finished part on,", "and keeps a copy."],
        )
        before = [[*row] for row in state]
        for part in range(SEATS):
            # The part starts at the seat after its own, in the direction against the ring.
            sender = (part - step) % SEATS
            receiver = (sender - 1) % SEATS
            state[receiver][part] = before[sender][part] + (before[receiver][part] if is_scatter else 0)
        for number in range(SEATS):
            seat(frame, number, state[number])
        for number in range(SEATS):
            (x1, y1), (x2, y2) = RING[number], RING[(number - 1) % SEATS]
            # Room for the wider boxes.
            across, down = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
            frame.arrow((x1 + 17 * across, y1 + 4 * down), (x2 - 17 * across, y2 - 4 * down), color=ORANGE)
            part = next(part for part in range(SEATS) if (part - step) % SEATS == number)
            frame.words((x1 + x2) / 2 + (24 if down else 0), (y1 + y2) / 2 + (4 if down else -8), f"part {part}")
        frames.append(frame)
    return svg(
        "The six steps of a ring of four hosts: after three, each has a finished part; after six, all parts", frames
    )
