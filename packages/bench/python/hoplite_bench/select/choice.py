"""The choice among candidates: the fastest, unless the present one is almost as fast. Pure.

The present one is the choice of an earlier plan, or else the default of the layer. It is replaced only for a gain above
HYSTERESIS, so that noise does not alternate between two equal candidates. A candidate whose interval allows for more
than LIMIT times the time of the default is not chosen in its place.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hoplite_bench.select.model import Curve, crossover

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hoplite_bench.plan import Contender
    from hoplite_bench.select.estimates import Estimate

HYSTERESIS = 0.05
LIMIT = 1.10


def choose(
    found: Mapping[Contender, Estimate], *, default: Contender | None, previous: Contender | None = None
) -> tuple[Contender, str]:
    """Chooses for one operation and one size.

    Args:
        found: the estimates of all eligible candidates; at least one.
        default: the candidate that applies without a choice.
        previous: the choice of an earlier plan.

    Returns:
        The chosen candidate and the reason.
    """
    best = min(found, key=lambda one: found[one].seconds)
    seconds = found[best].seconds
    if (
        default is not None
        and default in found
        and default != best
        and found[best].high > LIMIT * found[default].seconds
    ):
        return default, f"the default: {name(best)} is not reliably faster"
    present = previous if previous in found else default
    if present is not None and present in found and found[present].seconds <= (1 + HYSTERESIS) * seconds:
        what = "the earlier choice" if present == previous else "the default"
        if present == best:
            return present, f"the fastest, and {what}"
        gain = 1 - seconds / found[present].seconds
        return present, f"{what}: {name(best)} is only {gain:.0%} faster"
    others = [one for one in found if one != best]
    if not others:
        return best, "the only candidate"
    second = min(others, key=lambda one: found[one].seconds)
    ratio = found[second].seconds / seconds
    overlaps = found[second].low < found[best].high
    return best, f"the fastest; {name(second)} takes {ratio:.2f} times" + (", within the noise" if overlaps else "")


def ranges(
    chosen: Mapping[int, Contender], curves: Mapping[Contender, Curve]
) -> Sequence[tuple[int | None, Contender]]:
    """Joins the choices at some sizes into ranges of sizes.

    Args:
        chosen: the choice at each size in bytes.
        curves: the times of the chosen candidates by size.

    Returns:
        Ascending limits in bytes with the choice below each; the last limit is None.
    """
    found: list[tuple[int | None, Contender]] = []
    for low, high in itertools.pairwise(sorted(chosen)):
        one, other = chosen[low], chosen[high]
        if one != other:
            found.append((crossover(curves[one], curves[other], low, high), one))
    return [*found, (None, chosen[max(chosen)])]


def name(one: Contender) -> str:
    """A candidate in a sentence."""
    return one.system if one.variant == "default" else f"{one.system} {one.variant}"
