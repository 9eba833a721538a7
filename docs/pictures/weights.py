"""The picture of docs/train-and-serve.md: who sends the weights of a trainer of three ranks to its servers."""

from __future__ import annotations

from canvas import BLUE, ORANGE, Frame, svg

COLUMNS = (46.0, 138.0, 230.0)
RANKS = {f"rank {number}": (x, 100.0) for number, x in enumerate(COLUMNS)}
SERVERS = {f"server {number}": (x, 200.0) for number, x in enumerate(COLUMNS)}
PLACES = RANKS | SERVERS


def moment(title: str, caption: str, servers: list[float | None], arrows: list[tuple[str, str]]) -> Frame:
    """Draws all ranks with their parts, what each server has, and who sends to whom."""
    frame = Frame(title, caption.split("|"))
    for name, place in RANKS.items():
        frame.host(place, name, 1 / 3, color=ORANGE)
    for (name, place), share in zip(SERVERS.items(), servers, strict=True):
        frame.host(place, name, share)
    for source, target in arrows:
        frame.arrow(PLACES[source], PLACES[target], color=ORANGE if source in RANKS else BLUE)
    return frame


def parts() -> str:
    """Three moments of a version."""
    frames = [
        moment(
            "1. Every rank publishes",
            "Each puts the part that it has.|Nothing is gathered.",
            [0.1, 0.1, None],
            [("rank 0", "server 0"), ("rank 1", "server 1")],
        ),
        moment(
            "2. Servers relay",
            "A server sends what it has|while it receives the rest.",
            [0.6, 0.6, None],
            [("rank 2", "server 0"), ("server 0", "server 1")],
        ),
        moment(
            "3. A server starts late",
            "It gets the newest version|from the servers that have it.",
            [1.0, 1.0, 0.4],
            [("server 1", "server 2")],
        ),
    ]
    return svg("Three ranks of a trainer publish their parts, and servers relay them", frames)
