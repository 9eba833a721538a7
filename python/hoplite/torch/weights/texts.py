"""JSON of a known form, read from front to back, so that a caller checks each part before the next becomes objects.

Whoever may put a name may put any text, and a text of empty lists takes 27 times its size. Does not know manifests.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Text that is parsed at once.
PIECE_CHARS = 1 << 16

_NUMBER = re.compile(r"[0-9]{1,20}")
_PLAIN = re.compile(r'"([^"\\]*)"')
_NUMBERS = re.compile(r"[0-9,]*")


class Text:
    """A text, and a position in it.

    Args:
        data: the text, without spaces, in ASCII.

    Raises:
        ValueError: it is not ASCII.
    """

    def __init__(self, data: memoryview) -> None:
        self._text = str(data, "ascii")
        self._at = 0

    def skip(self, expected: str) -> None:
        """Moves behind a text that must be here.

        Raises:
            ValueError: another text is here.
        """
        if not self._text.startswith(expected, self._at):
            raise ValueError(f"{self._text[self._at : self._at + 30]!r} is in place of {expected!r}")
        self._at += len(expected)

    def skips(self, expected: str) -> bool:
        """Moves behind a text if it is here; returns whether it was."""
        is_here = self._text.startswith(expected, self._at)
        self._at += len(expected) * is_here
        return is_here

    def end(self) -> None:
        """Checks that nothing follows."""
        if self._at != len(self._text):
            raise ValueError(f"{self._text[self._at : self._at + 30]!r} follows")

    def number(self) -> Any:
        """Reads a number."""
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            raise ValueError(f"{self._text[self._at : self._at + 30]!r} is not a number")
        self._at = found.end()
        # Not int: it takes leading zeros.
        return json.loads(found[0])

    def string(self, chars_max: int) -> str:
        """Reads a string of at most so many characters."""
        found = _PLAIN.match(self._text, self._at, self._at + chars_max + 2)
        if found is not None:
            self._at = found.end()
            return found[1]
        # With escapes: up to two of 6 characters for each.
        window = self._text[self._at : self._at + 12 * chars_max + 2]
        if not window.startswith('"'):
            raise ValueError(f"{window[:30]!r} is not a string")
        text, end = json.JSONDecoder().raw_decode(window)
        if len(text) > chars_max:
            raise ValueError(f"a string has more than {chars_max} characters")
        self._at += end
        return str(text)

    def strings(self, count_max: int, chars_max: int) -> list[str]:
        """Reads a list of strings."""
        self.skip("[")
        found: list[str] = []
        if self.skips("]"):
            return found
        while True:
            found.append(self.string(chars_max))
            if self.skips("]"):
                return found
            self.skip(",")
            if len(found) == count_max:
                raise ValueError(f"a list has more than {count_max} strings")

    def numbers(self, count: int) -> list[int]:
        """Reads a list of so many numbers."""
        self.skip("[")
        end = self._text.index("]", self._at)
        if (self._text.count(",", self._at, end) + (end > self._at)) != count:
            raise ValueError(f"a list does not have {count} numbers")
        if _NUMBERS.fullmatch(self._text, self._at, end) is None:
            raise ValueError("a list of numbers is not valid")
        found: list[int] = json.loads(f"[{self._text[self._at : end]}]")
        self._at = end + 1
        return found

    def rows(self, close: str) -> Iterator[Any]:
        """Reads a list of lists, and yields each.

        Args:
            close: the end of each list, "]" or "]]", which is nowhere else in it. That of all is one "]" more.
        """
        self.skip("[")
        if self.skips("]"):
            return
        end = self._text.index(f"{close}]", self._at) + len(close)
        while self._at < end:
            stop = end
            if stop - self._at > PIECE_CHARS:
                stop = self._text.rindex(f"{close},", self._at, self._at + PIECE_CHARS) + len(close)
            piece = json.loads(f"[{self._text[self._at : stop]}]")
            self._at = stop + (stop < end)
            yield from piece
        self.skip("]")
