"""The pictures of a broadcast: growing over five frames, and over time.

They follow the rule of crates/proto/src/broadcast.rs for a large object, over links of one speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from canvas import BLUE, INK, Frame, legend, svg


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


def all_receivers() -> list[Receiver]:
    """The receivers with their sources."""
    receivers: list[Receiver] = []
    for name, asked in ARRIVALS:
        receivers.append(Receiver(name, asked, choose_sender(receivers, asked)))
    return receivers


def growing() -> str:
    """Five moments of the broadcast."""
    receivers = all_receivers()
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


def star_shares(step: float = 0.01) -> dict[str, list[tuple[float, float]]]:
    """The share that each host has over time, if all receive from the source, whose link they share."""
    shares = dict.fromkeys((name for name, _ in ARRIVALS), 0.0)
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in shares}
    for number in range(int(END / step)):
        now = number * step
        active = [name for name, asked in ARRIVALS if asked <= now and shares[name] < 1]
        for name in active:
            shares[name] = min(1.0, shares[name] + step / TRANSFER / len(active))
            curves[name].append((now, shares[name]))
    return curves


# The right end of the time axis.
END = 60.0


def timeline() -> str:
    """When each host receives the object: relayed, and all from its source."""
    receivers = all_receivers()
    moments = [number * 0.1 for number in range(int(END * 10))]
    relayed = {
        one.name: [(now, share) for now in moments if 0 < (share := share_of(one.name, receivers, now)) < 1]
        for one in receivers
    }
    sources = {one.name: f"from {one.sender}" for one in receivers}
    panels = [
        ("Relayed: a late reader receives from another one, or from A when it is idle", relayed, sources),
        ("For comparison: all receive from A, and share its link", star_shares(), dict.fromkeys(relayed, "from A")),
    ]
    left, width, row, panel = 40, 740, 26, 196
    parts = []
    for number, (title, curves, labels) in enumerate(panels):
        top = number * panel + 24
        words = Frame("", [])
        words.words(left, top, title, size=14, style=' font-weight="bold" style="text-anchor: start"')
        for line, (name, curve) in enumerate(curves.items()):
            y = top + 24 + line * row
            words.words(18, y + 4, name)
            begin, end = (left + width * now / END for now in (curve[0][0], curve[-1][0]))
            points = " ".join(f"{left + width * now / END:.1f},{y + 8 - 16 * share:.1f}" for now, share in curve[::8])
            words.parts.append(
                f'<rect x="{begin:.1f}" y="{y - 8}" width="{end - begin:.1f}" height="16" rx="2" fill="{INK}" '
                'fill-opacity="0.28"/>'
                f'<polygon points="{begin:.1f},{y + 8} {points} {end:.1f},{y - 8} {end:.1f},{y + 8}" fill="{BLUE}"/>'
            )
            words.words(end + 6, y + 4, labels[name], style=' style="text-anchor: start"')
        axis = top + 20 + len(curves) * row
        words.parts.append(f'<path d="M{left} {axis}H{left + width}" stroke="{INK}" fill="none"/>')
        for tick in range(7):
            x = left + width * tick * 10 / END
            words.parts.append(f'<path d="M{x:.1f} {axis}v5" stroke="{INK}"/>')
            words.words(x, axis + 18, str(tick))
        parts += words.parts
    caption = "time, as a multiple of one transfer over one link"
    last = Frame("", [])
    last.words(left + width / 2, 2 * panel + 14, caption)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 48} {2 * panel + 24}" role="img" '
        'font-family="system-ui, Helvetica, Arial, sans-serif">\n'
        "<title>When five hosts have an object: if they relay it, and if all receive it from one source</title>\n"
        + "\n".join([*parts, *last.parts])
        + "\n</svg>\n"
    )
