"""Locations of the copies of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Node, address, and whether the copy is complete, as the extension returns them.
    Row = tuple[str, str | None, bool]


class Location(NamedTuple):
    """One node that holds a copy of an object.

    Attributes:
        node: id of the node, as in `client.status()["id"]`.
        address: host and port of the node; None if the node has no TCP port.
        complete: whether the copy has all bytes. A copy that is not complete still grows.
    """

    node: str
    address: str | None
    complete: bool


class Watch:
    """The locations of an object that a watch has reported, so that only changes are reported."""

    def __init__(self) -> None:
        # Pairs of node and whether its copy is complete. The node compares them with the current state.
        self.known: list[tuple[str, bool]] = []

    def news(self, rows: list[Row]) -> list[Location]:
        """Returns the locations that are new or have changed since the last call."""
        before = set(self.known)
        self.known = [(node, complete) for node, _, complete in rows]
        return [Location(*row) for row, now in zip(rows, self.known, strict=True) if now not in before]
