"""How a listing of the directory is ordered and cut. Sends no request."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hoplite._arguments import check_limit, check_prefix, check_ref
from hoplite.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from hoplite.listing import DirectoryEntry
    from hoplite.ref import Ref

BY_REF = "ref"
# Fields by which the largest value comes first.
BY_SIZE = ("bytes", "age", "copies")


class Listing(NamedTuple):
    """The arguments of `Client.directory`, checked.

    Attributes:
        prefix: start of the refs to list.
        sort: the field to sort by.
        limit: maximum number of rows; None means all.
        after: text of the ref that the listing starts after, in the order of refs.
    """

    prefix: str
    sort: str
    limit: int | None
    after: str | None

    @classmethod
    def checked(cls, prefix: Ref | str, sort: str, limit: int | None, after: Ref | str | None) -> Self:
        """Checks the arguments.

        Raises:
            InvalidArgument: one of them is not valid.
        """
        if sort not in (BY_REF, *BY_SIZE):
            raise InvalidArgument(f"sort is {sort!r}: set {BY_REF}, {', '.join(BY_SIZE[:-1])} or {BY_SIZE[-1]}")
        if after is not None and sort != BY_REF:
            raise InvalidArgument(f'after works only in a listing sorted by ref, not by {sort}: set sort="ref"')
        return cls(check_prefix(prefix), sort, check_limit(limit), None if after is None else check_ref(after))

    def is_enough(self, rows: int) -> bool:
        """Whether this many rows from one node, in the order of refs, include all of its rows in the result."""
        return self.sort == BY_REF and self.limit is not None and rows >= self.limit

    def arranged(self, rows: Iterable[DirectoryEntry]) -> list[DirectoryEntry]:
        """Sorts rows and cuts them to the limit."""
        if self.sort == BY_REF:
            return sorted(rows, key=lambda row: _order(row["ref"]))[: self.limit]
        # Each of BY_SIZE is a field with a number.
        return sorted(rows, key=lambda row: (-row[self.sort], row["ref"]))[: self.limit]  # type: ignore[literal-required]


def _order(ref: str) -> tuple[int, str, int]:
    """The order in which owners list refs: ids by node and number, then names."""
    node, dot, number = ref.partition(".")
    if ref.startswith("@") and dot:
        return 0, node, int(number, 16)
    return 1, ref, 0
