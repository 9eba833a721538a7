"""The Markdown of a report, in parts: tables whose cells are never empty, and the notes below them.

Knows how a row is shown, not which rows are shown together; that is `report.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hoplite_bench import tables, words
from hoplite_bench.row import STREAM, WIRE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hoplite_bench.row import Row

DEFAULT = "default"


class Notes:
    """What a reader must know of some cells of one table: a number at the cell, the text below the table."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """The number of a note; the same text has the same."""
        text = plain(text)
        if text not in self._texts:
            self._texts.append(text)
        return f"<sup>{self._texts.index(text) + 1}</sup>"

    def lines(self) -> list[str]:
        """The notes, a paragraph each."""
        return [line for number, text in enumerate(self._texts, 1) for line in (f"<sup>{number}</sup> {text}", "")]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Writes a table whose first column is words and whose others are figures, and a blank line."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Hides lines until a reader asks for them."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


def plain(text: str) -> str:
    """One line of a system's own words, in which no character means anything."""
    escaped = "".join(f"\\{character}" if character in "\\`*_[]|#" else character for character in text)
    return " ".join(escaped.replace("<", "&lt;").split())


def figure(row: Row | None, notes: Notes, *, strong: bool = False, before: float | None = None) -> str:
    """The cell of a row: its median, how many times the wire that is, and its variant if it is not the default.

    Args:
        row: None if there is none.
        notes: takes why there is no figure, and what the row says beside it.
        strong: whether this is the fastest.
        before: seconds from the first call to the last; what both take together stands after a slash.
    """
    if row is None:
        return f"not measured{notes.mark('The files have no such row.')}"
    if not row.samples:
        return f"{words.no_figure(row)}{notes.mark(f'{words.name(row.system)}: {words.why(row)}')}"
    text = words.seconds(tables.median(row))
    if row.wire_ratio is not None:
        text += f" · {words.number(row.wire_ratio)}×"
    if before is not None:
        text += f" / {words.seconds(tables.median(row) + before)}"
    text = f"**{text}**" if strong else text
    text += _marks(row, notes)
    shown = row.variant if row.system != WIRE else DEFAULT
    return text if shown == DEFAULT else f"{text}<br>{plain(shown)}"


def spread(row: Row | None, notes: Notes) -> str:
    """The cell of a row with its least and greatest sample, and how many there are."""
    if row is None or not row.samples or row.seconds is None:
        return figure(row, notes)
    least, greatest = words.seconds(row.seconds["min"]), words.seconds(row.seconds["max"])
    text = f"{words.seconds(tables.median(row))}<br>{least} to {greatest}, n={len(row.samples)}"
    return text + _marks(row, notes)


def _marks(row: Row, notes: Notes) -> str:
    """The numbers of the notes on a figure: what the row says, and whether its repeats take ever longer."""
    found = [note for note in (row.note, tables.drift(row)) if note]
    return "".join(notes.mark(f"{words.name(row.system)}: {note}") for note in found)


def variant(row: Row) -> str:
    """A system's name, with its variant if that is not the default."""
    shown = row.variant in (DEFAULT, STREAM)
    return words.name(row.system) if shown else f"{words.name(row.system)} ({plain(row.variant)})"
