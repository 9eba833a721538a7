"""Rounds of disjoint pairs: no machine is in two pairs of a round, so pairs do not disturb each other.

Identifies machines by number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Pair = tuple[int, int]


def rounds(count: int) -> list[list[Pair]]:
    """Each pair of machines once, in the minimum number of rounds: machines minus one, or machines if that is odd.

    Uses the circle method: one machine is fixed, the others rotate.
    """
    places = count + count % 2
    found = []
    for turn in range(places - 1 if count > 1 else 0):
        circle = [(turn + place) % (places - 1) for place in range(places - 1)]
        pairs = [(turn, places - 1)]
        pairs += [(circle[place], circle[-place]) for place in range(1, places // 2)]
        # The last place is empty if the count is odd.
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < count])
    return found


def packed(pairs: Iterable[Pair], count: int) -> list[list[Pair]]:
    """Distributes pairs over rounds of disjoint pairs: the rounds of `rounds` without the other pairs, merged.

    Args:
        pairs: pairs as (smaller, larger).
        count: number of all machines.
    """
    wanted = set(pairs)
    found: list[list[Pair]] = []
    busy: list[set[int]] = []
    for turn in rounds(count):
        left = [pair for pair in turn if pair in wanted]
        # A round with few pairs is merged into earlier ones in which its machines are free.
        whole = len(left) * 2 >= count - 1
        for pair in left if not whole else []:
            place = next((place for place, taken in enumerate(busy) if taken.isdisjoint(pair)), None)
            if place is None:
                found.append([])
                busy.append(set())
                place = len(found) - 1
            found[place].append(pair)
            busy[place].update(pair)
        if whole and left:
            found.append(left)
            busy.append({machine for pair in left for machine in pair})
    return found
