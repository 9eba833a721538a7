"""What only a fault can bring about, among the counters of nodes: without one nothing restarts, fails or is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTERS = (
    *("reduces_restarted", "fetches_failed", "transfers_slow", "blocks_corrupt", "copies_corrupt", "refusals"),
    *("spill_failures", "keepers_late"),
)


def of(counters: Mapping[str, int]) -> dict[str, int]:
    """These of all counters of a node."""
    return {name: counters[name] for name in COUNTERS}


def disturbances(after: Mapping[str, int], before: Mapping[str, int] | None = None) -> list[str]:
    """Which of them moved, in words: since the node's start, or since they were `before`."""
    moved = {name: after[name] - (before or {}).get(name, 0) for name in COUNTERS}
    return [f"{name} +{by}" for name, by in moved.items() if by]
