"""The node that a command uses, and completion of its refs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

import hoplite
from hoplite import settings, sockets
from hoplite.errors import ConnectError, HopliteError, InvalidArgument
from hoplite.settings import LOCAL, UNIX
from hoplite.tools.progress import waiting_for

if TYPE_CHECKING:
    import click

    from hoplite import Client
    from hoplite.settings import Values

# Time limit of a completion.
COMPLETION_TIMEOUT_S = 1.0


def attach(socket: str | None, *, timeout: float = 10.0, digest: bool = False) -> Client:
    """Attaches to a running node; never starts one.

    Commands read no pickles: their content is not a file, and reading one runs code of another program.

    Raises:
        ConnectError: no node runs.
        InvalidArgument: HOPLITE_ADDRESS is the address of a cluster, not of a node on this host; or the node belongs to
            another cluster than the settings.
    """
    values = settings.load(address=None, socket=None, cluster=None)
    path = node_socket(values, socket)
    if not sockets.is_served(path):
        # Fail immediately: the user may have forgotten to start the node.
        raise ConnectError(f"no node serves {path}{_elsewhere(path)}")
    with waiting_for(f"the node on {path}"):
        client = hoplite.connect(UNIX + path, timeout=timeout, allow_pickle=False, digest=digest or None)
    try:
        if values.is_set("cluster"):
            advice = "correct the setting, or select the node with --socket"
            values.check_cluster(client.status()["cluster"], path, advice)
    except HopliteError:
        client.close()
        raise
    return client


def node_socket(values: Values, socket: str | None) -> str:
    """Returns the path of the socket that a command uses.

    Args:
        values: settings with `address` and `socket`.
        socket: the option of the command.

    Raises:
        InvalidArgument: HOPLITE_ADDRESS is the address of a cluster, not of a node on this host.
    """
    address: str = values["address"] or LOCAL
    if socket is not None:
        return socket.removeprefix(UNIX)
    if address == LOCAL:
        wanted: str | None = values["socket"]
        found = sockets.find(wanted, embedded=values["address"] is None)
        return str(found or wanted or sockets.default_socket())
    if not address.startswith(UNIX):
        raise InvalidArgument(
            f"{values.origin('address')} is {address}, and this command needs a node of this host: add --socket PATH"
        )
    return address.removeprefix(UNIX)


def _elsewhere(path: str) -> str:
    """Lists this user's nodes on other sockets: of a Slurm job, of a Ray node, or embedded."""
    others = [other for other in sorted(sockets.runtime_dir().glob("*.sock")) if sockets.is_served(other)]
    found = ", ".join(f"{other} ({sockets.server_of(other)})" for other in others if str(other) != path)
    return f"; running nodes that --socket can select: {found}" if found else ""


def complete_ref(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes refs of the running node's copies. Without a node it offers nothing: shells show no errors."""
    del parameter
    try:
        warnings.simplefilter("ignore")
        with attach(context.params.get("socket"), timeout=COMPLETION_TIMEOUT_S) as client:
            refs = [copy["ref"] for copy in client.objects()]
    except (HopliteError, OSError):
        return []
    return [CompletionItem(ref) for ref in sorted(refs) if ref.startswith(incomplete)]
