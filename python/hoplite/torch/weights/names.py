"""Names of the objects of a publication, and checks of the names and timeouts that callers pass.

"policy/17" is the manifest of a complete version. "policy/.announced/17" is the same manifest, put before the data, so
that receivers request the data while it is being copied. Shard 2 of a version announces itself as
"policy/.announced/17.2.ID", with the id of shard 0, and refs that are put before the announcement are listed in
"policy/.announced/17.draft2-0.ID". Data objects have ids, which the publisher reserves: if it fails
before it has put them, calls that wait for them raise `ObjectLost`.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from hoplite import InvalidArgument, Ref

ANNOUNCED = ".announced/"


class Version(NamedTuple):
    """A version of a model.

    Attributes:
        prefix: text before the number, with the slash.
        number: the version.
    """

    prefix: str
    number: int

    @classmethod
    def of(cls, name: Ref | str) -> Version:
        """Parses a name such as "policy/17".

        Raises:
            InvalidArgument: the name does not end in "/" and a number.
        """
        ref = name if isinstance(name, Ref) else Ref(name)
        number = ref.number
        text = str(ref)
        if text.startswith("@"):
            raise InvalidArgument(f'{text} is an id: publish under a name such as "policy/17"')
        prefix = text[: text.rindex("/") + 1]
        # "policy/017" would be another object than the 17 that receivers look for.
        if text != f"{prefix}{number}":
            raise InvalidArgument(f"{text} has leading zeros: write {prefix}{number}")
        return cls(prefix, number)

    @property
    def name(self) -> str:
        """Name of the manifest of the complete version."""
        return f"{self.prefix}{self.number}"

    @property
    def announcement(self) -> str:
        """Name of the manifest that is put before the data."""
        return f"{self.prefix}{ANNOUNCED}{self.number}"

    def shard(self, rank: int, of: str) -> str:
        """Name of the manifest of one shard, of the publication whose first shard has this id."""
        return f"{self.announcement}.{rank}.{of}"

    def drafts(self, rank: int) -> str:
        """Prefix of the names of lists of refs that a shard puts before its announcement."""
        return f"{self.announcement}.draft{rank}-"


class Deadline:
    """The end of a timeout.

    Args:
        timeout: seconds from now; None means no limit.

    Raises:
        InvalidArgument: the timeout is not a number of seconds.
    """

    def __init__(self, timeout: float | None) -> None:
        given: object = timeout
        is_number = isinstance(given, float | int) and not isinstance(given, bool)
        if timeout is not None and (not is_number or math.isnan(timeout) or timeout < 0):
            raise InvalidArgument(f"timeout is {timeout!r}: set a number of seconds from 0 up, or None for no limit")
        self.timeout = timeout
        self._begun = time.monotonic()

    def left(self) -> float | None:
        """Seconds until the end, at least 0; None for no limit."""
        return None if self.timeout is None else max(0.0, self.timeout - (time.monotonic() - self._begun))
