"""The Rust extension. Private: `problem`, `planning`, `linear` and `study` are its documented interfaces."""

from collections.abc import Sequence
from typing import Any, final

__all__ = [
    "Rings",
    "Topology",
    "collective_pairs",
    "make_data_centre",
]

# `problem` has the classes of `wanted` and `search`.
@final
class Topology:
    def __new__(
        cls, rtt: list[float], machines: int, cluster: list[int], nic: float, uplinks: list[float]
    ) -> Topology: ...
    def clusters_by_gaps(self) -> list[list[int]]: ...
    def clusters_by_means(self, seed: int) -> list[int]: ...
    def plan(self, wanted: object, search: object) -> dict[str, Any]: ...
    def cost(self, wanted: object, name: str, order: list[int]) -> float: ...
    def reason(self, wanted: object, cluster: list[int], before: list[int], after: list[int]) -> str: ...
    def rings(self, wanted: object, name: str) -> Rings: ...
    def simulate(
        self, wanted: object, links: tuple[int, float, float], seed: int, orders: list[list[int]]
    ) -> list[float]: ...

@final
class Rings:
    @property
    def scale(self) -> float: ...
    def near(self, count: int) -> list[tuple[int, int]]: ...
    def costs(self, edges: Sequence[tuple[int, int]]) -> list[float]: ...
    def length(self, order: list[int]) -> float: ...
    def cuts(
        self, edges: Sequence[tuple[int, int]], parts: list[float]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]: ...
    def bound(
        self,
        nodes: list[float],
        cuts: list[tuple[list[int], list[tuple[int, int]], float]],
        fixed: list[tuple[int, int, bool]],
        among: Sequence[tuple[int, int]] | None,
        known: float | None,
    ) -> tuple[float, list[tuple[float, int, int]]]: ...
    def shorten(
        self,
        start: tuple[list[int], list[float]],
        edges: list[tuple[float, int, int]],
        kicks: int,
        seconds: float,
        seed: int,
    ) -> list[int]: ...

def make_data_centre(machines: int, seed: int) -> tuple[list[float], list[int]]: ...
def collective_pairs(wanted: object, ranks: int) -> list[list[tuple[int, int]]]: ...
