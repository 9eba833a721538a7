"""Which fold of a reduce sends its sum to which. A fold lists its children, but does not know its parent."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hoplite.tools.observe.collect import Row


def pairs(folds: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Yields each fold that has a parent, with that parent.

    Args:
        folds: events or rows with "result", "epoch", "position", "children", and in "recorder" the id of their node. A
            position of None is the fold of the node whose client called the reduce.
    """
    below: defaultdict[Any, list[Row]] = defaultdict(list)
    ordered = sorted(folds, key=lambda fold: -1 if fold.get("position") is None else fold["position"])
    for fold in ordered:
        if fold.get("position") is not None:
            below[fold["recorder"], fold.get("result"), fold.get("epoch")].append(fold)
    for fold in ordered:
        for node in fold.get("children") or ():
            # A node can have several positions.
            there = below[node, fold.get("result"), fold.get("epoch")]
            child = next((one for one in there if one is not fold), None)
            if child is not None:
                there.remove(child)
                yield child, fold
