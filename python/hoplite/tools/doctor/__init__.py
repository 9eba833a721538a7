"""Checks of a host and a cluster: what is wrong, and the command that fixes it."""

from __future__ import annotations

from typing import Literal, NamedTuple

# "unchecked": the check needs something that is missing here, such as a running node.
Level = Literal["ok", "warning", "problem", "unchecked"]


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        check: what was checked, in one or two words.
        level: whether it is right.
        text: what was found.
        fix: what to change, in the imperative, with the command; None if nothing.
    """

    check: str
    level: Level
    text: str
    fix: str | None = None
