"""The pictures of a reduce: growing over five frames, and with inputs that arrive in another order, one of them lost.

The tree has the seats that crates/proto/src/reduce/shape.rs gives to five inputs in a binary tree.
"""

from __future__ import annotations

from canvas import BLUE, INK, ORANGE, Frame, legend, svg

# Seats of a binary tree of five in order of arrival, a left subtree before its node: C is the top. P called the reduce,
# R wants the result, F comes too late.
SEATS = {"C": (98, 100), "B": (46, 156), "A": (46, 212), "E": (150, 156), "D": (150, 212)}
OTHERS = {"P": (226, 100), "R": (226, 156), "F": (226, 212)}

# Who folds the sum that a seat sends; P pulls from the top.
PARENTS = {"A": "B", "B": "C", "D": "E", "E": "C", "C": "P"}


def growing() -> str:
    """Five moments of a reduce."""
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


# A chain of three positions, whose last one sends to P. Below it, the hosts of inputs without a position.
CHAIN = [(46.0, 100.0), (138.0, 100.0), (230.0, 100.0)]
CALLER = (230.0, 156.0)
OUTSIDE = [(37.0, 218.0), (104.0, 218.0), (171.0, 218.0), (238.0, 218.0)]


def out_of_order() -> str:
    """Five moments of a reduce of the first three of five inputs, which arrive in another order, and one is lost."""
    # Title and caption; inputs in order of position; those that send; those whose host failed; the share of P.
    moments: list[tuple[str, str, list[int], list[int], float]] = [
        ("1. Input 4 arrives first", "P reduces the first 3 of 5 inputs.|4 takes the first position.", [4], [], 0),
        ("2. Input 1 arrives", "1 takes the next position|and adds what 4 sends to its own.", [4, 1], [4], 0),
        (
            "3. The host of 1 fails",
            "The epoch is aborted and its sums are|dropped. 4 still has its input.",
            [4],
            [],
            0,
        ),
        (
            "4. Inputs 5 and 2 arrive",
            "The next epoch has three inputs:|P receives the sum block by block.",
            [4, 5, 2],
            [4, 5, 2],
            0.6,
        ),
        ("5. Done", "Input 3 arrives too late.|inputs() returns 4, 5 and 2.", [4, 5, 2], [], 1),
    ]
    frames = []
    for number, (title, caption, seated, sending, result) in enumerate(moments):
        frame = Frame(title, caption.split("|"))
        for place, text in zip(CHAIN, [*map(str, seated), "", "", ""], strict=False):
            frame.host(place, text, 1 if text else None)
        frame.host(CALLER, "P", result, color=ORANGE)
        others = [name for name in range(1, 6) if name not in seated]
        for place, name in zip(OUTSIDE, others, strict=False):
            has_failed = name == 1 and number >= 2
            frame.host(place, f"{name} failed" if has_failed else str(name), 1 if number == 4 and name == 3 else None)
        for at, name in enumerate(seated):
            if name in sending:
                frame.arrow(CHAIN[at], CHAIN[at + 1] if at + 1 < len(CHAIN) else CALLER, color=ORANGE)
        frames.append(frame)
    signs = [("bar", BLUE, "complete input"), ("bar", ORANGE, "share of the sum received")]
    signs += [("arrow", ORANGE, "partial sum in transit"), ("none", INK, "no input yet")]
    return svg(
        "Inputs of a reduce arrive in another order, one is lost, and the next epoch uses others", frames, legend(signs)
    )
