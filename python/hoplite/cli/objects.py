"""`hoplite objects`: what the node of this host holds."""

from __future__ import annotations

import click

from hoplite.cli.output import print_json, print_table, size
from hoplite.cli.status import attach, socket_option


@click.command()
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def objects(socket: str | None, as_json: bool) -> None:
    """List the copies that the node of this host holds."""
    with attach(socket) as client:
        copies = client.objects()
    if as_json:
        print_json(copies)
        return
    print_table(
        ["ref", "size", "state", "pinned"],
        [[copy["ref"], size(copy["bytes"]), copy["state"], "pinned" if copy["pinned"] else ""] for copy in copies],
    )
