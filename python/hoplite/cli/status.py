"""`hoplite status`: how the node of this host is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hoplite.cli.output import print_json, print_table, size
from hoplite.errors import InvalidArgument
from hoplite.session import ADDRESS_VARIABLE, UNIX, connect
from hoplite.sockets import default_socket

if TYPE_CHECKING:
    from hoplite.client import Client

socket_option = click.option(
    "--socket",
    metavar="PATH",
    help="Unix socket of the node.  [default: HOPLITE_ADDRESS, or this user's node]",
)


def attach(socket: str | None) -> Client:
    """Attaches to a running node; starts none, for a node of this command would know nothing.

    Raises:
        ConnectError: none runs.
        InvalidArgument: HOPLITE_ADDRESS is that of a cluster, not of a node on this host.
    """
    if socket is not None:
        return connect(UNIX + socket.removeprefix(UNIX))
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address:
        return connect(f"{UNIX}{default_socket()}")
    if not address.startswith(UNIX):
        raise InvalidArgument(
            f"{ADDRESS_VARIABLE} is {address}; this command needs a node of this host, given by --socket"
        )
    return connect(address)


@click.command()
@socket_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(socket: str | None, as_json: bool) -> None:
    """Show the node of this host: members, store, bytes moved."""
    with attach(socket) as client:
        facts = client.status()
    if as_json:
        print_json(facts)
        return
    store = facts["store"]
    click.echo(f"node     {facts['id']} at {facts['address']}")
    click.echo(f"objects  {facts['objects']} here, {size(store['used'])} of {size(store['capacity'])}")
    click.echo()
    print_table(["member", "address"], [[member["id"], member["address"]] for member in facts["members"]])
    click.echo()
    print_table(
        ["counter", "value"],
        [[name, size(value) if name.startswith("bytes_") else str(value)] for name, value in facts["counters"].items()],
    )
