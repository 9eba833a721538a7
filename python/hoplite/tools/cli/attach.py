"""What commands that use a running node share: which node that is, and which of its refs a shell may complete."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

import hoplite
from hoplite import settings
from hoplite.errors import HopliteError, InvalidArgument
from hoplite.settings import UNIX
from hoplite.sockets import default_socket

if TYPE_CHECKING:
    import click

    from hoplite import Client

# As long as a user who pressed the tab key waits gladly.
COMPLETION_TIMEOUT_S = 1.0


def attach(socket: str | None, *, timeout: float = 10.0) -> Client:
    """Attaches to a running node; starts none, for a node of this command would know nothing.

    No command reads a pickle: what is in one can't be a file, and to read it runs code of its putter.

    Raises:
        ConnectError: none runs.
        InvalidArgument: HOPLITE_ADDRESS is that of a cluster, not of a node on this host; or the node is of another
            cluster than the settings say.
    """
    values = settings.load(address=None, socket=None, cluster=None)
    address: str = values["address"] or f"{UNIX}{values['socket'] or default_socket()}"
    if socket is not None:
        address = UNIX + socket.removeprefix(UNIX)
    if not address.startswith(UNIX):
        raise InvalidArgument(
            f"{values.origin('address')} is {address}; this command needs a node of this host, given by --socket"
        )
    client = hoplite.connect(address, timeout=timeout, allow_pickle=False)
    try:
        if values.is_set("cluster"):
            advice = "say another cluster there, or by --socket the node that is meant"
            values.check_cluster(client.status()["cluster"], address.removeprefix(UNIX), advice)
    except HopliteError:
        client.close()
        raise
    return client


def complete_ref(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offers the refs of the running node's copies; nothing where there is none, since a shell shows no errors."""
    del parameter
    try:
        warnings.simplefilter("ignore")
        with attach(context.params.get("socket"), timeout=COMPLETION_TIMEOUT_S) as client:
            refs = [copy["ref"] for copy in client.objects()]
    except (HopliteError, OSError):
        return []
    return [CompletionItem(ref) for ref in sorted(refs) if ref.startswith(incomplete)]
