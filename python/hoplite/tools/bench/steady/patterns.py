"""The patterns of a steady run: what a step moves, how many answers it takes, and its bound.

Pure: knows neither processes nor links. A time is given in transfers: how long one object takes over one link.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A communication pattern.

    Attributes:
        title: a noun phrase for tables.
        answers: how many answers a step takes, by the number of workers.
        transfers: the bound of a step in transfers, by the number of answers.
        why: what the bound counts.
        folds: whether the server reduces the answers rather than getting each.
        everyone: whether each worker gets the new weights, and not only those whose answers the step took.
    """

    title: str
    answers: Callable[[int], int]
    transfers: Callable[[int], int]
    why: str
    folds: bool = True
    everyone: bool = False


def majority(workers: int) -> int:
    """More than half of the workers: each step needs at least one answer to the newest weights."""
    return workers // 2 + 1


PATTERNS = {
    "async": Pattern(
        "asynchronous parameter server",
        majority,
        lambda _: 2,
        "the weights leave the server, then a sum that needs an answer to them comes back",
        everyone=True,
    ),
    "sync": Pattern(
        "synchronous parameter server",
        lambda workers: workers,
        lambda _: 2,
        "the weights leave the server, then the sum of all answers to them comes back",
        everyone=True,
    ),
    "gradients": Pattern(
        "gradients, as in A3C",
        majority,
        lambda _: 2,
        "the weights leave the learner, then a sum that needs an answer to them comes back",
    ),
}
