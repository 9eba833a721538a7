"""A copy of an object, and where it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Node, address, and whether the copy is complete, as the extension tells them.
    Row = tuple[str, str | None, bool]


class Location(NamedTuple):
    """One node that holds a copy of an object.

    Attributes:
        node: the identity of the node, as `client.status()["id"]` gives it.
        address: host and port of the node; None of one that no other can join.
        complete: whether it has all bytes; a copy that is not complete still grows.
    """

    node: str
    address: str | None
    complete: bool


class Watch:
    """What has been told of an object's locations, so that only news are told again."""

    def __init__(self) -> None:
        # Pairs of node and whether its copy is complete, for the node to compare.
        self.known: list[tuple[str, bool]] = []

    def news(self, rows: list[Row]) -> list[Location]:
        """Those of all locations that were not known as they are now; from now on they are."""
        before = set(self.known)
        self.known = [(node, complete) for node, _, complete in rows]
        return [Location(*row) for row, now in zip(rows, self.known, strict=True) if now not in before]
