"""What the commands share: tables, JSON, errors that end with what to try next."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, NoReturn

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hoplite import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class Failure(Exception):
    """A command failed in its own part; with what to try next."""

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


# What helps most often, by kind of error; the message itself has said what is wrong.
NEXT_STEP = {
    errors.AddressInUse: "choose another port with --listen (127.0.0.1:0 takes any free one) or another --socket",
    errors.ConnectError: "start a node on this host with: hoplite node",
    errors.NotAllowed: "another capability, in HOPLITE_CAPABILITY; what it allows tells: hoplite token show FILE",
    errors.JoinError: "check that address, --cluster and the token or CA are those of the node to join: hoplite status",
    errors.NodeDown: "look whether the node still runs: hoplite status",
    errors.Timeout: "a longer --timeout, or look at what is there: hoplite objects --all",
    errors.ObjectLost: "put it again",
    errors.ObjectCorrupt: "hoplite delete it, put it again, and see in hoplite status who sent corrupt blocks",
    errors.ObjectDeleted: "put it again",
    errors.NameTaken: "another --name, or delete it first: hoplite delete",
    errors.ShapeMismatch: "look at the dtypes and shapes: hoplite objects --all",
    errors.StoreFull: "delete objects, or start the node with more --capacity",
    errors.DecodeError: "get it in Python, where it was put: hoplite.init().get(ref)",
    errors.UnsupportedDtype: "put arrays of numbers or bytes; Python puts more kinds of values",
    errors.InvalidArgument: "see the command's --help",
}


def fail(error: errors.HopliteError | Failure) -> int:
    """Says on stderr what went wrong and what to try next.

    Returns:
        The exit code.
    """
    click.echo(f"error: {error}", err=True)
    steps = (step for kind, step in NEXT_STEP.items() if isinstance(error, kind))
    step = error.step if isinstance(error, Failure) else next(steps, "look whether the node is well: hoplite status")
    click.echo(f"try: {step}", err=True)
    return 1


def fail_with(message: str, step: str) -> NoReturn:
    """Ends the command with what went wrong and what to try next."""
    raise Failure(message, step)


@contextlib.contextmanager
def stepping(steps: Mapping[type[errors.HopliteError], str]) -> Iterator[None]:
    """What helps with errors of some kinds in one command, where that is not what helps in all."""
    try:
        yield
    except errors.HopliteError as error:
        step = next((step for kind, step in steps.items() if isinstance(error, kind)), None)
        if step is None:
            raise
        fail_with(str(error), step)


def print_json(value: object) -> None:
    """Prints one JSON document on one line."""
    click.echo(json.dumps(value))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: int = 0) -> None:
    """Prints a table: on a terminal as it fits there; elsewhere each row on a line of its own, however long.

    No character of a cell means anything: those that show nothing, or turn the direction of a line, are escaped.

    Args:
        columns: their titles.
        rows: a cell for each column.
        whole: so many columns, from the left, are never broken into lines.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_lines([list(columns), *cells])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", no_wrap=number < whole)
    for row in cells:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def visible(text: str) -> str:
    """A text with an escape in place of each character that is not to be seen, but for the ends of lines."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)


def _print_lines(rows: list[list[str]]) -> None:
    rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


class Notes:
    """What does not fit into a table's cell: a number there, the text below the table, each text once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """The number of a text, as "[1]"."""
        text = " ".join(text.split())
        if text not in self._texts:
            self._texts.append(text)
        return f"[{self._texts.index(text) + 1}]"

    def print(self) -> None:
        """Prints all texts, one a line."""
        for number, text in enumerate(self._texts, 1):
            click.echo(f"[{number}] {text}")
