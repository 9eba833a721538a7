"""What commands that use a running node share: which node that is, and which of its refs a shell may complete."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

import hoplite
from hoplite import settings, sockets
from hoplite.errors import ConnectError, HopliteError, InvalidArgument
from hoplite.settings import LOCAL, UNIX

if TYPE_CHECKING:
    import click

    from hoplite import Client

# As long as a user who pressed the tab key waits gladly.
COMPLETION_TIMEOUT_S = 1.0


def attach(socket: str | None, *, timeout: float = 10.0, digest: bool = False) -> Client:
    """Attaches to a running node; starts none, for a node of this command would know nothing.

    No command reads a pickle: what is in one can't be a file, and to read it runs code of its putter.

    Raises:
        ConnectError: none runs.
        InvalidArgument: HOPLITE_ADDRESS is that of a cluster, not of a node on this host; or the node is of another
            cluster than the settings say.
    """
    values = settings.load(address=None, socket=None, cluster=None)
    address: str = values["address"] or LOCAL
    if socket is not None:
        address = UNIX + socket.removeprefix(UNIX)
    elif address == LOCAL:
        wanted: str | None = values["socket"]
        found = sockets.find(wanted, embedded=values["address"] is None)
        address = f"{UNIX}{found or wanted or sockets.default_socket()}"
    if not address.startswith(UNIX):
        raise InvalidArgument(
            f"{values.origin('address')} is {address}; this command needs a node of this host, given by --socket"
        )
    path = address.removeprefix(UNIX)
    if not sockets.is_served(path):
        # People wait for no node that they may have forgotten to start.
        raise ConnectError(f"no node serves {path}{_elsewhere(path)}")
    client = hoplite.connect(address, timeout=timeout, allow_pickle=False, digest=digest or None)
    try:
        if values.is_set("cluster"):
            advice = "say another cluster there, or by --socket the node that is meant"
            values.check_cluster(client.status()["cluster"], path, advice)
    except HopliteError:
        client.close()
        raise
    return client


def _elsewhere(path: str) -> str:
    """What to say of this user's nodes that serve other sockets: of a Slurm job, of a Ray node, or embedded."""
    others = [other for other in sorted(sockets.runtime_dir().glob("*.sock")) if sockets.is_served(other)]
    said = ", ".join(f"{other} ({sockets.server_of(other)})" for other in others if str(other) != path)
    return f"; of yours, these run, for --socket: {said}" if said else ""


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
