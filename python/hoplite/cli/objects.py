"""`hoplite objects`, `hoplite locations` and `hoplite delete`: what is where, and away with it."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from hoplite.cli.attach import attach, complete_ref, socket_option
from hoplite.cli.output import print_json, print_table, size
from hoplite.errors import HopliteError

if TYPE_CHECKING:
    from collections.abc import Iterable


@click.command()
@click.option("--prefix", default="", metavar="TEXT", help="Only refs that begin so, such as policy/.")
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list, with exact sizes.")
def objects(prefix: str, socket: str | None, as_json: bool) -> None:
    """List the copies that the node of this host holds.

    \b
    Examples:
      hoplite objects --prefix policy/
      hoplite objects --json | jq 'map(.bytes) | add'
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        copies = [copy for copy in client.objects() if copy["ref"].startswith(prefix)]
    if as_json:
        print_json(copies)
        return
    print_table(
        ["ref", "size", "state", "pinned"],
        [[copy["ref"], size(copy["bytes"]), copy["state"], "pinned" if copy["pinned"] else ""] for copy in copies],
    )


@click.command()
@click.argument("refs", metavar="REF...", nargs=-1, required=True, shell_complete=complete_ref)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until the owners of the objects know.",
)
@socket_option
def delete(refs: tuple[str, ...], timeout: float, socket: str | None) -> None:
    """Delete all copies of objects, everywhere.

    Arrays that somebody has already got stay valid. An object that does not exist is no error.

    \b
    Examples:
      hoplite delete policy/17 policy/18
      hoplite objects --prefix policy/ --json | jq -r '.[].ref' | xargs hoplite delete
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        client.delete(refs, timeout=timeout)


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option("--watch", is_flag=True, help="Go on, and print the list again whenever it changes.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; with --watch one on each line.")
def locations(ref: str, watch: bool, timeout: float, socket: str | None, as_json: bool) -> None:
    """List the nodes that hold an object.

    \b
    Examples:
      hoplite locations policy/17
      hoplite locations policy/17 --watch
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        ask = getattr(client, "locations", None)
        if ask is None:
            raise HopliteError("this release can't tell where an object is; hoplite objects lists what is on this host")
        if not watch:
            _print_locations(ask(ref, timeout=timeout), as_json)
            return
        for now in ask(ref, watch=True, timeout=None):
            _print_locations(now if isinstance(now, list | tuple) else [now], as_json)
            sys.stdout.flush()


def _print_locations(places: Iterable[Any], as_json: bool) -> None:
    rows = [_fields(place) for place in places]
    if as_json:
        print_json(rows)
        return
    columns = list(rows[0]) if rows else ["node", "address"]
    print_table(columns, [[str(row[column]) for column in columns] for row in rows])


def _fields(place: Any) -> dict[str, Any]:  # noqa: ANN401 - a row, however the client words it
    if dataclasses.is_dataclass(place) and not isinstance(place, type):
        return dataclasses.asdict(place)
    return dict(place._asdict() if hasattr(place, "_asdict") else place)
