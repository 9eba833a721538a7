"""Markdown building blocks of a report: tables without empty cells, and the notes below them.

Formats one row of a measurement; `report.py` decides which rows appear together.
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
    """Remarks on cells of one table: a number in the cell, the text below the table."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """Returns the number of a note; equal texts share one number."""
        text = plain(text)
        if text not in self._texts:
            self._texts.append(text)
        return f"<sup>{self._texts.index(text) + 1}</sup>"

    def lines(self) -> list[str]:
        """The notes, one paragraph each."""
        return [line for number, text in enumerate(self._texts, 1) for line in (f"<sup>{number}</sup> {text}", "")]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Formats a table with text in the first column and numbers in the others, followed by a blank line."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines] + [""]


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Wraps lines in a section that readers can expand."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]


def plain(text: str) -> str:
    """Formats external text as one line, with Markdown escaped."""
    escaped = "".join(f"\\{character}" if character in "\\`*_[]|#" else character for character in text)
    return " ".join(escaped.replace("<", "&lt;").split())


def figure(row: Row | None, notes: Notes, *, strong: bool = False, before: float | None = None) -> str:
    """Formats the cell of a row: its median, its ratio to the wire, and its variant if it is not the default.

    Args:
        row: the row; None if it does not exist.
        notes: receives the reason for missing samples, and the note of the row.
        strong: whether this is the fastest.
        before: seconds from the first call to the last; the total is appended after a slash.
    """
    if row is None:
        return f"not measured{notes.mark('The files contain no such row.')}"
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
    """Formats the cell of a row with its minimum, its maximum, and the number of samples."""
    if row is None or not row.samples or row.seconds is None:
        return figure(row, notes)
    least, greatest = words.seconds(row.seconds["min"]), words.seconds(row.seconds["max"])
    text = f"{words.seconds(tables.median(row))}<br>{least} to {greatest}, n={len(row.samples)}"
    return text + _marks(row, notes)


def _marks(row: Row, notes: Notes) -> str:
    """The note numbers of a figure: the row's own note, and a warning if its repeats become slower."""
    found = [note for note in (row.note, tables.drift(row)) if note]
    return "".join(notes.mark(f"{words.name(row.system)}: {note}") for note in found)


def variant(row: Row) -> str:
    """A system's name, with its variant if that is not the default."""
    shown = row.variant in (DEFAULT, STREAM)
    return words.name(row.system) if shown else f"{words.name(row.system)} ({plain(row.variant)})"
