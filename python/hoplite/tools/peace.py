"""Counters that stay 0 without a fault: nothing restarts, fails or is rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTERS = (
    *("reduces_restarted", "fetches_failed", "transfers_slow", "blocks_corrupt", "copies_corrupt", "refusals"),
    *("spill_failures", "replicas_late"),
)


def of(counters: Mapping[str, int]) -> dict[str, int]:
    """Selects them from all counters of a node."""
    return {name: counters[name] for name in COUNTERS}


def disturbances(after: Mapping[str, int], before: Mapping[str, int] | None = None) -> list[str]:
    """Lists those that increased since the node's start, or since `before`."""
    moved = {name: after[name] - (before or {}).get(name, 0) for name in COUNTERS}
    return [f"{name} +{by}" for name, by in moved.items() if by]
