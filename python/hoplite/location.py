"""A copy of an object, and where it is."""

from __future__ import annotations

from typing import NamedTuple


class Location(NamedTuple):
    """One node that holds a copy of an object.

    Attributes:
        node: the identity of the node, as `client.status()["id"]` gives it.
        address: host and port of the node.
        complete: whether it has all bytes; a copy that is not complete still grows.
    """

    node: str
    address: str
    complete: bool
