"""`hoplite page`: the live page of a node that runs elsewhere."""

from __future__ import annotations

import signal

import click

from hoplite import settings, viewers
from hoplite.errors import AddressInUse, InvalidArgument
from hoplite.tools.cli.attach import attach
from hoplite.tools.cli.node import ENDS
from hoplite.tools.cli.options import json_option, socket_option
from hoplite.tools.cli.output import print_json, stepping

DEFAULT = "127.0.0.1:7480"


@click.command()
@click.option(
    "--http",
    metavar="[HOST:]PORT",
    help=f"Address of the page; a port alone is one of loopback, 0 a free one.  [default: HOPLITE_HTTP, or {DEFAULT}]",
)
@click.option(
    "--token-file",
    metavar="FILE",
    help="File of the cluster token, from which the key for viewers is derived.  [default: HOPLITE_TOKEN_FILE, "
    "HOPLITE_TOKEN, or the secret of this user]",
)
@click.option("--http-key-file", metavar="FILE", help="File with the key instead.  [default: HOPLITE_HTTP_KEY_FILE]")
@socket_option
@json_option("Print the URL as JSON.")
def page(
    http: str | None, token_file: str | None, http_key_file: str | None, socket: str | None, as_json: bool
) -> None:
    """Serve the live page and the metrics of a node of this host, until Ctrl-C.

    Use it for nodes without the setting http, such as those of C++ programs.

    \b
    Example:
      hoplite page --http 7480
      hoplite token viewer
    """  # noqa: D301 - \b is a backspace, which keeps click from joining the lines
    address = None if http is None else settings.TABLE["http"].from_text(http)
    values = settings.load(http=address, http_key_file=http_key_file, token=None, token_file=token_file, no_auth=None)
    if values["http"] is None:
        values = values.replaced({"http": settings.TABLE["http"].from_text(DEFAULT)})
    steps = {
        AddressInUse: "choose another port with --http (0 selects a free one)",
        InvalidArgument: "add --token-file FILE or --http-key-file FILE, or choose another --http",
    }
    client = attach(socket)
    with client:
        with stepping(steps):
            service = viewers.service(values)
        assert service is not None
        # Block the signals in this thread and so in the server's, so that only `sigwait` receives them.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        service.start(client)
        if as_json:
            print_json({"http": service.url})
        else:
            click.echo(f"serving {service.url}")
        signal.sigwait(ENDS)
        service.close()
