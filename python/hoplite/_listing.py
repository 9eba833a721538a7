"""Lists the objects of the whole cluster: each member is asked for those it owns, page by page.

Knows which question comes next, not how it is asked: a caller that waits and one that awaits drive the same questions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

# How often a listing begins again because a member went meanwhile; more than that is a cluster that falls apart.
ATTEMPTS = 3

# A member to ask, and the ref behind which its page begins.
Question = tuple[str, str | None]

# A JSON list, and the ref behind which the next page begins.
Page = tuple[str, str | None]


def questions(members: Iterable[str]) -> Generator[Question, Page, list[dict[str, Any]]]:
    """Yields each question, is sent its page, and returns all objects by their refs, each once."""
    found: dict[str, dict[str, Any]] = {}
    for member in members:
        after: str | None = None
        while True:
            text, after = yield member, after
            # Both owners of an object list it, so that none is missing while one of them goes. One may know less.
            for row in json.loads(text):
                row["owner"] = member
                known = found.get(row["ref"], row)
                found[row["ref"]] = max(known, row, key=lambda row: row["copies"])
            if after is None:
                break
    return [found[ref] for ref in sorted(found)]
