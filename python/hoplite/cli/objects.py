"""`hoplite objects`, `hoplite locations` and `hoplite delete`: what is where, and away with it."""

from __future__ import annotations

import sys
from typing import Any

import click

from hoplite.cli.attach import attach, complete_ref, socket_option
from hoplite.cli.output import print_json, print_table, size


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
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with the refs.")
def delete(refs: tuple[str, ...], timeout: float, socket: str | None, as_json: bool) -> None:
    """Delete all copies of objects, everywhere.

    Arrays that somebody has already got stay valid. An object that does not exist is no error.

    \b
    Examples:
      hoplite delete policy/17 policy/18
      hoplite objects --prefix policy/ --json | jq -r '.[].ref' | xargs hoplite delete
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        client.delete(refs, timeout=timeout)
    if as_json:
        print_json({"deleted": list(refs)})


@click.command()
@click.argument("ref", metavar="REF", shell_complete=complete_ref)
@click.option("--watch", is_flag=True, help="Go on, and print each location as it comes, until Ctrl-C.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list; with --watch an object on each line.")
def locations(ref: str, watch: bool, timeout: float, socket: str | None, as_json: bool) -> None:
    """List the nodes that hold an object.

    \b
    Examples:
      hoplite locations policy/17
      hoplite locations policy/17 --watch
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    with attach(socket) as client:
        if not watch:
            rows = [place._asdict() for place in client.locations(ref, timeout=timeout)]
            if as_json:
                print_json(rows)
            else:
                print_table(["node", "address", "copy"], [_words(row) for row in rows])
            return
        for place in client.locations(ref, watch=True):
            row = place._asdict()
            if as_json:
                print_json(row)
            else:
                click.echo("  ".join(_words(row)))
            sys.stdout.flush()


def _words(row: dict[str, Any]) -> list[str]:
    return [row["node"], row["address"], "complete" if row["complete"] else "growing"]
