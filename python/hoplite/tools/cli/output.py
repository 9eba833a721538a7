"""Output of all commands: tables, JSON, and errors with a next step."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from hoplite import errors
from hoplite.tools.quantities import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# Width to which the cells of a column are padded at most, where there is no terminal to wrap them.
PADDED_MAX = 64


class Failure(Exception):
    """A command failed, outside of the library; with a next step."""

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


# Next step for each kind of error. The message itself states the problem.
NEXT_STEP = {
    errors.AddressInUse: "choose another port with --listen or --http (port 0 selects a free one), or another --socket",
    errors.ConnectError: "start a node on this host with: hoplite node",
    errors.NotAllowed: "set another capability in HOPLITE_CAPABILITY; to show its rights: hoplite token show FILE",
    errors.JoinError: "compare address, --cluster and token or CA with those of the node to join: hoplite status",
    errors.NodeDown: "check that the node runs: hoplite status",
    errors.Timeout: "set a longer --timeout, or list the objects: hoplite objects --all",
    errors.ObjectLost: "put the object again",
    errors.ObjectCorrupt: "delete the object and put it again; hoplite status shows which member sent corrupt blocks",
    errors.ObjectDeleted: "put the object again",
    errors.NameTaken: "choose another --name, or delete the object: hoplite delete",
    errors.ShapeMismatch: "compare dtypes and shapes: hoplite objects --all",
    errors.StoreFull: "delete objects, or restart the node with more --capacity",
    errors.DecodeError: "get it in Python, with the modules of the program that put it: hoplite.init().get(ref)",
    errors.UnsupportedDtype: "put bytes or a numeric array; Python can put other values",
    errors.InvalidArgument: "read the command's --help",
    ImportError: "install it in the environment of this command",
}
# Of a JoinError with this text, the credentials are not the reason.
NO_LISTENER = "no node listens at"
START_FIRST = "start the node to join first, or correct its address; its port: hoplite status, on its host"


def fail(error: errors.HopliteError | Failure) -> int:
    """Prints an error and a next step to stderr.

    Returns:
        The exit code.
    """
    # Names of objects can have characters that change the direction of text.
    click.echo(f"error: {visible(str(error))}", err=True)
    steps = (step for kind, step in NEXT_STEP.items() if isinstance(error, kind))
    if isinstance(error, Failure):
        step = error.step
    elif isinstance(error, errors.JoinError) and NO_LISTENER in str(error):
        step = START_FIRST
    else:
        step = next(steps, "check the node: hoplite status")
    click.echo(f"try: {step}", err=True)
    return 1


def fail_with(message: str, step: str) -> NoReturn:
    """Ends the command with an error and a next step."""
    raise Failure(message, step)


@contextlib.contextmanager
def stepping(steps: Mapping[type[errors.HopliteError], str]) -> Iterator[None]:
    """Replaces the next step of some errors within one command."""
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
    """Prints a table: on a terminal wrapped to its width, elsewhere one line per row.

    Invisible characters and those that change the direction of text are escaped.

    Args:
        columns: their titles.
        rows: a cell for each column.
        whole: number of columns, from the left, that are never wrapped.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_lines([list(columns), *cells])
        return
    # Imported here because most commands print no table, and would start slower.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(Text(column), overflow="fold", no_wrap=number < whole)
    for row in cells:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def _print_lines(rows: list[list[str]]) -> None:
    from rich.cells import cell_len

    rows = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    # One long name does not move the columns of all rows.
    widths = [min(max(map(cell_len, column)), PADDED_MAX) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


class Notes:
    """Footnotes of a table: a number in the cell, and each text once below the table."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str) -> str:
        """Returns the mark of a text, as "[1]"."""
        text = " ".join(text.split())
        if text not in self._texts:
            self._texts.append(text)
        return f"[{self._texts.index(text) + 1}]"

    def print(self) -> None:
        """Prints all texts, one per line."""
        for number, text in enumerate(self._texts, 1):
            click.echo(f"[{number}] {text}")
